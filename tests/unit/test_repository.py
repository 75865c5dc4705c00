"""Habits of the repository that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import need


def host(*parts: str) -> str:
    """Put a host's name together, so that this file does not name what no file may name."""
    return ".".join(parts)


REGISTRIES = [
    host("pypi", "org"),
    host("files", "pythonhosted", "org"),
    host("deb", "debian", "org"),
    host("security", "debian", "org"),
    host("archive", "ubuntu", "com"),
    host("registry", "npmjs", "org"),
]
SNAPSHOTS = host("snapshot", "debian", "org")
SCRIPTS = ("inv", ".ci/run", "images/compile/seeded")
OWN_PLACES = ["/" + "opt/wheels", "/" + "opt/pypi", "/" + "work/"]


def tracked() -> list[Path]:
    """List the files that git tracks."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is an unpacked archive and no clone: which files are tracked is not known")
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def naming(word: str) -> list[str]:
    """List the tracked files that hold a word."""
    return [
        str(path.relative_to(REPOSITORY))
        for path in tracked()
        if word in path.read_bytes().decode("utf-8", "replace")
    ]


@pytest.mark.parametrize("name", REGISTRIES)
def test_no_file_names_the_host_of_a_package_registry(name: str) -> None:
    assert naming(name) == []


def test_the_snapshot_archive_is_named_in_one_module() -> None:
    modules = [name for name in naming(SNAPSHOTS) if name.endswith(".py") and not name.startswith("tests/")]
    assert modules == ["imagefactory/resolve/mirrors.py"]


@pytest.mark.parametrize("place", [*OWN_PLACES, str(REPOSITORY)])
def test_no_file_holds_a_path_of_somebodys_machine(place: str) -> None:
    assert naming(place) == []


def modules() -> list[Path]:
    folders = (REPOSITORY / "imagefactory", REPOSITORY / "images" / "shipped")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if path.parent.name != "commands"],
    ids=lambda path: str(path.relative_to(REPOSITORY)),
)
def test_only_commands_print(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    assert "print" not in names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_module_fits_on_a_few_screens_and_says_what_it_is(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= 420
    assert ast.get_docstring(ast.parse(text))


def test_no_module_is_named_after_nothing() -> None:
    assert not [path for path in modules() if re.search(r"util|helper|manager|common|misc", path.stem)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_run(name: str) -> None:
    assert (REPOSITORY / name).stat().st_mode & 0o111


def test_scripts_are_clean_shell() -> None:
    need("shellcheck")
    command = ["shellcheck", *(str(REPOSITORY / name) for name in SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
