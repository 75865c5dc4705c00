"""Finds Debian mirrors: the one the user names, else those of the host's apt, else the snapshot archive.

Mirrors need not be trusted: indexes are verified by their signature and packages by their sha256. A mirror may be a
plain HTTP server or a folder.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote

import requests

from imagefactory.errors import NetworkError
from imagefactory.store.http import Retry, ask, judge, new_session, reason_of
from imagefactory.store.paths import expand_home, split_address

SNAPSHOTS = "https://snapshot.debian.org/archive"  # all past states of Debian's mirrors, as a last resort
KEYS = Path(__file__).parent / "debian-keys"
Archive = Literal["main", "security"]
_RELEASES = ("bullseye", "bookworm", "trixie", "forky", "oldstable", "stable", "testing", "sid", "unstable")
SNAPSHOT_DATE = "%Y%m%dT%H%M%SZ"
# A snapshot is taken hours after a Release file is signed, and the archive returns the snapshot before the requested
# time. So request later ones: after half a day, then after a day and a half, before mirrors remove old files.
SNAPSHOT_DELAYS = (timedelta(hours=12), timedelta(hours=36))
RETRY = Retry(attempts=3)
_SERVER_ERROR = 500


@dataclass(frozen=True, kw_only=True)
class DebianMirrors:
    """The roots of Debian archives in the order to try, and the keys that sign their indexes."""

    main: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    snapshots: str | None = SNAPSHOTS
    keys: Path = KEYS

    @classmethod
    def discover(cls, debian: str, apt: Path = Path("/etc/apt")) -> Self:
        """Return the mirrors that the user names, else those that the host's apt uses."""
        named = os.environ.get("FACTORY_DEBIAN_MIRROR", "").rstrip("/")
        if named:
            # Mirrors have the two archives side by side, as Debian's own do: /debian and /debian-security.
            security = os.environ.get("FACTORY_DEBIAN_SECURITY_MIRROR", "").rstrip("/") or f"{named}-security"
            return cls(main=(named,), security=(security,))
        offers = list(read_apt_sources(apt))
        return cls(
            main=_offering(offers, debian, "main"),
            security=_offering(offers, f"{debian}-security", "security"),
        )

    def roots(self, archive: Archive, *, at: datetime | None = None) -> list[str]:
        """List the roots of an archive, the snapshots taken after a time (default: now) last."""
        mirrors = [*(self.main if archive == "main" else self.security)]
        if self.snapshots is None:
            return mirrors
        moments = [at + delay for delay in SNAPSHOT_DELAYS] if at else [datetime.now(UTC)]
        folder = "debian" if archive == "main" else "debian-security"
        return [*mirrors, *(f"{self.snapshots}/{folder}/{moment:{SNAPSHOT_DATE}}" for moment in moments)]


AptSource = tuple[str, Sequence[str]]  # a root of binary packages, and the words of its entry, suites among them


def read_apt_sources(apt: Path) -> Iterator[AptSource]:
    """Read a host's apt configuration, in apt's own order: the lines of *.list, and the stanzas of *.sources."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"), key=lambda path: path.name)]
    for file in files:
        if file.suffix not in {".list", ".sources"} or not file.is_file():
            continue
        text = re.sub(r"(?m)^#.*\n|#.*$", "", file.read_text("utf-8", errors="replace"))
        for entry in re.split(r"\n" if file.suffix == ".list" else r"\n\s*\n", text):
            words = re.sub(r"\[[^][]*\]", " ", entry).split()  # without options
            if {"deb", "main"} <= set(words) and not re.search(r"(?m)^Enabled:\s*no", entry):
                roots = (word.rstrip("/") for word in words if word.startswith(("http://", "https://", "file:")))
                yield from ((root, words) for root in roots)


def _offering(sources: Sequence[AptSource], suite: str, archive: Archive) -> tuple[str, ...]:
    """Return the roots of an archive, preferably those that apt uses for this suite."""
    roots = [root for root, words in sources if suite in words]
    if not roots:
        # A mirror of another Debian release usually has this one too; other sources are not Debian archives.
        releases = {f"{name}{'-security' if archive == 'security' else ''}" for name in _RELEASES}
        roots = [root for root, words in sources if releases.intersection(words)]
    return tuple(dict.fromkeys(roots))


def local_path(root: str) -> Path | None:
    parts = split_address(root, "FACTORY_DEBIAN_MIRROR or the sources of apt")
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else expand_home(root, "FACTORY_DEBIAN_MIRROR")


def join(root: str, path: str) -> str:
    """Return the address of a file below a mirror's root: a path for local folders, else a URL."""
    folder = local_path(root)
    return f"{root}/{path}" if folder is None else str(folder / path)


def fetch(root: str, path: str) -> bytes | None:
    folder = local_path(root)
    if folder is not None:
        try:
            return (folder / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return _download(f"{root}/{path}")


def _download(url: str) -> bytes | None:
    try:
        with new_session() as session:
            answer = RETRY.run(lambda: ask(session, "GET", url), later=judge)
    except requests.RequestException as error:
        why = f"{type(error).__name__}: {reason_of(error)}"
    else:
        if answer.ok:
            return answer.body
        # The mirror lacks the file; another one may have it.
        if answer.status < _SERVER_ERROR and judge(answer) is None:
            return None
        why = f"it answered {answer.status_line}"
    raise NetworkError(
        "mirror-unreachable",
        "A Debian mirror does not answer.",
        where=url,
        why=f"{why} ({RETRY.attempts} attempts)",
        fix="Try again later, or set FACTORY_DEBIAN_MIRROR to another mirror (a URL or a folder).",
    )
