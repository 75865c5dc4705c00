"""Nothing that a foreign repository configures is run: a marker that every way would leave never appears."""

import subprocess
from pathlib import Path

import pytest

from imagefactory.mods.importing.foreign_git import ForeignRepository
from imagefactory.mods.importing.sources import read_source
from tests.fixtures.failures import raises

OLD, NEW = "one = 1\n", "one = 11\n"


class Foreign:
    """A repository of two commits, and a program that leaves a marker."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marker = folder / "theirs", folder / "marker"
        self.program = folder / "program"
        self.program.write_text(f"#!/bin/sh\necho ran >> {self.marker}\ncat\n")
        self.program.chmod(0o755)
        self.folder.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.folder / ".gitattributes").write_text("* diff=evil filter=evil\n")
        for text in (OLD, NEW):
            self.commit("x.py", text)

    def git(self, *words: str, at: Path | None = None) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        command = ["git", "-C", str(at or self.folder), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "-qm", text)

    def configure(self, **options: str) -> None:
        """Set options; `__` is a dot, and `!` the program."""
        for name, value in options.items():
            self.git("config", name.replace("__", "."), value.replace("!", str(self.program)))


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"core__fsmonitor": "!"},
        {"core__pager": "!", "pager__diff": "!"},
        {"core__editor": "!", "core__askPass": "!", "credential__helper": "!"},
        {"gpg__program": "!", "log__showSignature": "true"},
        {"core__gitProxy": "!", "uploadpack__packObjectsHook": "!"},
        {"filter__evil__clean": "!", "filter__evil__smudge": "!", "filter__evil__process": "!"},
        {"diff__evil__textconv": "!", "diff__evil__command": "!", "diff__external": "!"},
        {"core__alternateRefsCommand": "!", "alias__diff": "!!", "alias__rev-parse": "!!"},
        {"core__worktree": "/", "core__bare": "false"},
    ],
)
def test_options_that_name_a_program_have_no_effect(foreign: Foreign, options: dict[str, str]) -> None:
    foreign.configure(**options)
    source = read_source(f"{foreign.folder}@HEAD~1..main")
    assert b"-one = 1\n+one = 11\n" in source.files["HEAD~1..main.diff"]
    read_source(str(foreign.folder / "x.py"))
    assert not foreign.marker.exists()


def test_hooks_included_files_and_alternates_have_no_effect(foreign: Foreign, tmp_path: Path) -> None:
    hooks = foreign.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"):
        (hooks / name).symlink_to(foreign.program)
    included = tmp_path / "included"
    included.write_text(f"[diff]\n\texternal = {foreign.program}\n[core]\n\tfsmonitor = {foreign.program}\n")
    foreign.configure(include__path=str(included), core__hooksPath=str(hooks))
    (tmp_path / "other").mkdir()
    other = Foreign(tmp_path / "other")
    alternates = foreign.folder / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"{other.folder}/.git/objects\n")
    assert read_source(f"{foreign.folder}@HEAD~1..HEAD").files
    assert not foreign.marker.exists()
    assert not other.marker.exists()


def test_an_object_that_a_partial_clone_lacks_is_not_fetched(foreign: Foreign) -> None:
    blob = foreign.git("rev-parse", "HEAD:x.py")
    (foreign.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    foreign.configure(
        extensions__partialClone="origin",
        remote__origin__promisor="true",
        remote__origin__url="ssh://git.example/x",
        core__sshCommand="!",
        protocol__ssh__allow="always",
    )
    with raises("bad-import-source", match="cannot be read"):
        read_source(f"{foreign.folder}@HEAD~1..HEAD")
    assert not foreign.marker.exists()


def test_a_submodule_is_not_compared_by_its_own_configuration(foreign: Foreign) -> None:
    inside = foreign.folder / "sub"
    inside.mkdir()
    foreign.git("init", "-q", at=inside)
    commits = []
    for text in (OLD, NEW):
        (inside / "y.py").write_text(text)
        foreign.git("add", ".", at=inside)
        foreign.git("commit", "-qm", text, at=inside)
        commits.append(foreign.git("rev-parse", "HEAD", at=inside))
        foreign.git("update-index", "--add", "--cacheinfo", f"160000,{commits[-1]},sub")
        foreign.git("commit", "-qm", text)
    foreign.git("config", "diff.external", str(foreign.program), at=inside)
    foreign.configure(diff__submodule="diff")
    [diff] = read_source(f"{foreign.folder}@HEAD~1..HEAD").files.values()
    assert f"-Subproject commit {commits[0]}".encode() in diff
    assert not foreign.marker.exists()


def test_what_git_knows_is_found_in_every_kind_of_repository(foreign: Foreign, tmp_path: Path) -> None:
    foreign.configure(remote__origin__url="git@github.com:some/where.git")
    head = foreign.git("rev-parse", "HEAD")
    foreign.git("pack-refs", "--all")
    foreign.git("worktree", "add", "-q", str(tmp_path / "second"), "HEAD~1")
    foreign.git("clone", "-q", "--bare", str(foreign.folder), str(tmp_path / "bare.git"))
    for folder, commit in (
        (foreign.folder, head),
        (tmp_path / "bare.git", head),
        (tmp_path / "second", None),
    ):
        found = ForeignRepository.around(folder)
        assert found is not None
        assert found.head() == (commit or foreign.git("rev-parse", "HEAD~1"))
        assert b"+one = 11" in (found.diff("main~1..main") or b"")
        assert found.diff("--output=x..y") is None
    assert read_source(str(foreign.folder / "x.py")).shown == f"x.py of some/where at {head}"
    assert ForeignRepository.around(tmp_path / "nowhere") is None
