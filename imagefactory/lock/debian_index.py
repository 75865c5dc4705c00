"""Reads the signed index of a Debian release, and finds the packages in it that satisfy dependencies.

A key in `debian-keys/` signs InRelease, which has the sha256 of Packages, which has the sha256 of every .deb. The first
two links of this chain are checked here; the last one whenever a .deb is used.
"""

import hashlib
import lzma
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pysequoia
from debian.deb822 import PkgRelation, Release
from debian.debian_support import Version

from imagefactory.errors import NetworkError, TrustError
from imagefactory.lock.mirrors import SNAPSHOT_DATE, Archive, DebianMirrors, fetch, join
from imagefactory.project.locks.files import LockedSuite
from imagefactory.store.progress import Say

ALLOW_OLD = "FACTORY_DEBIAN_OLD"  # the variable that allows an outdated index, if it is `yes`
_PACKAGES = "main/binary-{}/Packages.xz"  # every Debian archive offers the list of packages in this form


@dataclass(frozen=True, kw_only=True)
class IndexedPackage:
    """A binary package in the signed index."""

    name: str
    version: str
    architecture: str
    archive: Archive
    file: str
    sha256: str
    size: int
    unpacked: int
    priority: str
    depends: str  # Pre-Depends and Depends, unparsed: only those of selected packages are needed
    provides: str


@dataclass(frozen=True)
class Index:
    """The packages of a release for one architecture, each in its highest version."""

    debian: str
    architecture: str
    suites: tuple[LockedSuite, ...]
    packages: Mapping[str, IndexedPackage]
    security: Mapping[str, str]  # the versions in the security suite, even where another suite has newer ones


def read_index(
    *, debian: str, platform: str, mirrors: DebianMirrors, say: Say, locked: Sequence[LockedSuite] = ()
) -> Index:
    """Fetch and verify all suites of a release, and keep the highest version of every package.

    An index that expired, or is older than that of the lock, is refused: a mirror could hold security updates back.
    """
    architecture = platform.removeprefix("linux/")  # Debian uses the same names
    keys = read_keys(mirrors.keys, debian)
    best: dict[str, IndexedPackage] = {}
    security: dict[str, str] = {}
    suites: list[LockedSuite] = []
    offers: tuple[tuple[str, Archive], ...] = (
        (debian, "main"),
        (f"{debian}-updates", "main"),
        (f"{debian}-security", "security"),
    )
    for name, archive in offers:
        after = max((suite.date for suite in locked if suite.name == name), default="")
        release, packages = _read_suite(name, archive, architecture, mirrors, keys, after=after)
        date = _signed_at(release)
        count = 0
        for package in packages:
            count += 1
            # 0~ comes before any version: a tilde sorts before the end (deb-version(7)).
            if archive == "security" and Version(security.get(package.name, "0~")) < Version(package.version):
                security[package.name] = package.version
            highest = best.get(package.name)
            # On a tie, the earlier suite wins: after a point release, main and security have the same file.
            if highest is None or Version(highest.version) < Version(package.version):
                best[package.name] = package
        suites.append(LockedSuite(name=name, archive=archive, date=date.strftime(SNAPSHOT_DATE)))
        say(f"{name}: {count} packages for {architecture}, signed {date:%Y-%m-%d %H:%M} UTC")
    return Index(debian, architecture, tuple(suites), best, security)


def read_keys(folder: Path, debian: str) -> list[pysequoia.Cert]:
    files = sorted(folder.glob(f"{debian}-*.asc"))
    if not files:
        raise TrustError(
            "bad-archive-signature",
            f"There are no archive keys for Debian {debian}.",
            where=folder,
            why="An index is trusted only if a key that is committed here signed it.",
            fix=f"Use a release that has keys, or add {debian}-*.asc as the README next to them says.",
        )
    return [pysequoia.Cert.from_bytes(file.read_bytes()) for file in files]


