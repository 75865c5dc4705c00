"""The sources of a compile: chooses and fetches them, and prepares their tree, with mods applied and parts left out."""

import os
import posixpath
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from imagefactory.compile.settings import FILE, PARTS, CompileSettings, SourceSettings
from imagefactory.errors import InputError, NetworkError
from imagefactory.mods.source_files import FolderSource
from imagefactory.project.server_versions import ServerVersion
from imagefactory.store.atomic import WRITING, translating_disk_full
from imagefactory.store.cache import Store
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.manifest import Mod, Variant

MARKERS: Mapping[str, str] = {"vllm": "vllm/envs.py", "flashinfer": "flashinfer/jit/core.py"}
"""The file that identifies a folder as one of the two projects that are compiled."""
_GIT_HOST = "https://github.com"
_PATIENCE = 60  # seconds to wait for a host to list its branches
_REF_FOLDERS = ("", "refs/", "refs/tags/", "refs/heads/")  # where git looks for a name (gitrevisions(7))


@dataclass(frozen=True)
class CompileSource:
    """A source and its origin."""

    name: str
    digest: str  # its repository and commit
    settings: SourceSettings | None = None  # how vLLM's CMake finds it; None for the project that is compiled

    @property
    def place(self) -> str:
        return f"/factory/src/{self.name}"


def choose_sources(
    settings: CompileSettings, vllm: str, version: ServerVersion, targets: Sequence[str]
) -> tuple[list[CompileSource], list[str]]:
    """Return the sources that vLLM is compiled with, and the parts that the chosen targets do not need."""
    chosen: list[CompileSource] = []
    left_out: list[str] = []
    listed = settings.listed_as(vllm, version)
    for name, source in settings.sources_of(vllm, version).items():
        if targets and source.part and not {*targets} & {*source.targets}:
            left_out.append(source.part)
        else:
            repository, commit = source.reference(listed)
            chosen.append(CompileSource(name, f"{repository}@{commit}", source))
    return chosen, left_out


def resolve(source: CompileSource) -> CompileSource:
    repository, _, ref = source.digest.rpartition("@")
    commit = head_of(repository, ref)
    if commit is None:
        raise NetworkError(
            "source-unreachable",
            f"{repository} has no {ref}.",
            where=f"matrix.yaml, vllm: git {repository}, ref {ref}",
            why="The repository lists no such branch, tag or pull request.",
            fix="Correct `ref`.",
        )
    return replace(source, digest=f"{repository}@{commit}")


def head_of(git: str, ref: str) -> str | None:
    """Return the commit that a branch, tag or pull request is at, or None if the repository has no such ref."""
    # A pattern also matches the tail of longer names: `main` finds refs/heads/fork/main. ^{} is a tag's commit.
    command = ("ls-remote", "--", _url(git), ref, f"{ref}^{{}}")
    listed = _git(git.rpartition("/")[2], f"{git}@{ref}", *command, timeout=_PATIENCE)
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}
    names = (f"{folder}{ref}{peeled}" for folder in _REF_FOLDERS for peeled in ("^{}", ""))
    return next((commits[name] for name in names if name in commits), None)


def fetch_source(source: CompileSource, store: Store) -> Path:
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
    if not (part / marker).exists():
        raise InputError(
            "wrong-source",
            f"{repository} is not {source.name}.",
            where=part,
            why=f"At {commit}, it has no {marker}.",
            fix=f"Correct its repository or commit in {FILE}.",
        )
    store.mark_used(folder)
    return part


def _url(repository: str) -> str:
    return f"{os.environ.get('FACTORY_GIT_HOST', _GIT_HOST).rstrip('/')}/{repository}"


