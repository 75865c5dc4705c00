"""Computes sha256 digests and canonical JSON."""

import hashlib
import json
from typing import NewType

Sha256 = NewType("Sha256", str)  # 64 lower-case hex digits


def canonical_json(value: object) -> bytes:
    """Serialise to the JSON that keys and checksums are computed from."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256_of(data: bytes) -> Sha256:
    return Sha256(hashlib.sha256(data).hexdigest())


def checksum(value: object) -> Sha256:
    return sha256_of(canonical_json(value))
