"""The Docker daemon, as far as assembled images need it: taking one in."""

from __future__ import annotations

import docker
import requests
from docker.errors import APIError, DockerException

from imagefactory.errors import EngineError
from imagefactory.oci.layout import Layout, archive


def load(layout: Layout, name: str) -> str:
    """Stream an image into the daemon, without a temporary file; give the id by which Docker knows it."""
    try:
        client = docker.from_env(timeout=600)
        client.ping()
        answers = client.api.load_image(archive(layout, name), quiet=True)
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise _refused(str(errors[0]))
        image: str = client.images.get(name).id
    except (DockerException, APIError, requests.RequestException) as error:
        raise EngineError(
            "The Docker daemon does not take the image.",
            where="docker load",
            why=str(error),
            fix="Start Docker, check DOCKER_HOST and the free disk, or use `invoke export` and load the file.",
        ) from None
    return image


def _refused(why: str) -> EngineError:
    return EngineError(
        "The Docker daemon refused the image.",
        where="docker load",
        why=why,
        fix="Check the free disk of the daemon, and that the image's platform is the daemon's.",
    )
