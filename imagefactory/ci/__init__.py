"""The steps of the workflows in .github: each is a function here, and a command that anybody can run."""
