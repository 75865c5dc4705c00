"""Rules of the repository that no linter checks."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

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


def naming(*words: str) -> dict[str, list[str]]:
    """Return the tracked files that contain a word, with the words."""
    texts = {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in tracked()}
    found = {name: [word for word in words if word.encode() in text] for name, text in texts.items()}
    return {name: words for name, words in found.items() if words}


def test_no_file_names_the_host_of_a_package_registry_or_a_path_of_a_developers_machine() -> None:
    assert naming(*REGISTRIES, *OWN_PLACES, str(REPOSITORY)) == {}
    modules = [name for name in naming(SNAPSHOTS) if name.endswith(".py") and not name.startswith("tests/")]
    assert modules == ["imagefactory/lock/mirrors.py"], "one module names the snapshot archive"


def modules() -> list[Path]:
    return sorted(path for folder in ("imagefactory", "images") for path in (REPOSITORY / folder).rglob("*.py"))


def test_no_module_has_more_than_400_lines_or_a_vague_name() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): path.read_bytes().count(b"\n") for path in modules()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    assert not [path for path in modules() if re.search(r"util|helper|manager|common|misc", path.stem)]


def test_scripts_are_executable_and_all_shell_that_a_hook_reads_passes_shellcheck() -> None:
    assert [name for name in SCRIPTS if not (REPOSITORY / name).stat().st_mode & 0o111] == []
    need("shellcheck")
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    [hook] = [hook for hook in hooks if hook["id"] == "shellcheck"]
    shell = [path for path in tracked() if re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes())]
    read = [str(path) for path in shell if not re.search(hook["exclude"], path.relative_to(REPOSITORY).as_posix())]
    assert len(SCRIPTS) < len(read) < len(shell)
    done = subprocess.run(["shellcheck", *read], capture_output=True, text=True, check=False)
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
