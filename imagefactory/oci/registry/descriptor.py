"""Descriptors, with which manifests and indexes refer to other content.

https://github.com/opencontainers/image-spec/blob/main/descriptor.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from imagefactory.oci.registry.reference import is_digest
from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Descriptor:
    """The type, digest and size of some content, with optional metadata."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Parse a descriptor; raise ValueError, KeyError or TypeError if it is none."""
        digest, size = str(document["digest"]), document["size"]
        if not is_digest(digest) or not isinstance(size, int) or size < 0:
            raise ValueError("it has no digest, or no size")
        return cls(
            str(document["mediaType"]),
            Digest(digest),
            size,
            document.get("artifactType"),
            dict(document.get("annotations") or {}),
            document.get("platform"),
        )

    def document(self) -> dict[str, object]:
        """Return the descriptor as a JSON object."""
        optional = {
            "artifactType": self.artifact_type,
            "platform": dict(self.platform or {}),
            "annotations": dict(self.annotations),
        }
        written = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return written | {key: value for key, value in optional.items() if value}
