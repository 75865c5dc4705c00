"""What is new on the package index, and what it means for this checkout, for a maintainer who has two minutes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import shorten

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagefactory.ci.run_summary import cell as escaped
from imagefactory.ci.run_summary import folded, table
from imagefactory.mods.compatibility import ModResult, markdown
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import TITLES, server_name, version_key
from imagefactory.store.indexes import Indexes

BROUGHT = {"FlashInfer": "flashinfer-python", "torch": "torch", "NCCL": "nvidia-nccl-cu13"}
"""Packages that servers bring along in a version of their own choice, and that people ask for."""
SECURITY = " (security)"
_SHOWN = 40


@dataclass
class News:
    """What was found, and what was done about it."""

    releases: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The newest version of each package, and the one that is here."""
    after: dict[str, str] = field(default_factory=dict)
    """The version of each package that is here once the change is merged."""
    breaks: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """What cannot be locked, a release such as `vLLM 0.33.0` or `packages`, and the resolver's words."""
    packages: Sequence[str] = ()
    """`LOCK: NAME OLD → NEW`, and `(security)` if the update comes from Debian's security suite; those come first."""
    mods: Sequence[ModResult] = ()

    @property
    def is_news(self) -> bool:
        """Whether a server has a release that is not here."""
        return any(newest != here for title, (newest, here) in self.releases.items() if title in TITLES.values())

    def markdown(self) -> str:
        changed = ([self.after[title]] if title in self.after else [] for title in self.releases)
        rows = [(title, *versions, *new) for (title, versions), new in zip(self.releases.items(), changed, strict=True)]
        lines = table(f"package | newest | here{' | after this' if self.after else ''}", rows)
        parts = {"Breaks": self.breaks, "Needs a decision": self.decisions, "Models": self.models, "Done": self.done}
        for title, entries in parts.items():
            shown = entries or (["nothing"] if title == "Breaks" and self.after else [])
            lines += [f"## {title}", "", *(f"- {line}" for line in shown), ""] if shown else []
        security = sum(line.endswith(SECURITY) for line in self.packages)
        marked = f", {security} of them with a security update from Debian" if security else ""
        more = len(self.packages) - _SHOWN
        moved = [f"- {line}" for line in (*self.packages[:_SHOWN], *([f"and {more} more"] if more > 0 else []))]
        lines += folded(f"{len(self.packages)} packages moved{marked}", moved) if moved else []
        lines += folded("Mods", [markdown(self.mods)]) if self.mods else []
        return "\n".join(lines)


def in_short(text: str) -> str:
    """Shorten a text to a line or two: resolvers explain themselves at length."""
    return escaped(shorten(text, 240, placeholder=" …"))


def newest_here(matrix: Matrix, server: str) -> str:
    """Return the name of the newest release of a server in the matrix; the first of several of one release."""
    named = {
        name: version for name, version in matrix.versions.items() if version.release and server_name(name) == server
    }
    return max(named, key=lambda name: named[name].version)


def offered(indexes: Indexes, distribution: str) -> list[Version]:
    """List the final releases of a distribution that an index has wheels of, oldest first."""
    versions: set[Version] = set()
    for offer in indexes.files(distribution):
        try:
            version = parse_wheel_filename(offer.file)[1]
        except ValueError:  # no name of a wheel, or a version of thousands of digits
            continue
        # Yanked files were withdrawn (PEP 592); a local version (`+cu130`) is a rebuild of a release (PEP 440).
        if not (offer.yanked or version.is_prerelease or version.local):
            versions.add(version)
    return sorted(versions)


def new_releases(matrix: Matrix, server: str, indexes: Indexes) -> list[str]:
    """List the releases of a server that are newer than all in the matrix, oldest first."""
    newest = matrix.versions[newest_here(matrix, server)].version
    return [str(version) for version in offered(indexes, server) if version > newest and not version.is_postrelease]


def look(project: Project, indexes: Indexes) -> News:
    news, matrix = News(), project.matrix
    newest = [newest_here(matrix, server) for server in TITLES if has_releases(matrix, server)]
    for name in newest:
        *between, last = [version_key(name), *new_releases(matrix, server_name(name), indexes)]
        passed = f" (after {', '.join(between[1:])})" if between[1:] else ""
        news.releases[TITLES[server_name(name)]] = f"{last}{passed}", version_key(name)
        _tell_of_models(news, matrix, server_name(name), last)
    brought = {TITLES[server_name(name)]: _brought(project, name) for name in newest}
    for title, package in BROUGHT.items():
        locked = {server: packages[package] for server, packages in brought.items() if package in packages}
        each = [f"{version} with {server}" for server, version in locked.items()]
        versions = offered(indexes, package)
        together = each if len({*locked.values()}) > 1 else [*locked.values()][:1] or ["-"]
        news.releases[title] = str(versions[-1]) if versions else "-", ", ".join(together)
    return news


def has_releases(matrix: Matrix, server: str) -> bool:
    return any(version.release for name, version in matrix.versions.items() if server_name(name) == server)


def _brought(project: Project, version: str) -> dict[str, str]:
    """Return the packages that are locked with a version on the default arch."""
    arch = project.matrix.defaults.arch
    cells = [cell for cell in locked_cells(project) if (cell.version, cell.arch) == (version, arch)]
    return {wheel.name: wheel.version for cell in cells[:1] for wheel in project.wheel_lock(cell).wheels}


def _tell_of_models(news: News, matrix: Matrix, server: str, newest: str) -> None:
    """Say which models no release of the matrix serves, and whether the newest one does."""
    releases = [version for name, version in matrix.versions.items() if version.release and server_name(name) == server]
    for name, model in matrix.models.items():
        needed = model.range_of(server)
        if needed is not None and not any(release.within(needed) for release in releases):
            offer = f"{newest} is the first" if newest in SpecifierSet(needed) else "the index has none"
            news.models.append(f"{name} needs {TITLES[server]} {needed}: {offer}.")
