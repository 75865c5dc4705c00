"""Check every mod on every version of its server by applying it to the real sources; the table in mods/README.md."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import MOD_FILE_MISSING, MOD_MISFITS, ModError, unknown_name
from imagefactory.mods.choose import find_mod, unknown_names
from imagefactory.mods.conflicts import FIX, Conflict, find_conflicts
from imagefactory.mods.source_files import FolderSource, Trees
from imagefactory.project.cells import first_of_release
from imagefactory.project.locks.files import LockedWheel
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, server_name
from imagefactory.store.atomic import write_text
from imagefactory.store.paths import read_text
from images.shipped.mods.checks import failing
from images.shipped.mods.manifest import MANIFEST, STAGES, Mod, Variant

Status = Literal[
    "applies",
    "upstream",
    "not needed",
    "other server",
    "conflict",
    "file missing",
    "not covered",
]
BEGIN = "<!-- table: made by `./inv mods.check --write` -->"
END = "<!-- end of table -->"
BROKEN: tuple[Status, ...] = ("conflict", "file missing", "not covered")


@dataclass(frozen=True)
class ModResult:
    """The result of checking one mod on one version."""

    mod: str
    version: str
    status: Status
    detail: str = ""
    fix: str = ""  # what its author can do, if it does not hold

    @property
    def holds(self) -> bool:
        return self.status not in BROKEN

    def __str__(self) -> str:
        return f"upstream since {self.detail}" if self.status == "upstream" else self.status


def check_mods(
    project: Project,
    names: Sequence[str] = (),
    versions: Sequence[str] = (),
    *,
    folder: FolderSource | None = None,
) -> list[ModResult]:
    """Check mods on versions of the matrix (default: every release), or on a source tree in place of one."""
    mods = [find_mod(project.mods, name) for name in names] or list(project.mods.values())
    refuse_idle_variants(mods, project.matrix)
    for unknown in unknown_names(mods, project.matrix):
        raise unknown
    for name in versions:
        refuse_unknown_version(project.matrix, name)
    checked = versions or (releases(project.matrix) if folder is None else ["nightly"])
    trees = Trees(project, folder)
    with ThreadPoolExecutor(8) as pool:  # what takes time are requests for parts of wheels
        futures = [pool.submit(_check, project.matrix, mod, name, trees) for mod in mods for name in checked]
        results = [future.result() for future in futures]
    conflicts = find_conflicts(project, trees, checked, names)
    return [_together(result, conflicts) for result in results]


def _together(result: ModResult, conflicts: Iterable[Conflict]) -> ModResult:
    """Return the result of a mod, or its first conflict with another mod."""
    for conflict in conflicts:
        if conflict.version == result.version and result.mod in conflict.mods and result.holds:
            return replace(result, status="conflict", detail=str(conflict), fix=FIX)
    return result


def releases(matrix: Matrix) -> list[str]:
    named = (name for name, version in matrix.versions.items() if version.release is not None)
    return [name for name in named if first_of_release(matrix, name) == name]


def refuse_broken(results: Sequence[ModResult]) -> None:
    broken = [result for result in results if not result.holds]
    if broken:
        alike: dict[str, list[str]] = {}
        for result in broken:
            alike.setdefault(result.detail, []).append(f"{result.mod} on {result.version}")
        raise ModError(
            "false-claim",
            f"{len(broken)} claim{'s of mods do' if len(broken) > 1 else ' of a mod does'} not hold.",
            where=", ".join(f"{result.mod} on {result.version}" for result in broken),
            why=" | ".join(f"{', '.join(where)}: {detail}" for detail, where in alike.items()),
            fix=" ".join(dict.fromkeys(result.fix for result in broken)),
        )


def refuse_idle_variants(mods: Iterable[Mod], matrix: Matrix) -> None:
    """Raise an error if no version of the matrix can test a variant."""
    for mod in mods:
        for variant in mod.manifest.variants:
            if not any(
                version.within(variant.versions)
                for name, version in matrix.versions.items()
                if server_name(name) == mod.manifest.of_server
            ):
                raise ModError(
                    "bad-mod-versions",
                    f"A variant of the mod {mod.name} matches no version of the matrix.",
                    where=mod.where_in(variant, "versions"),
                    why=f"Its range is {variant.versions!r}; mistakes in a variant that nothing tests go unnoticed.",
                    fix="Remove the variant, or correct its range.",
                )


def refuse_unknown_version(matrix: Matrix, name: str) -> None:
    if name not in matrix.versions:
        raise unknown_name("version", name, matrix.versions, "the --vllm option")


def variants_for(mod: Mod, version: Version) -> list[Variant]:
    """List the variants of a mod for a version, at most one per stage."""
    return [variant for stage in STAGES if (variant := mod.variant(version, stage)) is not None]


def _check(matrix: Matrix, mod: Mod, name: str, trees: Trees) -> ModResult:
    if mod.manifest.of_server != server_name(name):
        return ModResult(mod.name, name, "other server", f"it is for {TITLES[mod.manifest.of_server]}")
    version = matrix.versions[name].version
    if mod.is_upstream(version):
        return _check_upstream(mod, name, trees)
    variants, reason = variants_for(mod, version), mod.reason_not_needed(version)
    if not variants and reason is not None:
        return ModResult(mod.name, name, "not needed", reason)
    if not variants:
        fix = "Add a variant for the version, or declare it in `upstreamed_in` or `not_needed` of mod.yaml."
        return ModResult(mod.name, name, "not covered", f"mod.yaml says nothing about {version}", fix)
    for variant in variants:
        failed = _try(mod, variant, name, trees)
        if failed is not None:
            return failed
    applied = ", ".join(f"{variant.versions} ({variant.stage})" for variant in variants)
    return ModResult(mod.name, name, "applies", applied)


def _try(mod: Mod, variant: Variant, name: str, trees: Trees) -> ModResult | None:
    """Apply one variant of a mod; return a result only if it cannot be applied."""
    try:
        trees.apply(mod, variant, name)
    except ModError as misfit:
        error = of_another_distribution(misfit, [(mod, variant)], trees.wheels(name))
        if error.name == MOD_FILE_MISSING:
            return ModResult(mod.name, name, "file missing", f"{error.what} ({error.where})", error.fix)
        if error.name not in MOD_MISFITS:
            raise
        return ModResult(mod.name, name, "conflict", f"{error.what} ({error.where}) {error.why}", error.fix)
    return None


def of_another_distribution(
    error: ModError, chosen: Iterable[tuple[Mod, Variant]], wheels: Iterable[LockedWheel]
) -> ModError:
    """Return a mod's error; if the file that it misses is one of another locked distribution, with these words."""
    if error.name != MOD_FILE_MISSING:
        return error
    names = {wheel.name for wheel in wheels}
    for mod, variant in chosen:
        distribution = mod.manifest.distribution
        for path in variant.paths:
            package = canonicalize_name(path.partition("/")[0])
            owner = next((name for name in (package, f"{package}-python") if name in names - {distribution}), None)
            if owner and path in error.what:
                return ModError(
                    error.name,
                    f"The mod {mod.label(variant)} is of {distribution}, and {path} belongs to {owner}.",
                    where=error.where,
                    why="A mod changes one distribution.",
                    fix=f"Write `distribution: {owner}`, with a mod of its own for each distribution.",
                )
    return error