def _read_suite(
    suite: str,
    archive: Archive,
    architecture: str,
    mirrors: DebianMirrors,
    keys: list[pysequoia.Cert],
    *,
    after: str,
) -> tuple[Release, Iterator[IndexedPackage]]:
    tried: list[str] = []
    outdated = False
    for root in mirrors.roots(archive):
        where = join(root, f"dists/{suite}/InRelease")
        try:
            signed = fetch(root, f"dists/{suite}/InRelease")
            if signed is None:
                tried.append(f"{where}: not there")
                continue
            release = _verified_release(signed, keys, suite, where)
            if (why := _why_outdated(release, after)) and os.environ.get(ALLOW_OLD) != "yes":
                outdated = True
                tried.append(f"{where}: {why}")
                continue
            text = _fetch_packages(root, suite, architecture, release)
        except NetworkError as error:
            tried.append(f"{error.where}: {error.why}")
            continue
        if text is not None:
            return release, _parse_packages(text, archive, architecture)
        tried.append(f"{root}: {suite} has no packages for {architecture}")
    if outdated:
        raise TrustError(
            "outdated-index",
            f"No Debian mirror has a current index of {suite}.",
            where=suite,
            why="; ".join(tried),
            fix="Use another mirror (FACTORY_DEBIAN_MIRROR), and check this machine's clock. To lock an old state on "
            f"purpose, such as a snapshot, set {ALLOW_OLD}=yes.",
        )
    raise NetworkError(
        "mirror-unreachable",
        f"No Debian mirror has {suite} for {architecture}.",
        where="; ".join(tried) if tried else "FACTORY_DEBIAN_MIRROR, the host's apt sources",
        why="None of the mirrors has it." if tried else "No mirror is known that offers it.",
        fix="Set FACTORY_DEBIAN_MIRROR (and FACTORY_DEBIAN_SECURITY_MIRROR) to a mirror: a URL or a folder.",
    )


def _verified_release(signed: bytes, keys: list[pysequoia.Cert], suite: str, where: str) -> Release:
    """Read a Release file, which must be signed by one of our keys and be for the requested suite."""
    why, content = "it carries no signature", None
    try:
        # `.bytes` holds only what the signature covers, without any text around it.
        verified = pysequoia.verify(bytes=signed, store=lambda _ids: keys)
        content = verified.bytes if verified.valid_sigs else None
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
    if not content:
        raise TrustError(
            "bad-archive-signature",
            "The Debian archive's index is not signed by Debian.",
            where=where,
            why=why,
            fix="Use another mirror (FACTORY_DEBIAN_MIRROR). If every mirror fails, the keys in "
            "imagefactory/lock/debian-keys may be too old.",
        )
    fields = Release(content)
    if fields.get("Codename") != suite:
        raise TrustError(
            "bad-archive-signature",
            f"The mirror serves the index of {fields.get('Codename')} as {suite}.",
            where=where,
            why="The signature is good, but it was made for another suite.",
            fix="Use another mirror (FACTORY_DEBIAN_MIRROR); this one is broken or malicious.",
        )
    return fields


def _signed_at(release: Release) -> datetime:
    return parsedate_to_datetime(release["Date"]).astimezone(UTC)


def _why_outdated(release: Release, after: str) -> str:
    """Return why an index is not current; empty if it is. `after` is when the index of the lock was signed."""
    # A stable release has no Valid-Until; there, only the date of the lock tells an old index.
    expires = release.get("Valid-Until")
    if expires and parsedate_to_datetime(expires) < datetime.now(UTC):
        return f"it expired on {expires}"
    signed = _signed_at(release).strftime(SNAPSHOT_DATE)  # texts of this form sort by time
    return f"it was signed {signed}, before that of the lock, {after}" if signed < after else ""


