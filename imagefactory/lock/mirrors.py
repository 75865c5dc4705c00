"""Finds Debian mirrors: the one the user names, else those of the host's apt, else the snapshot archive.

Mirrors need not be trusted: indexes are verified by their signature and packages by their sha256. A mirror may be a
plain HTTP server or a folder.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, Self
from urllib.parse import unquote

import requests
from debian.deb822 import Deb822

from imagefactory.errors import NetworkError, clean
from imagefactory.store.http import Retry, get_bounded, judge, new_session, reason_of
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
TIMEOUT = (10.0, 60.0)  # seconds to connect, seconds of silence
_SERVER_ERROR = 500


@dataclass(frozen=True, kw_only=True)
class DebianMirrors:
    """The roots of Debian archives in the order to try, and the keys that sign their indexes."""

    main: tuple[str, ...] = ()
    security: tuple[str, ...] = ()
    snapshots: str | None = SNAPSHOTS
    keys: Path = KEYS

    @classmethod
    def discover(cls, debian: str, *, environ: Mapping[str, str] = os.environ, apt: Path = Path("/etc/apt")) -> Self:
        """Return the mirrors that the user names, else those that the host's apt uses."""
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
        """List the roots of an archive, the snapshots taken after a time (default: now) last."""
        mirrors = [*(self.main if archive == "main" else self.security)]
        if self.snapshots is None:
            return mirrors
        moments = [at + delay for delay in SNAPSHOT_DELAYS] if at else [datetime.now(UTC)]
        folder = "debian" if archive == "main" else "debian-security"
        return [*mirrors, *(f"{self.snapshots}/{folder}/{moment:{SNAPSHOT_DATE}}" for moment in moments)]


class AptSource(NamedTuple):
    """An apt source: its root, and the suites and components that apt uses of it."""

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
    for stanza in Deb822.iter_paragraphs(text, use_apt_pkg=False):
        if stanza.get("Enabled", "yes") == "no" or "deb" not in stanza.get("Types", "").split():
            continue
        suites, components = (tuple(stanza.get(name, "").split()) for name in ("Suites", "Components"))
        for root in stanza.get("URIs", "").split():
            yield AptSource(root.rstrip("/"), suites, components)


def _offering(sources: Sequence[AptSource], suite: str, archive: Archive) -> tuple[str, ...]:
    """Return the roots of an archive's main component, preferably those that apt uses for this suite."""
    usable = [
        source
        for source in sources
        if "main" in source.components
        and split_address(source.root, "the sources of apt").scheme in {"http", "https", "file"}
    ]
    asked = [source.root for source in usable if suite in source.suites]
    if not asked:
        # A mirror of another Debian release usually has this one too; other sources are not Debian archives.
        suffix = "-security" if archive == "security" else ""
        releases = {f"{name}{suffix}" for name in _RELEASES}
        asked = [source.root for source in usable if releases.intersection(source.suites)]
    return tuple(dict.fromkeys(asked))


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
        answer = RETRY.run(lambda: get_bounded(new_session().get, url, timeout=TIMEOUT), later=judge)
    except requests.RequestException as error:
        why = f"{type(error).__name__}: {reason_of(error)}"
    else:
        if answer.ok:
            return answer.content
        if answer.status_code < _SERVER_ERROR and judge(answer) is None:
            return None
        why = f"it answered {answer.status_code} {clean(answer.reason)}"
    raise NetworkError(
        "mirror-unreachable",
        "A Debian mirror does not answer.",
        where=url,
        why=f"{why} ({RETRY.attempts} attempts)",
        fix="Try again later, or set FACTORY_DEBIAN_MIRROR to another mirror (a URL or a folder).",
    )