def seems_upstream(project: Project, mod: Mod, name: str) -> bool:
    """Whether the unmodified sources of a version pass the checks of a mod: anchors tend to go when a change arrives.

    A mod with a variant for another stage too may be upstream in part, and what a file merely lacks may have moved.
    """
    variants = variants_for(mod, project.matrix.versions[name].version)
    checks = mod.manifest.upstream_checks or [check for variant in variants for check in variant.checks]
    if len(variants) != 1 or all(check.lacks is not None for check in checks):
        return False
    tree = Trees(project).tree(mod, variants[0], name)
    return all(failing(check, tree.read(check.file)) is None for check in checks)


def end_before(mods: Path, mod: Mod, release: str, *, upstream: bool) -> None:
    """Let the variants that cover a release end before it; `upstream` also notes that the release has the change."""
    path = mods / mod.name / MANIFEST
    text = read_text(path)
    for versions in {variant.versions for variant in variants_for(mod, Version(release))}:
        named = rf"""(\bversions: *)(["']?){re.escape(versions)}\2(?=[\s,}}])"""
        text = re.sub(named, rf'\1"{versions},<{release}"', text)
    if upstream:
        text = re.sub(
            r"^needed_when:.*\n(?:[ -].*\n)*", rf'\g<0>\nupstreamed_in: "{release}"\n', text, flags=re.MULTILINE
        )
    write_text(path, text)


