"""The compatibility table: every mod on every vLLM version, applied to the real sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from imagefactory.errors import (
    FactoryError,
    ModClaimError,
    ModFileError,
    SourceMissingError,
    UnknownNameError,
    did_you_mean,
)
from imagefactory.mods.apply import apply_mods
from imagefactory.mods.facts import failing
from imagefactory.mods.manifest import Mod, Variant
from imagefactory.mods.sources import FolderSource, ReleaseSource, git_source
from imagefactory.project import Project
from imagefactory.resolve.index import IndexConfig, Indexes

Status = Literal[
    "applies", "upstream", "not needed", "conflict", "file missing", "not covered", "out of reach"
]
BROKEN: tuple[Status, ...] = ("conflict", "file missing", "not covered")
Source = FolderSource | ReleaseSource


@dataclass(frozen=True)
class Result:
    """What became of one mod on one version."""

    mod: str
    vllm: str
    status: Status
    detail: str = ""

    @property
    def holds(self) -> bool:
        """False when the mod claims something that is not so."""
        return self.status not in BROKEN

    def __str__(self) -> str:
        if self.status == "upstream":
            return f"upstream since {self.detail}"
        return self.status


def check_mods(
    project: Project,
    names: Sequence[str] = (),
    versions: Sequence[str] = (),
    *,
    folder: FolderSource | None = None,
) -> list[Result]:
    """Check mods on versions of the matrix, or on one source tree that stands for a version."""
    mods = [named_mod(project, name) for name in names] or list(project.mods.values())
    releases = named_versions(project, versions, folder)
    indexes = Indexes(IndexConfig.from_environment())
    sources: dict[tuple[str, str], Source] = {}
    for release in releases:
        for stage, suffix in (("installed", ".whl"), ("source", ".tar.gz")):
            locked = None if folder else project.source_lock.find(release, suffix)
            if folder is not None:
                sources[release, stage] = folder
            elif locked is not None:
                sources[release, stage] = ReleaseSource(locked, indexes, project.store)

    def check(pair: tuple[Mod, str]) -> Result:
        mod, release = pair
        version = project.matrix.vllm[release].version
        return _check(mod, release, version, lambda stage: sources[release, stage])

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(check, [(mod, release) for mod in mods for release in releases]))


def refuse_broken(results: Sequence[Result]) -> None:
    """Fail when a mod claims a version that does not hold."""
    broken = [result for result in results if not result.holds]
    if broken:
        raise ModClaimError(
            f"{len(broken)} claim{'s' if len(broken) > 1 else ''} of mods do not hold.",
            where=", ".join(f"{result.mod} on {result.vllm}" for result in broken),
            why=" | ".join(f"{result.mod} on {result.vllm}: {result.detail}" for result in broken),
            fix="Give the version a variant of its own, or say `upstreamed_in` or `not_needed` in the mod.yaml.",
        )


def _check(mod: Mod, release: str, version: Version, source: Callable[[str], Source]) -> Result:
    variants = [variant for stage in ("installed", "source") for variant in mod.variants(version, stage)]
    if mod.is_upstream(version):
        return _check_upstream(mod, release, source)
    if not variants:
        reason = mod.reason_not_needed(version)
        if reason is not None:
            return Result(mod.name, release, "not needed", reason)
        return Result(mod.name, release, "not covered", f"mod.yaml says nothing about {version}")
    for variant in variants:
        tree = git_source(variant.source.git) if variant.source else source(variant.stage)
        if tree is None:
            detail = f"{variant.source.git if variant.source else ''} is not on this machine"
            return Result(mod.name, release, "out of reach", detail)
        try:
            if variant.source is not None and isinstance(tree, FolderSource):
                tree.verify(variant.source)
            apply_mods([(mod, variant)], tree.read)
        except ModFileError as error:
            return Result(mod.name, release, "file missing", f"{error.what} ({error.where})")
        except SourceMissingError as error:
            return Result(mod.name, release, "out of reach", error.what)
        except FactoryError as error:
            return Result(mod.name, release, "conflict", f"{error.what} ({error.where}) {error.why}")
    return Result(mod.name, release, "applies", _how(variants))


def _check_upstream(mod: Mod, release: str, source: Callable[[str], Source]) -> Result:
    """Believe that a version has the change only when its untouched sources show it."""
    variant = mod.manifest.variants[-1]
    tree = source(variant.stage)
    for check in mod.manifest.upstream_checks or variant.checks:
        fault = failing(check, tree.read(check.file))
        if fault is not None:
            return Result(mod.name, release, "conflict", f"claimed to be upstream, but {check}: {fault}")
    return Result(mod.name, release, "upstream", str(mod.manifest.upstreamed_in))


def _how(variants: Sequence[Variant]) -> str:
    return ", ".join(f"{variant.versions} ({variant.stage})" for variant in variants)


def named_mod(project: Project, name: str) -> Mod:
    """Find a mod by its name, or say which is nearest."""
    if name not in project.mods:
        raise UnknownNameError(
            f"There is no mod {name!r}.",
            where="mods/",
            why="There is no folder of that name.",
            fix=did_you_mean(name, project.mods).capitalize(),
        )
    return project.mods[name]


def named_versions(project: Project, wanted: Sequence[str], folder: FolderSource | None = None) -> list[str]:
    """Find vLLM versions by name; without names, every release (or nightly, for a source tree)."""
    known = list(project.matrix.vllm)
    for name in wanted:
        if name not in known:
            raise UnknownNameError(
                f"Unknown vLLM version {name!r}.",
                where="the --vllm option",
                why="matrix.yaml has no vLLM version of that name.",
                fix=did_you_mean(name, known).capitalize(),
            )
    if folder is not None:
        return list(wanted) or ["nightly"]
    return list(wanted) or [
        name for name, version in project.matrix.vllm.items() if version.release is not None
    ]
