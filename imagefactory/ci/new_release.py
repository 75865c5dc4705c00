"""Prepares what is new: a release of a server with its row of the matrix, locks, flags and mods; newer packages."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagefactory.assemble.layer_records import drop_unneeded, unrecorded
from imagefactory.ci.matrix_rows import with_release, without_override
from imagefactory.ci.news import SECURITY, News, has_releases, in_short, look, new_releases, newest_here
from imagefactory.ci.pull_request import git
from imagefactory.ci.report_releases import PACKAGES
from imagefactory.ci.run_summary import cell as escaped
from imagefactory.compile.settings import add_references
from imagefactory.compile.toolchain import CompileProject, FlashInferLock, make_toolchain_locks
from imagefactory.environment.locks import lock_environment
from imagefactory.environment.setup import FOLDER, LockedSet
from imagefactory.errors import FactoryError, LockError
from imagefactory.launch.preview import Preview
from imagefactory.lock.flag_records import FlagLock, record_flags
from imagefactory.lock.making import UPGRADE_ALL, UPGRADE_COMPANIONS, make_locks
from imagefactory.lock.unmet import Unmet, first_unmet, look_for
from imagefactory.mods.compatibility import check_mods, end_before, seems_upstream
from imagefactory.mods.source_files import Trees
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.cells import Cell, buildable, default_version
from imagefactory.project.counterparts import has_gpu, reason_unserved
from imagefactory.project.locks.files import CompanionLock
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import (
    TITLES,
    VLLM,
    Override,
    server_name,
    version_key,
    version_name,
    version_title,
)
from imagefactory.publish.attest.licence_record import Licences, update_licences
from imagefactory.publish.attest.spdx import UNDECLARED
from imagefactory.store.atomic import write_text
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say

_MODELS = "sglang/srt/models/"  # a file for each family of models; vLLM has a table of them
_TABLE = "vllm/model_executor/models/registry.py"
_NEEDLESS = re.compile(r"(For[A-Z]\w{0,100}|MTP|MTPModel|(Draft)?Model)$")  # what names of architectures end with
MOST_OVERRIDES = 5  # an index that lacks more is not the one that the release was made for
_NAMED = 20  # more names than that say nothing to a reader


@dataclass(frozen=True)
class NewRelease:
    """A release of a server that comes into a checkout, after the newest one that is there."""

    project: Project  # the checkout as it was
    server: str
    release: str
    news: News
    indexes: Indexes
    say: Say

    @property
    def name(self) -> str:
        return version_name(self.server, self.release)

    @property
    def title(self) -> str:
        return version_title(self.name)

    @property
    def previous(self) -> str:
        return newest_here(self.project.matrix, self.server)

    def now(self) -> Project:
        """Return the checkout as it is: a project reads its files once."""
        return Project(self.project.root, self.project.store)

    def add(self) -> None:
        """Add the release wherever the newest one is locked; if the default arch cannot have it, nothing changes."""
        self.say(f"{self.title} is new")
        matrix = self.project.root / "matrix.yaml"
        before = matrix.read_text("utf-8")
        failure = self._lock_with_overrides(matrix, before)
        if failure is not None:
            unmet = self._unmet(failure)
            reason = f"{unmet}. " if unmet else ""
            write_text(matrix, before)
            shutil.rmtree(self.project.locks / self.name, ignore_errors=True)
            words = self.news.refused[self.title] = f"{reason}{failure.what} {failure.why}"
            self.news.breaks.append(f"{self.title} is not added: {in_short(words)}")
            return
        archs = [f"{cell.arch}/{cell.machine}" for cell in self._cells() if self._lock(cell)]
        self.news.done.append(f"{self.title}: the row in `matrix.yaml`, and locks for {', '.join(archs)}.")
        self._pin_compilers()
        self._check_mods()
        self._compare_flags()
        self._tell_of_models()
        self._leave_to_people()

    def _cells(self) -> list[Cell]:
        """List a cell of each lock that the release needs, the default arch's first; builds for CPUs may skip one."""
        matrix, here = self.project.matrix, locked_cells(self.project)
        like = [cell for cell in here if cell.version == self.previous or not has_gpu(matrix, cell.arch)]
        locked = {(cell.arch, cell.platform) for cell in like}
        of_locks = {
            (cell.arch, cell.platform): cell
            for cell in buildable(self.now().matrix)
            if cell.version == self.name and (cell.arch == matrix.defaults.arch or (cell.arch, cell.platform) in locked)
        }
        return sorted(of_locks.values(), key=lambda cell: cell.arch != matrix.defaults.arch)

    def _lock_with_overrides(self, matrix: Path, before: str) -> LockError | None:
        """Write the row with the overrides that it cannot be locked without: the newest release's, then new ones."""

        def attempt(overrides: Sequence[Override]) -> LockError | None:
            write_text(matrix, with_release(before, self.server, self.release, overrides, matrix))
            try:
                list(make_locks(self.now(), self._cells()[:1], say=self.say))
            except LockError as error:
                return error
            return None

        chosen: list[Override] = []
        failure = attempt(chosen)
        while failure is not None and len(chosen) < MOST_OVERRIDES and (more := self._override(failure, chosen)):
            chosen.append(more)
            failure = attempt(chosen)
        before_it = self.project.matrix.versions[self.previous].overrides
        others = [override for override in before_it if override not in chosen]
        if failure is not None and others:
            # One of them may resolve a conflict, which is not seen in what indexes lack.
            failure = attempt([*chosen, *others])
        elif failure is None:
            self.news.done += [f"{self.title} does without the override of {each.requirement}." for each in others]
        for override in chosen if failure is None else ():
            if override not in before_it:
                line, reason, until = map(escaped, (override.requirement, override.reason, str(override.until)))
                self.news.decisions.append(
                    f"{self.title} is locked with the override `{line}`: {reason}. Keep it if the server works with "
                    f"it; `./inv news` drops it once the index has {until}."
                )
        return failure

    def _override(self, failure: LockError, chosen: Sequence[Override]) -> Override | None:
        """Return what replaces a requirement that no index can meet: as the newest release has it, or a proposal."""
        unmet = self._unmet(failure, chosen)
        if unmet is None:
            return None
        known = self.project.matrix.versions[self.previous].overrides
        known = [override for override in known if _package(override) == canonicalize_name(unmet.requirement.name)]
        override = next(iter(known), unmet.override)
        if override is not None:
            self.say(f"{unmet}: trying {override.requirement}")
        return override

    def _unmet(self, failure: LockError, overrides: Sequence[Override] = ()) -> Unmet | None:
        """Return what no index can meet of the requirements that are not overridden."""
        overridden = {_package(override) for override in overrides}
        return first_unmet(failure, self.now().matrix, self._cells()[0], self.indexes, overridden)

    def _lock(self, cell: Cell) -> bool:
        try:
            list(make_locks(self.now(), [cell], say=self.say))
        except LockError as error:
            self.news.breaks.append(
                f"{self.title} has no lock for {cell.arch}/{cell.machine}: {in_short(f'{error.what} {error.why}')}"
            )
            return False
        return True

    def _pin_compilers(self) -> None:
        if not FlashInferLock.path(self.project.locks, self.previous).exists():
            return
        project = self.now()
        sdist = Trees(project).release(VLLM, self.name, "source")
        self.news.decisions += add_references(project.root, self.release, version_key(self.previous), sdist.read)
        list(make_toolchain_locks(CompileProject(project.root, project.store), [self.name], say=self.say))
        self.news.done.append("Compilers, FlashInfer's sources and the commits in `images/compile.yaml` are pinned.")

    def _check_mods(self) -> None:
        project = self.now()
        for result in check_mods(project, versions=[self.name]):
            if result.holds:
                continue
            mod = project.mods[result.mod]
            upstream = seems_upstream(project, mod, self.name)
            end_before(project.root / "mods", mod, self.release, upstream=upstream)
            if upstream:
                self.news.done.append(f"Mod `{mod.name}` is retired: {self.title} passes its checks without it.")
            else:
                ended = "Its range now ends before it: add a variant, or say in `not_needed` why it does without."
                self.news.breaks.append(
                    f"Mod `{mod.name}` does not fit {self.title}: {in_short(result.detail)} {ended}"
                )

    def _compare_flags(self) -> None:
        project = self.now()
        list(record_flags(project, self.say))
        old, new = (FlagLock.path(project.locks, name) for name in (self.previous, self.name))
        if not (old.exists() and new.exists()):
            return
        record = FlagLock.read(new)
        gone = sorted(FlagLock.read(old).flags.keys() - record.flags.keys())
        refused: dict[str, list[str]] = {}
        for cell in locked_cells(project):
            if cell.version == self.name:
                for fault in _faults(project, cell, record):
                    refused.setdefault(fault, []).append(f"{cell.model}/{cell.arch}")
        for fault, cells in refused.items():
            self.news.breaks.append(f"{self.title} refuses `{escaped(fault)}`, which is set for {_some(cells)}.")
        vanished = f"{len(gone)} vanished since {version_key(self.previous)}: {_some([f'`{flag}`' for flag in gone])}."
        used = "" if refused else " No cell uses what it does not have."
        self.news.done.append(f"The flags of {self.title} are recorded. {vanished if gone else 'None vanished.'}{used}")

    def _tell_of_models(self) -> None:
        trees = Trees(self.now())

        def families(version: str) -> set[str]:
            source = trees.release(self.server, version)
            if self.server == VLLM:
                # Rows such as `"LlamaForCausalLM": ("llama", "LlamaForCausalLM"),`.
                listed = re.findall(r'^    "(\w+)": \(', source.read(_TABLE) or "", flags=re.MULTILINE)
                return {_NEEDLESS.sub("", name) for name in listed}
            files = (name.removeprefix(_MODELS) for name in source.names if name.startswith(_MODELS))
            return {name.partition("/")[0].removesuffix(".py") for name in files}

        old, new = families(self.previous), families(self.name)
        for verb, names in (("brings", new - old), ("no longer has", old - new)):
            if names:
                self.news.models.append(f"{self.title} {verb} {_some(sorted(names))}.")

    def _leave_to_people(self) -> None:
        matrix, decide = self.project.matrix, self.news.decisions
        if self.server == VLLM:
            decide.append(f"`defaults` in `matrix.yaml` still names {matrix.defaults.vllm}.")
        now = self.now()
        changed = [model for model in matrix.models if default_version(now.matrix, model) == self.name]
        if changed:
            decide.append(
                f"Merging makes {self.title} the default of {_some(changed)}, which the default vLLM cannot serve."
            )
        release = matrix.versions[self.previous].release
        for name, version in matrix.versions.items():
            if version.release == release and name != self.previous and server_name(name) == self.server:
                decide.append(f"{name} has no counterpart of {self.release}: add one if it is still wanted.")
        unserved = next((why for cell in self._cells() if (why := reason_unserved(now, cell))), "")
        decide.append(
            f"{self.title}: {unserved}."
            if unserved
            else f"Measure and smoke-test {self.name} before it becomes a default."
        )


