"""The sources of a compile: which there are, folders that replace them, and fetching the rest with git."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory.compile.settings import FILE, CompileSettings, SourceSettings, What
from imagefactory.environment.paths import expand_home
from imagefactory.errors import did_you_mean
from imagefactory.errors.kernels import SourceUnreachableError, WrongSourceError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.matrix.matrix import VllmVersion
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import checksum

MARKERS: Mapping[str, str] = {"vllm": "vllm/envs.py", "flashinfer": "flashinfer/jit/core.py"}
"""How the two projects that are compiled are known."""
GIT_HOST = "https://github.com"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_IGNORED = {".git", "__pycache__"}


@dataclass(frozen=True)
class CompileSource:
    """A source, and where it comes from: a folder of the user, or a repository."""

    name: str
    digest: str
    """What it is: a repository and commit, or the hash of a folder's files."""
    folder: Path | None
    """Where it lies, when the user says so."""
    settings: SourceSettings | None = None
    """How vLLM's CMake is told of it; None for what is itself compiled."""

    @property
    def variable(self) -> dict[str, str]:
        """The variable that names its place in the container."""
        return {self.settings.variable: f"/factory/src/{self.name}"} if self.settings else {}


def read_replacements(texts: Sequence[str], known: Sequence[str]) -> dict[str, Path]:
    """Read `NAME=DIR` options."""
    found: dict[str, Path] = {}
    for text in texts:
        name, sign, folder = text.partition("=")
        if not sign or not folder:
            raise WrongSourceError(
                f"--source {text} names no folder.",
                where="the --source option",
                why="It is read as NAME=DIR.",
                fix="Write it like --source cutlass=/src/cutlass.",
            )
        if name not in known:
            raise UnknownNameError(
                f"There is no source {name!r}.",
                where="the --source option",
                why=f"This version is compiled from: {', '.join(known)}.",
                fix=did_you_mean(name, known).capitalize(),
            )
        found[name] = expand_home(folder, "the --source option").absolute()
    return found


def check_folder(name: str, folder: Path, marker: str) -> None:
    """Make sure that a folder is the project that it is said to be."""
    if not folder.is_dir():
        raise WrongSourceError(
            f"The folder for {name} does not exist.",
            where=folder,
            why="--source takes a checked-out or unpacked source tree.",
            fix="Check the path.",
        )
    if not (folder / marker).exists():
        raise WrongSourceError(
            f"The folder is not {name}.",
            where=folder,
            why=f"It has no {marker}.",
            fix=f"Name the top folder of a checkout of {name}, with its submodules.",
        )


def tree_digest(folder: Path) -> str:
    """Hash the files of a tree by path, kind and content; git's own files and bytecode do not count."""
    entries: list[list[str]] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _IGNORED)
        for name in [*files, *(item for item in folders if Path(root, item).is_symlink())]:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                entries.append([relative, "link", str(path.readlink())])
            elif path.is_file() and name != ".git":
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                entries.append([relative, "x" if path.stat().st_mode & 0o100 else "-", digest])
    return f"tree:{checksum(sorted(entries))}"


def choose_sources(
    settings: CompileSettings,
    vllm: str,
    version: VllmVersion,
    replaced: Mapping[str, Path],
    targets: Sequence[str],
) -> tuple[list[CompileSource], list[str]]:
    """List what vLLM is compiled with, and the parts that a compile of some targets leaves out."""
    chosen: list[CompileSource] = []
    left_out: list[str] = []
    known = (
        vllm
        if any(vllm in source.refs for source in settings.sources.values())
        else settings.nearest(version)
    )
    for name, source in settings.sources_of(vllm, version).items():
        folder = replaced.get(name)
        if folder is not None:
            check_folder(name, folder, source.marker)
            chosen.append(CompileSource(name, tree_digest(folder), folder, source))
        elif targets and source.part and not set(source.targets).intersection(targets):
            left_out.append(source.part)
        else:
            reference = source.reference(known)
            repository, commit = reference or (source.git, "HEAD")
            chosen.append(CompileSource(name, f"{repository}@{commit}", None, source))
    return chosen, left_out


