"""Commands in hostile surroundings: closed streams, full disks, missing permissions, strange locales.

Each command is a process of its own. Root may read and write everything, so the processes give up those rights.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagefactory.errors import UsageError
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.inv import Done, check_failure

_DROP_FROM_BOUNDS = 24  # PR_CAPBSET_DROP
_OVERRIDE, _READ_ANYTHING = 1, 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
WRONG = ["plan", "--target", "nosuch"]


def as_inv(root: Path) -> list[str]:
    return [sys.executable, str(root / "tasks.py")]


def without_root_rights() -> None:
    """Drop the capabilities that let root read and write everything."""
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
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> Done:
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
        preexec_fn=without_root_rights,
        stdout=stdout,
        stderr=stderr,
    )


@pytest.fixture
def root(locked_checkout: Checkout) -> Path:
    return locked_checkout.root


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Change permissions, and restore them to let pytest remove the folder."""
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


@pytest.mark.parametrize("command", [["--list"], ["targets", "--json"]], ids=" ".join)
def test_commands_succeed_when_the_reader_goes_away(root: Path, command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run([*as_inv(root), *command], root, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("command", "unbuffered"), [("--list", "1"), ("targets", "")])
def test_commands_fail_when_the_output_has_no_room(root: Path, command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        env = {"PYTHONUNBUFFERED": unbuffered}
        done = run([*as_inv(root), command], root, stdout=full.fileno(), env=env)
    assert "standard output" in check_failure(done, "disk-full")


def test_commands_run_with_closed_streams(root: Path) -> None:
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *as_inv(root)]
    for command, code in ((["targets"], 0), (WRONG, UsageError.exit_code)):
        done = run([*shell, *command], root)
        assert done.returncode == code
        assert "Traceback" not in done.stdout + done.stderr


def test_the_exit_code_survives_a_full_standard_error(root: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run([*as_inv(root), *WRONG], root, stderr=full.fileno())
    assert done.returncode == UsageError.exit_code


def test_plain_invoke_has_the_same_commands(root: Path) -> None:
    plain = [sys.executable, "-m", "invoke", "--search-root", str(root)]
    listing = ["targets", "--json"]
    assert run([*plain, *listing], root).stdout == run([*as_inv(root), *listing], root).stdout
    check_failure(run([*plain, *WRONG], root), "unknown-name")


def test_every_character_is_printed_in_an_odd_locale_and_terminal(locked_checkout: Checkout) -> None:
    env = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "TERM": "nosuchterminal", "COLUMNS": "-5"}
    rule = "exclude:\n  - when: {model: tiny, arch: gpu}\n    reason: 模型 needs no GPU\n"
    locked_checkout.edit_matrix("conflicts:", f"{rule}conflicts:")
    root = locked_checkout.root
    shown = run([*as_inv(root), "targets", "--excluded"], root, env=env)
    assert shown.returncode == 0, shown.stderr
    check_failure(run([*as_inv(root), "plan", "--target", "模型\udcff"], root, env=env), "unknown-name")


def test_commands_work_without_a_home_and_read_no_configuration_of_invoke(root: Path, tmp_path: Path) -> None:
    (tmp_path / ".invoke.yaml").write_text("]")
    for home in (None, str(tmp_path / "missing"), str(tmp_path)):
        env = {"HOME": home, "FACTORY_CACHE": None, "XDG_CACHE_HOME": None}
        done = run([*as_inv(root), "plan"], root, env=env)
        assert done.returncode == 0, done.stderr


START = """\
class Finder:
  def find_spec(self, name, *_):
    if name == 'invoke': os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
WORK = "import imagefactory.project.targets as t; t.select = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    ("program", "said"), [(START, "interrupted\n"), (WORK, "interrupted; finished work is kept\n")]
)
def test_an_interrupt_of_the_start_or_of_work_ends_with_one_line(root: Path, program: str, said: str) -> None:
    program = f"import os, runpy, signal, sys\n{program}runpy.run_path('tasks.py', run_name='__main__')"
    done = run([sys.executable, "-c", program, "plan"], root)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_a_cache_without_permission_names_its_variable(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "theirs"
    cache.mkdir()
    with mode(cache, 0o555):
        done = run([*as_inv(root), "clean"], root, env={"FACTORY_CACHE": str(cache)})
    assert "FACTORY_CACHE" in check_failure(done, "not-permitted")


@pytest.mark.parametrize(
    ("kind", "path", "command"),
    [
        ("bad-yaml", "matrix.yaml", ["plan"]),
        ("bad-lock", "locks/2.0/gpu-linux-arm64.toml", ["plan"]),
        ("not-permitted", "tree", ["mods.check", "--source", "tree"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_without_permission_are_named(root: Path, kind: str, path: str, command: list[str]) -> None:
    place = root / path
    place.parent.mkdir(exist_ok=True)
    if path == "tree":
        place.mkdir()
    else:
        place.touch()
    with mode(place, 0):
        done = run([*as_inv(root), *command], root)
    assert Path(path).name in check_failure(done, kind)
