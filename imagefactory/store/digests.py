"""Identifiers of content: sha256 sums, OCI digests, and checksums of canonical JSON."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NewType

from images.shipped.hashing import Sha256, canonical_json, checksum, sha256_of

__all__ = ["Digest", "Sha256", "canonical_json", "checksum", "digest_of", "file_sha256", "sha256_of"]

Digest = NewType("Digest", str)
"""An OCI digest: `sha256:` and 64 hex digits."""


def digest_of(data: bytes) -> Digest:
    """Return the OCI digest of some bytes."""
    return Digest(f"sha256:{sha256_of(data)}")


def file_sha256(path: Path) -> Sha256:
    """Hash a file on this machine."""
    with path.open("rb") as file:
        return Sha256(hashlib.file_digest(file, "sha256").hexdigest())