def _clone(source: CompileSource, repository: str, commit: str, folder: Path) -> None:
    def git(*words: str) -> str:
        return _git(source.name, source.digest, "-C", str(folder), *words)

    folder.mkdir()
    git("init", "--quiet", "--template=")  # without the hooks of a user's template
    git("fetch", "--quiet", "--depth", "1", "--", _url(repository), commit)  # git checks a commit by its hash
    # Without the user's filters and line ends: the files are those of the commit, wherever they are checked out.
    git("-c", "core.autocrlf=false", "-c", "core.attributesFile=", "checkout", "--quiet", "FETCH_HEAD")
    for submodule in source.settings.submodules if source.settings else ():
        if (folder / ".gitmodules").exists() and submodule in (folder / ".gitmodules").read_text("utf-8"):
            git("submodule", "update", "--quiet", "--init", "--depth", "1", submodule)


def _git(source: str, where: str, *words: str, timeout: float | None = None) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            ["git", *words],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            # A host may be a folder, whose configuration would say how to fetch what it lacks.
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"},
        )
        why = done.stderr.strip()
        if done.returncode == 0:
            return done.stdout
    except FileNotFoundError:
        why = "There is no git on this machine."
    except subprocess.TimeoutExpired:
        why = f"The host did not answer within {timeout:g} seconds."
    raise NetworkError(
        "source-unreachable",
        f"The source {source} cannot be fetched.",
        where=where,
        why=why or "git gave no reason.",
        fix="Check the network, or set FACTORY_GIT_HOST to a mirror, which may be a folder of clones.",
    )


_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 before 3.11.4, as in Debian 12, has no filters for extracting."""
LEFT_OUT = "# Left out by `./inv compile`: no target that is compiled needs it.\n"


def prepare(tree: Path, fill: Callable[[Path], None]) -> bool:
    """Fill a tree atomically unless an earlier run did, and return whether it was filled now."""
    if tree.exists():
        return False
    writing = tree.with_name(f"{WRITING}{tree.name}")
    with translating_disk_full(tree):
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        try:
            fill(writing)
            os.sync()  # a power failure must not leave a tree with empty files
            writing.rename(tree)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
    return True


def carry(files: Sequence[str], wheel: Path, target: Path) -> None:
    """Copy files out of a wheel into a source tree, from where vLLM's setup.py packs them."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if any(fnmatchcase(name, file) for file in files)]
        for name in names:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
            path.chmod(0o755)  # programs and libraries: zip members are read without their modes
    if not names:
        raise InputError(
            "nothing-to-carry",
            f"{wheel.name} has none of the files that a compile takes over.",
            where=f"{FILE}, carried",
            why=f"It has neither {' nor '.join(files)}.",
            fix="Correct the range of versions there.",
        )


def unpack_sdist(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # Everything is below NAME-VERSION/ in an sdist; hard links name their target from there, too.
                member.name = member.name.partition("/")[2]
                if member.islnk():
                    member.linkname = member.linkname.partition("/")[2]
                if member.name:
                    _refuse_outside(member)
                    tar.extract(member, target, **_SAFELY)
    except (tarfile.TarError, EOFError) as error:
        raise InputError(
            "damaged-file",
            "The sources cannot be unpacked.",
            where=archive,
            why=f"{type(error).__name__}: {error}",
            fix="Remove the file and try again.",
        ) from None


def _refuse_outside(member: tarfile.TarInfo) -> None:
    """Raise a TarError for a member that is, or points, outside of the folder that it is unpacked to."""
    paths = [member.name]
    if member.issym():
        paths.append(posixpath.join(posixpath.dirname(member.name), member.linkname))
    if member.islnk():
        paths.append(member.linkname)
    for path in paths:
        if posixpath.normpath(path).startswith(("/", "..")):
            raise tarfile.ExtractError(f"{member.name} leads out of the folder")


def place(source: CompileSource, target: Path, store: Store) -> None:
    with translating_disk_full(target):
        folder = fetch_source(source, store)
        shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))


def change(tree: Path, mods: Sequence[tuple[Mod, Variant]], left_out: Iterable[str]) -> None:
    """Apply mods to a tree, and empty the parts of CMake that are left out."""
    for applied in apply_mods(mods, FolderSource(tree).read) if mods else ():
        for path, text in applied.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text, encoding="utf-8", newline="")
    for part in left_out:
        (tree / PARTS / f"{part}.cmake").write_text(LEFT_OUT, encoding="utf-8")