def _package(override: Override) -> str:
    return canonicalize_name(Requirement(override.requirement).name)


def _faults(project: Project, cell: Cell, flags: FlagLock) -> Iterator[str]:
    """Yield what a server does not know of the command in a cell's image."""
    served = describe_cell(project, cell)
    preview = Preview(project.root, served.description, served.model)
    try:
        command = preview.command(project.matrix.models[cell.model].node_settings(1))
    except FactoryError as error:
        yield error.what
    else:
        yield from flags.refused(command, served.extra)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def prepare(project: Project, indexes: Indexes, upgrade: Sequence[str], say: Say) -> News:
    """Upgrade packages in the locks; add and lock a new release of each server wherever its newest one is locked."""
    before, news = _versions(project.locks), look(project, indexes)
    security = _upgrade(project, upgrade, news, say) if upgrade else {}
    _drop_overrides(project, indexes, news, say)
    for server in TITLES:
        now = Project(project.root, project.store)
        # The newest alone: `look` names the ones that are passed over.
        for release in new_releases(now.matrix, server, indexes)[-1:] if has_releases(now.matrix, server) else ():
            NewRelease(now, server, release, news, indexes, say).add()
    now = Project(project.root, project.store)
    undeclared = _undeclared(now)
    update_licences(now, say)
    if unknown := sorted(_undeclared(Project(project.root, project.store)) - undeclared):
        news.decisions.append(f"No licence is declared by {', '.join(unknown)}: put it into `locks/licences.toml`.")
    drop_unneeded(now)
    if lacking := unrecorded(now):
        fix = "Add what `./inv build` with each target records; until then, the night lists them as broken"
        news.decisions.append(f"New layers are not on record. {fix}: {_some(lacking)}.")
    news.after = {title: version for title, (_, version) in look(now, indexes).releases.items()}
    moved = _moved(before, _versions(project.locks), security)
    # Only the first ones are shown.
    news.packages = sorted(moved, key=lambda line: not line.endswith(SECURITY))
    return news


