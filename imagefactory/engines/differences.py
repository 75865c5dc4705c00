"""What the engines' images may differ in, and nothing else: docs/engines.md explains each line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from imagefactory.compare import Difference
from imagefactory.oci.format import VENV

_METADATA = f"{VENV}/lib/python*/site-packages/*.dist-info"
_CONTENT = ("sha256", "size")


@dataclass(frozen=True)
class Declared:
    """A difference that is expected, and why."""

    path: str
    """A glob; `*` crosses slashes."""
    fields: tuple[str, ...]
    reason: str
    kind: str = ""
    """Only for paths of this kind."""
    up_to: int | None = None
    """Only for files of at most so many bytes."""

    def covers(self, difference: Difference, sizes: dict[str, int]) -> bool:
        """Say whether a difference is this one."""
        return (
            difference.field in self.fields
            and fnmatchcase(difference.path, self.path)
            and self.kind in ("", difference.kind)
            and (self.up_to is None or sizes.get(difference.path, 0) <= self.up_to)
        )


DECLARED: Final = (
    Declared(
        "(config)", ("created",), "old BuildKits do not take SOURCE_DATE_EPOCH for the time of the image"
    ),
    Declared("(config)", ("ArgsEscaped",), "old BuildKits set it; it means something on Windows only"),
    Declared(
        "*", ("mtime",), "a folder that a step puts something into gets the time of the build", "directory"
    ),
    Declared(f"{_METADATA}/INSTALLER", _CONTENT, "who installed: uv, or the factory"),
    Declared(
        f"{_METADATA}/RECORD", _CONTENT, "hashes of INSTALLER and of scripts; in uv's order and spelling"
    ),
    Declared(f"{VENV}/bin/*", _CONTENT, "the few lines that start an entry point, in uv's words", up_to=1024),
)


def undeclared(differences: Iterable[Difference]) -> list[Difference]:
    """List the differences that nobody declared."""
    differences = list(differences)
    sizes = {
        difference.path: max(int(difference.left), int(difference.right))
        for difference in differences
        if difference.field == "size"
    }
    return [item for item in differences if not any(line.covers(item, sizes) for line in DECLARED)]
