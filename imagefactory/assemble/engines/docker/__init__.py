"""Docker: loads assembled images, builds from rendered Dockerfiles, and reads images back for comparison."""