def _drop_overrides(project: Project, indexes: Indexes, news: News, say: Say) -> None:
    """Drop each override whose `until` the indexes can meet now, and lock its version anew."""
    for name, version in project.matrix.versions.items():
        for override in version.overrides:
            cells = [cell for cell in locked_cells(project) if override.until and cell.version == name]
            of_locks = {project.wheel_lock_path(cell): cell for cell in cells}
            until = Requirement(override.until or override.requirement)
            unmet = [look_for(until, project.matrix, cell, indexes, name) for cell in of_locks.values()]
            if not cells or any(unmet):
                continue
            what = f"{version_title(name)} %s the override {escaped(override.requirement)}"
            if failure := _lock_without(project, name, override, of_locks, say):
                news.decisions.append(f"{what % 'keeps'}: {in_short(f'{failure.what} {failure.why}')}")
            else:
                news.done.append(f"{what % 'does without'}: the index has {escaped(str(until))} now.")


def _lock_without(
    project: Project, name: str, override: Override, of_locks: Mapping[Path, Cell], say: Say
) -> LockError | None:
    matrix = project.root / "matrix.yaml"
    before = {path: path.read_bytes() for path in (matrix, *of_locks)}
    try:
        text = matrix.read_text("utf-8")
        write_text(matrix, without_override(text, server_name(name), version_key(name), override.requirement))
        list(make_locks(Project(project.root, project.store), list(of_locks.values()), say=say))
    except LockError as error:
        for path, content in before.items():
            path.write_bytes(content)
        return error
    return None


