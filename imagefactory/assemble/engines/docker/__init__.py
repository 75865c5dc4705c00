"""Docker: loads assembled images, builds from rendered Dockerfiles, and reads images back for comparison."""

from imagefactory.assemble.engines.docker.daemon import load

__all__ = ["load"]
