"""Commands in surroundings that refuse: closed streams, full disks, folders without rights, strange locales.

Each is a process of its own. As root nothing is refused, so the processes give up the rights that make it so.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.errors.commands import UsageError
from imagefactory.errors.locks import LockFormatError, RecordNotWrittenError
from imagefactory.errors.matrix import UnknownNameError, YamlSyntaxError
from imagefactory.errors.store import DiskFullError, OutputError
from imagefactory.errors.system import NotPermittedError
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.small_factory import CELL, SmallFactory

PARTS = ["error", "  where", "  why", "  next"]
_DROP_FROM_BOUNDS = 24  # PR_CAPBSET_DROP
_OVERRIDE, _READ_ANYTHING = 1, 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
Line = Callable[[Path], list[str]]


def as_inv(root: Path) -> list[str]:
    """What `./inv` runs."""
    return [sys.executable, str(root / "tasks.py")]


def as_plain_invoke(root: Path) -> list[str]:
    """What `invoke` in the activated environment runs."""
    return [sys.executable, "-m", "invoke", "--search-root", str(root)]


BOTH = pytest.mark.parametrize("line", [as_inv, as_plain_invoke])


def without_root_rights() -> None:
    """Return up what lets root read and write everything; for other users there is nothing to give up."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for right in (_OVERRIDE, _READ_ANYTHING):
            if libc.prctl(_DROP_FROM_BOUNDS, right, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot give up the rights of root")


def run(
    command: list[str],
    root: Path,
    *,
    env: Mapping[str, str | None] | None = None,
    humble: bool = False,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    changed = {"PYTHONPATH": str(REPOSITORY), **(env or {})}
    environment = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    return subprocess.run(
        command,
        cwd=root,
        env=environment,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
        preexec_fn=without_root_rights if humble else None,
        stdout=stdout,
        stderr=stderr,
    )


def check(done: subprocess.CompletedProcess[str], kind: type[FactoryError]) -> str:
    text = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    assert done.returncode == kind.exit_code, text
    assert re.findall(r"^(error|  where|  why|  next): +\S", text, re.MULTILINE) == PARTS, text
    return text


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Change permissions, and restore them, so that the folder can be removed."""
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


# Streams


@BOTH
@pytest.mark.parametrize("command", [["--list"], ["--help", "build"], ["targets", "--json"]], ids=" ".join)
def test_a_reader_that_went_away_is_no_failure(
    factory_checkout: Checkout, line: Line, command: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run([*line(factory_checkout.root), *command], factory_checkout.root, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@BOTH
@pytest.mark.parametrize("command", [["--list"], ["targets"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_no_room_is_a_failure(
    factory_checkout: Checkout, line: Line, command: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        words = [*line(factory_checkout.root), *command]
        env = {"PYTHONUNBUFFERED": unbuffered}
        done = run(words, factory_checkout.root, stdout=full.fileno(), env=env)
    # What goes to standard error before the table is flushed is no part of the failure.
    assert "standard output" in check(done, DiskFullError)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(factory_checkout: Checkout, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *as_inv(factory_checkout.root)]
    fine = run([*shell, "targets"], factory_checkout.root)
    assert fine.returncode == 0
    assert "Traceback" not in fine.stdout + fine.stderr
    wrong = run([*shell, "plan", "--target", "nosuch"], factory_checkout.root)
    assert wrong.returncode == UnknownNameError.exit_code
    assert "Traceback" not in wrong.stdout + wrong.stderr


def test_a_full_standard_error_leaves_the_exit_code(factory_checkout: Checkout) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*as_inv(factory_checkout.root), "plan", "--target", "nosuch"]
        done = run(command, factory_checkout.root, stderr=full.fileno())
    assert done.returncode == UnknownNameError.exit_code


@BOTH
def test_plain_invoke_fails_in_words_as_well(factory_checkout: Checkout, line: Line) -> None:
    command = line(factory_checkout.root)
    assert "Did you mean build?" in check(run([*command, "bilud"], factory_checkout.root), UsageError)
    check(run([*command, "build", "--target"], factory_checkout.root), UsageError)


# Locale and home


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "LANG": None},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        {"TERM": "nosuchterminal", "COLUMNS": "-5"},
    ],
    ids=str,
)
def test_characters_that_the_locale_does_not_know_are_no_failure(
    factory_checkout: Checkout, env: Mapping[str, str | None]
) -> None:
    factory_checkout.edit_matrix("reason: NVFP4 needs FP4", "reason: 模型 needs FP4")
    shown = run([*as_inv(factory_checkout.root), "targets", "--excluded"], factory_checkout.root, env=env)
    assert shown.returncode == 0, shown.stderr
    wrong = run(
        [*as_inv(factory_checkout.root), "plan", "--target", "模型\udcff"], factory_checkout.root, env=env
    )
    check(wrong, UnknownNameError)


def test_without_a_home_commands_work(factory_checkout: Checkout, tmp_path: Path) -> None:
    for home in (None, str(tmp_path / "missing")):
        env = {"HOME": home, "FACTORY_CACHE": None, "XDG_CACHE_HOME": None}
        done = run([*as_inv(factory_checkout.root), "plan"], factory_checkout.root, env=env)
        assert done.returncode == 0, done.stderr


def test_a_broken_configuration_of_invoke_itself_is_named(factory_checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / ".invoke.yaml").write_text("]")
    done = run(
        [*as_inv(factory_checkout.root), "targets"], factory_checkout.root, env={"HOME": str(tmp_path)}
    )
    assert ".invoke.yaml" in check(done, UsageError)


# Rights


@pytest.mark.parametrize(
    ("bits", "command"), [(0o555, ["clean"]), (0o000, ["clean"]), (0o000, ["wheels.list"])], ids=str
)
def test_a_cache_of_somebody_else_names_the_variable(
    factory_checkout: Checkout, tmp_path: Path, bits: int, command: list[str]
) -> None:
    cache = tmp_path / "theirs"
    (cache / "wheelhouse").mkdir(parents=True)
    env = {"FACTORY_CACHE": str(cache)}
    with mode(cache, bits):
        done = run([*as_inv(factory_checkout.root), *command], factory_checkout.root, env=env, humble=True)
    assert "FACTORY_CACHE" in check(done, NotPermittedError)


@pytest.mark.parametrize(
    ("kind", "path", "command"),
    [
        (YamlSyntaxError, "matrix.yaml", ["plan"]),
        (LockFormatError, "locks/0.32.0/gb10-linux-arm64.toml", ["plan"]),
        (LockFormatError, "locks/layers.toml", ["plan"]),
        (YamlSyntaxError, "mods/eagle3-marker/mod.yaml", ["plan"]),
        (NotPermittedError, "body.md", ["ci.propose", "branch", "title", "body.md"]),
        (NotPermittedError, "tree", ["mods.check", "--source", "tree"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_not_be_read_is_named(
    factory_checkout: Checkout, kind: type[FactoryError], path: str, command: list[str]
) -> None:
    (factory_checkout.root / "body.md").touch()
    (factory_checkout.root / "tree").mkdir()
    with mode(factory_checkout.root / path, 0):
        done = run([*as_inv(factory_checkout.root), *command], factory_checkout.root, humble=True)
    assert Path(path).name in check(done, kind)


@pytest.mark.parametrize(
    "command", [["build", "--output", "locked/image"], ["export", "locked/image.tar"]], ids=" ".join
)
def test_a_place_that_may_not_be_written_to_is_refused_first(
    factory_checkout: Checkout, command: list[str]
) -> None:
    (factory_checkout.root / "locked").mkdir()
    with mode(factory_checkout.root / "locked", 0o555):
        done = run([*as_inv(factory_checkout.root), *command], factory_checkout.root, humble=True)
    assert done.stdout == ""
    assert "locked" in check(done, OutputError)


def test_a_record_that_cannot_be_written_stops_a_build_before_it_starts(small_factory: SmallFactory) -> None:
    with mode(small_factory.project.locks, 0o555):
        command = small_factory.command("build", "--target", str(CELL))
        done = run(command, small_factory.root, env=small_factory.environment(), humble=True)
    assert "Nothing was built" in check(done, RecordNotWrittenError)
    assert not (small_factory.root / "build").exists()


def test_the_rights_of_root_are_really_gone(tmp_path: Path) -> None:
    with mode(tmp_path, 0o555):
        done = run([sys.executable, "-c", "open('x', 'w')"], tmp_path, humble=True)
    assert "PermissionError" in done.stderr
