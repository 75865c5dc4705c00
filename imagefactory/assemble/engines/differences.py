"""Declares the differences allowed between the images of the two engines; docs/engines.md explains each."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from imagefactory.assemble.images_here import built_layouts
from imagefactory.oci.compare import Difference, Opened, diff_images
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import Layout
from imagefactory.project.project import Project

_METADATA = f"{VENV}/lib/python*/site-packages/*.dist-info"
_CONTENT = ("sha256", "size")


class DeclaredDifference(NamedTuple):
    """An expected difference, and the reason for it."""

    path: str  # a glob; `*` crosses slashes
    fields: tuple[str, ...]
    reason: str
    kind: str = ""  # only for paths of this kind
    up_to: float = inf  # only for files of at most this many bytes


DECLARED: Final = tuple(
    DeclaredDifference(*line)
    for line in (
        ("(config)", ("created",), "old BuildKits do not take SOURCE_DATE_EPOCH for the time of the image"),
        ("(config)", ("ArgsEscaped",), "old BuildKits set it; it means something on Windows only"),
        ("*", ("mtime",), "a folder that a step puts something into gets the time of the build", "directory"),
        (f"{_METADATA}/INSTALLER", _CONTENT, "who installed: uv, or the factory"),
        (f"{_METADATA}/RECORD", _CONTENT, "hashes of INSTALLER and of scripts; in uv's order and spelling"),
        (f"{VENV}/bin/*", _CONTENT, "the few lines that start an entry point, in uv's words", "", 1024),
    )
)


def compare_named(project: Project, left: str, right: str) -> tuple[list[Difference], list[Difference]]:
    """Compare two images by name; return the unexpected differences and the declared ones.

    A name means an OCI layout, an image of the Docker daemon (with a colon) or a target. Between two images of the
    embedded engine no difference is declared.
    """
    one, other = (_open(project, name) for name in (left, right))
    differences = diff_images(one, other, project.store)
    if isinstance(one, Layout) and isinstance(other, Layout):
        return differences, []
    unexpected = undeclared(differences)
    return unexpected, [item for item in differences if item not in unexpected]


def _open(project: Project, name: str) -> Layout | Opened:
    if Path(name, "index.json").exists():
        return Layout(Path(name))
    if ":" in name:
        from imagefactory.assemble.engines.docker.daemon import open_image  # noqa: PLC0415 - only where Docker is meant

        return open_image(name)
    [(_, layout, _)] = built_layouts(project, [name], one=True)
    return layout


def undeclared(differences: Iterable[Difference]) -> list[Difference]:
    differences = list(differences)
    sizes = {
        difference.path: max(int(difference.left), int(difference.right))
        for difference in differences
        if difference.field == "size"
    }
    return [
        item
        for item in differences
        if not any(
            item.field in line.fields
            and fnmatchcase(item.path, line.path)
            and line.kind in ("", item.kind)
            and sizes.get(item.path, 0) <= line.up_to
            for line in DECLARED
        )
    ]
