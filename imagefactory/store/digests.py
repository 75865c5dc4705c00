"""Identifiers of content: sha256 sums, digests, checksums of JSON; and whether cached files still match theirs."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NewType

from pydantic_core import from_json

from imagefactory.errors import TrustError
from imagefactory.store.atomic import write_text
from images.shipped.hashing import Sha256, canonical_json, checksum, sha256_of

__all__ = ["Digest", "Sha256", "canonical_json", "checksum", "digest_of", "file_sha256", "sha256_of"]

Digest = NewType("Digest", str)  # an OCI digest: `sha256:` and 64 hex digits


def digest_of(data: bytes) -> Digest:
    return Digest(f"sha256:{sha256_of(data)}")


def file_sha256(path: Path) -> Sha256:
    with path.open("rb") as file:
        return Sha256(hashlib.file_digest(file, "sha256").hexdigest())


_BLOCK = 1024 * 1024  # bytes that are read at a time


def refuse_changed(files: Mapping[Sha256, Path]) -> None:
    """Hash files in parallel; raise DamagedCacheError if one does not have its sha256. Missing ones are ignored."""
    present = {sha256: path for sha256, path in files.items() if path.exists()}
    with ThreadPoolExecutor() as pool:
        hashed = pool.map(file_sha256, present.values())
        for (sha256, path), actual in zip(present.items(), hashed, strict=True):
            if actual != sha256:
                raise _damaged(path, sha256, actual)


def sound_blocks(path: Path) -> Iterator[bytes]:
    """Read a blob, which is named by its sha256; raise DamagedCacheError in place of the last block if it changed."""
    hashed, previous = hashlib.sha256(), b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if previous:
                yield previous
            previous = block
            hashed.update(block)
    if hashed.hexdigest() != path.name:
        raise _damaged(path, Sha256(path.name), Sha256(hashed.hexdigest()))
    yield previous


class HashedFiles:
    """Files named by their sha256 that were hashed before, and what they looked like then."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._seen: dict[str, object] = {}
        with suppress(FileNotFoundError, ValueError):  # missing or damaged
            seen = parse_json(memory.read_bytes())
            self._seen = seen if isinstance(seen, dict) else {}

    def refuse_changed(self, paths: Iterable[Path]) -> None:
        """Raise DamagedCacheError if a file is not what its name says; hash those that are not known."""
        refuse_changed({Sha256(path.name): path for path in paths if not self.knows(path)})

    def is_sound(self, path: Path) -> bool:
        return self.knows(path) or (path.exists() and file_sha256(path) == path.name)

    def knows(self, path: Path) -> bool:
        """Return whether a file is there, and has not changed since it was hashed."""
        look = _look(path)
        return look is not None and self._seen.get(str(path)) == look

    def remember(self, paths: Iterable[Path]) -> None:
        """Remember what files look like now that are certain to be what their names say; forget files that are gone."""
        looks = {str(path): _look(path) for path in paths}
        if not looks:
            return
        seen = {name: look for name, look in (self._seen | looks).items() if Path(name).exists()}
        if seen != self._seen:
            self._seen = seen
            write_text(self._memory, json.dumps(seen, sort_keys=True))


def _look(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # Who changes a file can set its mtime back, but not its ctime.
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _damaged(path: Path, sha256: Sha256, actual: Sha256) -> TrustError:
    return TrustError(
        "damaged-cache",
        "A file is not what its name says.",
        where=path.resolve(),
        why=f"Its sha256 is {actual}, not {sha256}: the disk is failing, or somebody changed the file.",
        fix="Remove this file and run `./inv build` again. Find out who else can write to the cache.",
    )


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - anything may come
    """Parse JSON that somebody else wrote; raise ValueError if it is none, or is nested more than 200 deep.

    json.loads takes what barely fits into the stack, and whoever compares or prints it later gets a RecursionError.
    """
    return from_json(text)
