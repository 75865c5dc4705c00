"""Where Debian packages are found: on a mirror the user names, on those of the host's apt, or in snapshots.

Nothing here is trusted. An index is believed for its signature and a package for its sha256, so a plain
HTTP mirror, a folder on a USB stick and the permanent archive are all the same to us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote

import requests

from imagefactory.environment.paths import expand_home, split_address
from imagefactory.errors.locks import MirrorError
from imagefactory.store.retry import Retry, judge

SNAPSHOTS = "https://snapshot.debian.org/archive"
"""Debian's permanent archive of every state its mirrors ever had: the last resort, never the first choice."""

KEYS = Path(__file__).parent / "debian-keys"

Archive = Literal["main", "security"]

_RELEASES = ("bullseye", "bookworm", "trixie", "forky", "oldstable", "stable", "testing", "sid", "unstable")

SNAPSHOT_DATE = "%Y%m%dT%H%M%SZ"
# A snapshot is taken hours after a Release file is signed, and asking for a moment gives the snapshot before
# it. So later moments are asked for: half a day, then a day and a half, before a file can be cleaned away.
SNAPSHOT_DELAYS = (timedelta(hours=12), timedelta(hours=36))

RETRY = Retry(attempts=3)
TIMEOUT = (10.0, 60.0)  # seconds to connect, seconds of silence
_SERVER_ERROR = 500


@dataclass(frozen=True, kw_only=True)
class DebianMirrors:
    """The roots of Debian archives in the order to ask them, and the keys an index must be signed with."""

    main: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    snapshots: str | None = SNAPSHOTS
    keys: Path = KEYS

    @classmethod
    def discover(
        cls, debian: str, *, environ: Mapping[str, str] = os.environ, apt: Path = Path("/etc/apt")
    ) -> Self:
        """Take the mirrors that the user names, else those of the host's own apt.

        Those that it uses for this release come first; a mirror of another release mostly has this one as well.
        """
        named = environ.get("FACTORY_DEBIAN_MIRROR", "").rstrip("/")
        if named:
            security = environ.get("FACTORY_DEBIAN_SECURITY_MIRROR", "").rstrip("/") or f"{named}-security"
            return cls(main=(named,), security=(security,))
        offers = list(read_apt_sources(apt))
        return cls(
            main=_offering(offers, debian, "main"),
            security=_offering(offers, f"{debian}-security", "security"),
        )

    def roots(self, archive: Archive, *, at: datetime | None = None) -> list[str]:
        """List where an archive's files may be, the snapshots of a moment last (of now, if none is given)."""
        mirrors = [*(self.main if archive == "main" else self.security)]
        if self.snapshots is None:
            return mirrors
        moments = [at + delay for delay in SNAPSHOT_DELAYS] if at else [datetime.now(UTC)]
        folder = "debian" if archive == "main" else "debian-security"
        return [*mirrors, *(f"{self.snapshots}/{folder}/{moment:{SNAPSHOT_DATE}}" for moment in moments)]


@dataclass(frozen=True)
class AptSource:
    """One line of apt's sources: a root, and the suites and components that are asked of it."""

    root: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def read_apt_sources(apt: Path) -> Iterator[AptSource]:
    """Read the binary package sources of a host's apt configuration, in apt's own order."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"), key=lambda path: path.name)]
    for file in files:
        if file.suffix not in {".list", ".sources"} or not file.is_file():
            continue
        text = file.read_text("utf-8", errors="replace")
        yield from _one_line_sources(text) if file.suffix == ".list" else _deb822_sources(text)


def _one_line_sources(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        words = re.sub(r"\[[^\]]*\]", " ", line.split("#", 1)[0]).split()
        if len(words) > 3 and words[0] == "deb":  # noqa: PLR2004 - type, root, suite, then components
            yield AptSource(words[1].rstrip("/"), (words[2],), tuple(words[3:]))


def _deb822_sources(text: str) -> Iterator[AptSource]:
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", uncommented):
        fields = {
            name.lower(): value.split()
            for name, value in re.findall(r"^([A-Za-z-]+):((?:.*)(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        }
        if fields.get("enabled", ["yes"]) == ["no"] or "deb" not in fields.get("types", ()):
            continue
        for root in fields.get("uris", ()):
            suites, components = fields.get("suites", []), fields.get("components", [])
            yield AptSource(root.rstrip("/"), tuple(suites), tuple(components))


def _offering(sources: Sequence[AptSource], suite: str, archive: Archive) -> tuple[str, ...]:
    """Pick the roots of an archive's main component, each once, in order: those that are asked for this very suite."""
    usable = [
        source
        for source in sources
        if "main" in source.components
        and split_address(source.root, "the sources of apt").scheme in {"http", "https", "file"}
    ]
    asked = [source.root for source in usable if suite in source.suites]
    if not asked:
        # A mirror of another Debian release has this one as well; what else apt knows are other people's archives.
        suffix = "-security" if archive == "security" else ""
        releases = {f"{name}{suffix}" for name in _RELEASES}
        asked = [source.root for source in usable if releases.intersection(source.suites)]
    return tuple(dict.fromkeys(asked))


def local_path(root: str) -> Path | None:
    """Return the folder of a mirror on this machine, or None for one on the network."""
    parts = split_address(root, "FACTORY_DEBIAN_MIRROR or the sources of apt")
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else expand_home(root, "FACTORY_DEBIAN_MIRROR")


def join(root: str, path: str) -> str:
    """Return the address of a file below a mirror's root: a path for local folders, else a URL."""
    folder = local_path(root)
    return f"{root}/{path}" if folder is None else str(folder / path)


def fetch(root: str, path: str) -> bytes | None:
    """Read one file below a root; None when the mirror answers that it has no such file."""
    folder = local_path(root)
    if folder is not None:
        try:
            return (folder / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return _download(f"{root}/{path}")


def _download(url: str) -> bytes | None:
    try:
        answer = RETRY.run(lambda: requests.get(url, timeout=TIMEOUT), later=judge)
    except requests.RequestException as error:
        why = _innermost(error)
    else:
        if answer.ok:
            return answer.content
        if answer.status_code < _SERVER_ERROR and judge(answer) is None:
            return None
        why = f"it answered {answer.status_code} {answer.reason}"
    raise MirrorError(
        "A Debian mirror does not answer.",
        where=url,
        why=f"{why} ({RETRY.attempts} attempts)",
        fix="Try again later, or set FACTORY_DEBIAN_MIRROR to another mirror (a URL or a folder).",
    )


def _innermost(error: BaseException) -> str:
    """Describe the innermost error: requests wraps the one that matters several times."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}"
