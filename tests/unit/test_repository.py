"""Rules of the repository that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import need


def host(*parts: str) -> str:
    """Join the name of a host that no file, not even this one, may name."""
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
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is an unpacked archive, not a clone, so the tracked files are unknown")
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def naming(word: str) -> list[str]:
    """Return the tracked files that contain a word."""
    return [
        str(path.relative_to(REPOSITORY))
        for path in tracked()
        if word in path.read_bytes().decode("utf-8", "replace")
    ]


@pytest.mark.parametrize("name", REGISTRIES)
def test_no_file_names_the_host_of_a_package_registry(name: str) -> None:
    assert naming(name) == []


def test_only_one_module_names_the_snapshot_archive() -> None:
    modules = [name for name in naming(SNAPSHOTS) if name.endswith(".py") and not name.startswith("tests/")]
    assert modules == ["imagefactory/resolve/mirrors.py"]


@pytest.mark.parametrize("place", [*OWN_PLACES, str(REPOSITORY)])
def test_no_file_names_a_path_of_a_developers_machine(place: str) -> None:
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
def test_modules_are_short_and_have_a_docstring(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= 420
    assert ast.get_docstring(ast.parse(text))


def test_no_module_has_a_vague_name() -> None:
    assert not [path for path in modules() if re.search(r"util|helper|manager|common|misc", path.stem)]


def test_scripts_are_executable_and_pass_shellcheck() -> None:
    assert [name for name in SCRIPTS if not (REPOSITORY / name).stat().st_mode & 0o111] == []
    need("shellcheck")
    command = ["shellcheck", *(str(REPOSITORY / name) for name in SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_every_promise_names_tests_that_exist() -> None:
    rows = re.findall(r"^\|.*\|$", (REPOSITORY / "SECURITY.md").read_text("utf-8"), re.MULTILINE)[2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`((?:unit|integration)/[\w/]+)`", row.split("|")[-2])
        assert named, row
        for name in named:
            path = REPOSITORY / "tests" / name
            assert path.is_dir() or path.with_suffix(".py").is_file(), name
