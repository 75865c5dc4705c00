"""Descriptors: how manifests and indexes name other content.

https://github.com/opencontainers/image-spec/blob/main/descriptor.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Descriptor:
    """The type, digest and size of some content, and what else is said of it."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read one; a ValueError, KeyError or TypeError says that it is none."""
        return cls(
            str(document["mediaType"]),
            Digest(str(document["digest"])),
            int(document["size"]),
            document.get("artifactType"),
            dict(document.get("annotations") or {}),
            document.get("platform"),
        )

    def document(self) -> dict[str, object]:
        """Write it."""
        written: dict[str, object] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            written["artifactType"] = self.artifact_type
        if self.platform:
            written["platform"] = dict(self.platform)
        if self.annotations:
            written["annotations"] = dict(self.annotations)
        return written
