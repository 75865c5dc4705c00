"""Docker: taking assembled images in, building from a rendered Dockerfile, giving images out to be compared."""

from imagefactory.build.engines.docker.daemon import load

__all__ = ["load"]