def known_names(settings: CompileSettings, what: What, vllm: str, version: VllmVersion) -> list[str]:
    """List the names that --source takes."""
    return ["vllm", *settings.sources_of(vllm, version)] if what == "vllm" else ["flashinfer"]


def place(source: CompileSource, target: Path, store: Store) -> None:
    """Put a source into a build tree: a copy, because builds write into their sources."""
    folder = source.folder or fetch(source, store)
    with translating_disk_full(target):
        shutil.copytree(
            folder,
            target,
            symlinks=True,
            ignore=shutil.ignore_patterns(*_IGNORED),
            copy_function=shutil.copy2,
        )


def resolve(source: CompileSource) -> CompileSource:
    """Find the commit that a branch or pull request stands at."""
    repository, _, ref = source.digest.rpartition("@")
    host = os.environ.get("FACTORY_GIT_HOST", GIT_HOST).rstrip("/")
    commit = _git(source, "ls-remote", f"{host}/{repository}", ref).split("\t")[0].strip()
    if not _COMMIT.fullmatch(commit):
        raise SourceUnreachableError(
            f"{repository} has no {ref}.",
            where=f"matrix.yaml, vllm: git {repository}, ref {ref}",
            why="The repository lists no such branch, tag or pull request.",
            fix=f"Correct `ref`, or pass --source {source.name}=DIR.",
        )
    return replace(source, digest=f"{repository}@{commit}")


def fetch(source: CompileSource, store: Store) -> Path:
    """Fetch a repository at its commit, once; give the folder that is meant."""
    settings = source.settings
    repository, _, commit = source.digest.rpartition("@")
    folder = store.root / "sources" / repository.replace("/", "+") / commit
    part = folder / settings.folder if settings and settings.folder else folder
    if not folder.exists():
        with store.scratch() as scratch, translating_disk_full(scratch):
            checkout = scratch / "checkout"
            _clone(source, repository, commit, checkout)
            folder.parent.mkdir(parents=True, exist_ok=True)
            checkout.rename(folder)
    marker = settings.marker if settings else MARKERS[source.name]
    check_folder(source.name, part, marker)
    store.mark_used(folder)
    return part


def _clone(source: CompileSource, repository: str, commit: str, folder: Path) -> None:
    host = os.environ.get("FACTORY_GIT_HOST", GIT_HOST).rstrip("/")
    _git(source, "init", "--quiet", str(folder))
    _git(source, "-C", str(folder), "fetch", "--quiet", "--depth", "1", f"{host}/{repository}", commit)
    _git(source, "-C", str(folder), "checkout", "--quiet", "FETCH_HEAD")
    found = _git(source, "-C", str(folder), "rev-parse", "HEAD").strip()
    if _COMMIT.fullmatch(commit) and found != commit:
        raise SourceUnreachableError(
            f"{repository} gave another commit for {source.name}.",
            where=f"{FILE}, sources.{source.name}",
            why=f"Asked for {commit}, it gave {found}.",
            fix=f"Check the commit out yourself and pass --source {source.name}=DIR.",
        )
    for submodule in source.settings.submodules if source.settings else ():
        if (folder / ".gitmodules").exists() and submodule in (folder / ".gitmodules").read_text("utf-8"):
            update = ("submodule", "update", "--quiet", "--init", "--depth", "1", submodule)
            _git(source, "-C", str(folder), *update)


def _git(source: CompileSource, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            ["git", *words],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
        why = done.stderr.strip()
        if done.returncode == 0:
            return done.stdout
    except FileNotFoundError:
        why = "There is no git on this machine."
    raise SourceUnreachableError(
        f"The source {source.name} cannot be fetched.",
        where=source.digest,
        why=why or "git gave no reason.",
        fix=f"Check the network, set FACTORY_GIT_HOST to a mirror, or pass --source {source.name}=DIR.",
    )