def _fetch_packages(root: str, suite: str, architecture: str, release: Release) -> bytes | None:
    name = _PACKAGES.format(architecture)
    signed = next((file for file in release.get("SHA256", ()) if file["name"] == name), None)
    if signed is None:
        return None
    # A mirror in the middle of an update still has the old index under its hash.
    by_hash = f"{name.rpartition('/')[0]}/by-hash/SHA256/{signed['sha256']}"
    for path in (by_hash, name) if release.get("Acquire-By-Hash") == "yes" else (name,):
        data = fetch(root, f"dists/{suite}/{path}")
        if data is None:
            continue
        digest = hashlib.sha256(data).hexdigest()
        if digest != signed["sha256"] or len(data) != int(signed["size"]):
            raise TrustError(
                "bad-archive-signature",
                f"The package index of {suite} is not the one that Debian signed.",
                where=join(root, f"dists/{suite}/{path}"),
                why=f"Its sha256 is {digest}; the signed Release file says {signed['sha256']}.",
                fix="Try again in some minutes (the mirror may be updating), or use another mirror.",
            )
        return lzma.decompress(data)
    return None


def _parse_packages(text: bytes, archive: Archive, architecture: str) -> Iterator[IndexedPackage]:
    """Parse the single-line fields of a Packages file.

    `debian.deb822` takes 11 s instead of 3.6 s for the 68,000 packages of trixie.
    """
    for stanza in text.decode().split("\n\n"):
        fields = {}
        for line in stanza.splitlines():
            name, colon, value = line.partition(": ")
            if colon and not name.startswith(" "):
                fields[name] = value
        if fields.get("Architecture") not in {architecture, "all"}:
            continue
        yield IndexedPackage(
            name=fields["Package"],
            version=fields["Version"],
            architecture=fields["Architecture"],
            archive=archive,
            file=fields["Filename"],
            sha256=fields["SHA256"],
            size=int(fields["Size"]),
            unpacked=int(fields.get("Installed-Size", "0")) * 1024,  # in KiB (Debian policy 5.6.20)
            priority=fields.get("Priority", "optional"),
            depends=", ".join(filter(None, (fields.get("Pre-Depends"), fields.get("Depends")))),
            provides=fields.get("Provides", ""),
        )


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">>": operator.gt,
}
_PRIORITIES = ("required", "important", "standard", "optional", "extra")


@dataclass(frozen=True, order=True)
class Relation:
    """A package name and the versions of it that are acceptable."""

    name: str
    architecture: str = ""
    comparison: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.comparison} {self.version})" if self.comparison else self.name

    def allows(self, version: str) -> bool:
        return not self.comparison or _COMPARE[self.comparison](Version(version), Version(self.version))


Alternatives = tuple[Relation, ...]


def parse_depends(text: str) -> Iterator[Alternatives]:
    """Parse a Depends field: every group is needed, and any alternative satisfies a group."""
    for group in PkgRelation.parse_relations(text) if text else ():
        yield tuple(
            Relation(relation["name"], relation["archqual"] or "", *(relation["version"] or ("", "")))
            for relation in group
        )


class Choices:
    """Finds the packages of an index that satisfy a dependency, the preferred one first."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._provided: dict[str, list[tuple[str, str]]] = {}
        for package in index.packages.values():
            for (offer,) in parse_depends(package.provides):
                self._provided.setdefault(offer.name, []).append((package.name, offer.version))

    def satisfying(self, alternatives: Alternatives) -> tuple[str, ...]:
        """List the packages that satisfy one dependency, in the order of its alternatives."""
        return tuple(dict.fromkeys(name for relation in alternatives for name in self._satisfying(relation)))

    def providers(self, name: str) -> list[str]:
        return sorted({package for package, _ in self._provided.get(name, ())}, key=self._by_priority)

    def _satisfying(self, relation: Relation) -> Iterator[str]:
        if relation.architecture not in {"", "any", "native", self._index.architecture}:
            return
        real = self._index.packages.get(relation.name)
        if real is not None and relation.allows(real.version):
            yield real.name
        offers = dict(self._provided.get(relation.name, ()))
        for package in sorted(offers, key=self._by_priority):
            # Debian policy 7.5: an unversioned Provides satisfies no versioned dependency.
            if not relation.comparison or (offers[package] and relation.allows(offers[package])):
                yield package

    def _by_priority(self, name: str) -> tuple[int, str]:
        priority = self._index.packages[name].priority
        rank = _PRIORITIES.index(priority) if priority in _PRIORITIES else len(_PRIORITIES)
        return rank, name