def _check_upstream(mod: Mod, name: str, trees: Trees) -> ModResult:
    variant = mod.manifest.variants[-1]
    tree = trees.tree(mod, variant, name)
    for check in mod.manifest.upstream_checks or variant.checks:
        fault = failing(check, tree.read(check.file))
        if fault is not None:
            why = f"claimed to be upstream, but {check}: {fault}"
            return ModResult(mod.name, name, "conflict", why, "Correct `upstreamed_in` or the checks.")
    return ModResult(mod.name, name, "upstream", str(mod.manifest.upstreamed_in))


def markdown(results: Sequence[ModResult]) -> str:
    """Return the table, followed by the reasons why mods do not apply; a version that no mod is for has no column."""
    in_order = dict.fromkeys(result.version for result in results)
    results = [result for result in results if result.status != "other server"]
    versions = [version for version in in_order if any(result.version == version for result in results)]
    lines = [f"| mod | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    reasons: list[str] = []
    for name in dict.fromkeys(result.mod for result in results):
        row = {result.version: result for result in results if result.mod == name}
        cells = " | ".join(str(row.get(version, "")) for version in versions)
        lines.append(f"| [{name}]({name}/mod.yaml) | {cells} |")
        unapplied = [result for result in row.values() if result.status not in ("applies", "upstream")]
        for reason in dict.fromkeys(result.detail for result in unapplied):
            where = ", ".join(version for version in row if row[version].detail == reason)
            reasons.append(f"- {name} on {where}: {reason}.")
    return "\n".join([*lines, "", *reasons])


def read_table(text: str) -> Mapping[tuple[str, str], ModResult]:
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    reasons: dict[tuple[str, str], str] = {}
    for match in filter(None, (re.fullmatch(r"- (\S+) on ([^:]+): (.*)\.", line) for line in lines)):
        reasons |= {(match[1], version): match[3] for version in match[2].split(", ")}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    table: dict[tuple[str, str], ModResult] = {}
    for link, *cells in rows[2:]:  # below the header and its rule
        name = link.partition("]")[0].removeprefix("[")
        for version, cell in zip(rows[0][1:], cells, strict=False):
            status, _, since = cell.partition(" since ")
            if status:
                detail = since or reasons.get((name, version), "")
                table[name, version] = ModResult(name, version, cast("Status", status), detail)
    return table


def write_table(readme: Path, results: Sequence[ModResult], mods: Iterable[str]) -> bool:
    """Update the table in the README, and return whether it changed.

    Where a mod was not checked, the table stays as it is.
    """
    text = read_text(readme)
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    table = {**read_table(text)} | {(result.mod, result.version): result for result in results}
    versions = dict.fromkeys(result.version for result in results)
    rows = [table[name, version] for name in mods for version in versions if (name, version) in table]
    fresh = f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}"
    if fresh == text:
        return False
    write_text(readme, fresh)
    return True
