"""The compatibility table: every mod on every vLLM version, applied to the real sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.mods import (
    AnchorError,
    ModCheckError,
    ModClaimError,
    ModConflictError,
    ModFileError,
    ModNotApplicableError,
    ModSyntaxError,
    ModVersionsError,
    PatchError,
)
from imagefactory.locks.project import Project
from imagefactory.matrix.matrix import Matrix
from imagefactory.mods.source_files import FolderSource, git_source
from imagefactory.mods.trees import Trees
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.checks import failing
from images.shipped.mods.manifest import STAGES, Mod, Variant
from images.shipped.mods.requirements import with_requirements

Status = Literal[
    "applies", "upstream", "not needed", "conflict", "file missing", "not covered", "out of reach"
]
BROKEN: tuple[Status, ...] = ("conflict", "file missing", "not covered")
_UNFIT = (AnchorError, PatchError, ModCheckError, ModSyntaxError, ModConflictError, ModNotApplicableError)


@dataclass(frozen=True)
class ModResult:
    """The result of checking one mod on one version."""

    mod: str
    vllm: str
    status: Status
    detail: str = ""

    @property
    def holds(self) -> bool:
        """False if the mod makes a claim that is wrong."""
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
) -> list[ModResult]:
    """Check mods on versions of the matrix, or on one source tree in place of a version."""
    mods = [named_mod(project, name) for name in names] or list(project.mods.values())
    refuse_idle_variants(mods, project.matrix)
    releases = named_versions(project, versions, folder)
    trees = Trees(project, folder)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(_check, project, mod, release, trees) for mod in mods for release in releases]
        return [future.result() for future in futures]


def refuse_broken(results: Sequence[ModResult]) -> None:
    """Raise an error if a mod makes a wrong claim about a version."""
    broken = [result for result in results if not result.holds]
    if broken:
        raise ModClaimError(
            f"{len(broken)} claim{'s of mods do' if len(broken) > 1 else ' of a mod does'} not hold.",
            where=", ".join(f"{result.mod} on {result.vllm}" for result in broken),
            why=" | ".join(f"{result.mod} on {result.vllm}: {result.detail}" for result in broken),
            fix="Give the version a variant of its own, or say `upstreamed_in` or `not_needed` in the mod.yaml.",
        )


def refuse_idle_variants(mods: Iterable[Mod], matrix: Matrix) -> None:
    """Raise an error for a variant that no version of the matrix can test."""
    for mod in mods:
        for variant in mod.manifest.variants:
            if not any(version.within(variant.versions) for version in matrix.vllm.values()):
                raise ModVersionsError(
                    f"A variant of the mod {mod.name} matches none of our versions.",
                    where=mod.where_in(variant, "versions"),
                    why=f"No version in matrix.yaml matches {variant.versions!r}, so mistakes would go unnoticed.",
                    fix="Remove the variant, or correct its range.",
                )


def _check(project: Project, mod: Mod, release: str, trees: Trees) -> ModResult:
    version = project.matrix.vllm[release].version
    if mod.is_upstream(version):
        return _check_upstream(mod, release, trees)
    variants = [variant for stage in STAGES if (variant := mod.variant(version, stage)) is not None]
    if not variants:
        reason = mod.reason_not_needed(version)
        if reason is not None:
            return ModResult(mod.name, release, "not needed", reason)
        return ModResult(mod.name, release, "not covered", f"mod.yaml says nothing about {version}")
    found = (_try(project, mod, variant, release, trees) for variant in variants)
    failed = next((result for result in found if result is not None), None)
    return failed or ModResult(mod.name, release, "applies", _how(variants))


def _try(project: Project, mod: Mod, variant: Variant, release: str, trees: Trees) -> ModResult | None:
    """Apply one variant of a mod; return a result only if it cannot be applied."""
    if variant.source is not None and git_source(variant.source) is None:
        return ModResult(mod.name, release, "out of reach", f"{variant.source.git} is not on this machine")
    version = project.matrix.vllm[release].version
    try:
        chosen = with_requirements(mod, project.mods, version, variant.stage)
        together = [pair for pair in chosen.values() if trees.same(pair, (mod, variant))]
        apply_mods(together, trees.tree(mod, variant, release).read)
    except ModFileError as error:
        return ModResult(mod.name, release, "file missing", f"{error.what} ({error.where})")
    except _UNFIT as error:
        return ModResult(mod.name, release, "conflict", f"{error.what} ({error.where}) {error.why}")
    return None


def _check_upstream(mod: Mod, release: str, trees: Trees) -> ModResult:
    """Check that the unmodified sources of a version really contain the change."""
    variant = mod.manifest.variants[-1]
    tree = trees.tree(mod, variant, release)
    for check in mod.manifest.upstream_checks or variant.checks:
        fault = failing(check, tree.read(check.file))
        if fault is not None:
            return ModResult(mod.name, release, "conflict", f"claimed to be upstream, but {check}: {fault}")
    return ModResult(mod.name, release, "upstream", str(mod.manifest.upstreamed_in))


def _how(variants: Sequence[Variant]) -> str:
    return ", ".join(f"{variant.versions} ({variant.stage})" for variant in variants)


def named_mod(project: Project, name: str) -> Mod:
    """Find a mod by name; if there is none, suggest the nearest."""
    if name not in project.mods:
        raise UnknownNameError(
            f"There is no mod {name!r}.",
            where="mods/",
            why="There is no folder of that name.",
            fix=did_you_mean(name, project.mods).capitalize(),
        )
    return project.mods[name]


def named_versions(project: Project, wanted: Sequence[str], folder: FolderSource | None = None) -> list[str]:
    """Find vLLM versions by name; by default every release, or nightly for a source tree."""
    known = project.matrix.vllm
    if folder is not None:
        wanted = wanted or ["nightly"]
    for name in wanted:
        if name not in known:
            raise UnknownNameError(
                f"Unknown vLLM version {name!r}.",
                where="the --vllm option",
                why="matrix.yaml has no vLLM version of that name.",
                fix=did_you_mean(name, known).capitalize(),
            )
    return list(wanted) or [name for name, version in known.items() if version.release is not None]