def _undeclared(project: Project) -> set[str]:
    recorded = Licences(project).files.values()
    return {entry.file.partition("-")[0] for entry in recorded if entry.licence == UNDECLARED}


def commit(tree: Path, message: str) -> bool:
    """Commit what was prepared in a worktree; return whether anything was."""
    git(tree, "add", "--all")
    if not git(tree, "status", "--porcelain"):
        return False
    git(tree, "commit", "--quiet", "--message", message)
    return True


def _upgrade(project: Project, upgrade: Sequence[str], news: News, say: Say) -> dict[str, Sequence[str]]:
    """Upgrade packages, all or none; return the Debian packages of each lock with a security update."""
    everything = UPGRADE_ALL in upgrade
    names = [*upgrade, UPGRADE_COMPANIONS] if everything else upgrade
    try:
        results = list(make_locks(project, locked_cells(project), upgrade=names, say=say))
        if everything:
            lock_environment(project.root, say, upgrade=True)
    except LockError as error:
        # Each lock is written as it is made; those made before the failure go too.
        git(project.root, "checkout", "--quiet", "--", "locks")
        words = news.refused[PACKAGES] = f"{error.what} {error.why}"
        news.breaks.append(f"No package is upgraded: {in_short(words)}")
        return {}
    return {result.path.relative_to(project.locks).as_posix(): result.security for result in results}


def _versions(locks: Path) -> dict[str, dict[str, str]]:
    versions: dict[str, dict[str, str]] = {}
    for path in sorted(locks.glob("*/*.toml")):
        data = tomllib.loads(path.read_text("utf-8"))
        entries = [*data.get("wheels", ()), *data.get("debs", ())]
        versions[path.relative_to(locks).as_posix()] = {entry["name"]: entry["version"] for entry in entries}
    companions = CompanionLock.path(locks)
    if companions.exists():
        # 19: `sha256:` and twelve digits.
        digests = {entry.name: f"{entry.tag}@{entry.digest[:19]}" for entry in CompanionLock.read(companions).images}
        versions[companions.name] = digests
    environment = LockedSet("test", locks / FOLDER.name / "test.txt")  # it holds what the smaller sets hold
    if environment.path.exists():
        versions[environment.path.relative_to(locks).as_posix()] = environment.pins()
    return versions


def _moved(
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
    security: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    for lock, packages in after.items():
        old = before.get(lock, packages)  # what a new lock has has not moved
        for name in sorted(old.keys() | packages.keys()):
            if old.get(name) != packages.get(name):
                mark = SECURITY if name in security.get(lock, ()) else ""
                yield f"{lock}: {name} {old.get(name, 'nothing')} → {packages.get(name, 'nothing')}{mark}"
