"""Compares images, and knows which differences are expected between those of the two engines."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from imagefactory.assemble.images_here import built_layouts
from imagefactory.oci.compare import Difference, Opened, diff_images
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import Layout
from imagefactory.project.project import Project

_METADATA: Final = f"{VENV}/lib/python*/site-packages/*.dist-info"
_SCRIPT: Final = 1024  # the most bytes of the few lines that start an entry point
_CONTENT: Final = {"sha256", "size"}


def compare_named(project: Project, left: str, right: str) -> tuple[list[Difference], list[Difference]]:
    """Compare two images by name; return the unexpected differences and the expected ones.

    A name means an OCI layout, an image of the Docker daemon (with a colon) or a target. Between two images of the
    embedded engine none is expected.
    """
    left_image, right_image = (_open(project, name) for name in (left, right))
    differences = diff_images(left_image, right_image, project.store)
    if isinstance(left_image, Layout) and isinstance(right_image, Layout):
        return differences, []
    unexpected = unexpected_of(differences)
    return unexpected, [difference for difference in differences if difference not in unexpected]


def _open(project: Project, name: str) -> Layout | Opened:
    if Path(name, "index.json").exists():
        return Layout(Path(name))
    if ":" in name:
        from imagefactory.assemble.engines.docker.daemon import open_image  # noqa: PLC0415 - only where Docker is meant

        return open_image(name)
    [(_, layout, _)] = built_layouts(project, [name], one=True)
    return layout


def unexpected_of(differences: Iterable[Difference]) -> list[Difference]:
    differences = list(differences)
    sizes = {size.path: max(int(size.left), int(size.right)) for size in differences if size.field == "size"}
    return [difference for difference in differences if not _is_expected(difference, sizes.get(difference.path, 0))]


def _is_expected(difference: Difference, size: int) -> bool:
    path, field = difference.path, difference.field
    if path == "(config)":
        # Old BuildKits do not take SOURCE_DATE_EPOCH for the time of the image, and set what Windows alone reads.
        return field in {"created", "ArgsEscaped"}
    if field == "mtime":
        # A folder that a step puts something into gets the time of the build.
        return difference.kind == "directory"
    if field not in _CONTENT:
        return False
    # INSTALLER says who installed: uv, or the factory. RECORD has its hash and those of scripts, in uv's order.
    if any(fnmatchcase(path, f"{_METADATA}/{name}") for name in ("INSTALLER", "RECORD")):
        return True
    return path.startswith(f"{VENV}/bin/") and size <= _SCRIPT  # in uv's words
