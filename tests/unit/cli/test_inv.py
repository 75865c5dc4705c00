"""`./inv` finds a Python, sets up its environment once, and names what is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY


class Sandbox:
    """A folder with `inv`, a lock, and a PATH with only the programs that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.log = root / "log"
        self.project = root / "my project"
        self.lock = self.project / "locks" / "environment" / "run.txt"
        self.bin.mkdir(parents=True)
        self.lock.parent.mkdir(parents=True)
        self.lock.write_text("one==1\n")
        shutil.copy(REPOSITORY / "inv", self.project / "inv")
        for tool in ("cmp", "cp", "dirname", "mkdir", "chmod", "sh", "env", "cat", "uname"):
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def fake_python(self, name: str = "python3", *, unfit: bool = False) -> None:
        """Write a Python whose set-up makes an environment of fakes."""
        venv = self.project / ".venv"
        made = f"""
case "$*" in
  -c*) exit {int(unfit)} ;;
  "-m imagefactory.environment.setup") [ ! -e "{self.root}/no-network" ] || exit 19
    mkdir -p "{venv}/bin" "{venv}/.locked"
    printf '#!/bin/sh\\necho "ran $*"\\n' >"{venv}/bin/python"
    chmod +x "{venv}/bin/python"
    cp "{self.lock}" "{venv}/.locked/run.txt" ;;
esac"""
        self.program(name, made)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.project / "inv"), *arguments],
            cwd=self.root,
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )

    def set_ups(self) -> int:
        return self.log.read_text().count("-m imagefactory.environment.setup")


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path / "sandbox")


def test_only_the_first_run_sets_up(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    first = sandbox.run("targets", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith(" targets --json\n")
    assert str(sandbox.project) in first.stdout
    second = sandbox.run("plan")
    assert second.stdout.endswith(" plan\n")
    assert second.stderr == ""
    assert sandbox.set_ups() == 1


def test_a_changed_lock_and_a_missing_python_set_up_again(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    sandbox.run("plan")
    sandbox.lock.write_text("one==2\n")
    assert sandbox.run("plan").returncode == 0
    assert sandbox.set_ups() == 2
    (sandbox.project / ".venv" / "bin" / "python").unlink()
    assert sandbox.run("plan").returncode == 0
    assert sandbox.set_ups() == 3


def test_a_failed_set_up_keeps_its_exit_code_and_is_repeated(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    (sandbox.root / "no-network").touch()
    failed = sandbox.run("plan")
    assert failed.returncode == 19
    assert "ran" not in failed.stdout
    (sandbox.root / "no-network").unlink()
    assert sandbox.run("plan").returncode == 0


@pytest.mark.parametrize("name", ["python3.12", "hidden"])
def test_an_unfit_python_is_passed_over_for_another_or_one_of_uv(sandbox: Sandbox, name: str) -> None:
    sandbox.fake_python("python3", unfit=True)
    sandbox.fake_python(name)
    sandbox.program("uv", f'echo "{sandbox.bin}/hidden"')
    assert sandbox.run("plan").returncode == 0
    assert f"{name} -m imagefactory" in sandbox.log.read_text()


def test_a_machine_without_python_is_told_what_to_install(sandbox: Sandbox) -> None:
    done = sandbox.run("plan")
    assert done.returncode == 1
    assert "no Python 3.11 to 3.14 found" in done.stderr


@pytest.mark.parametrize(
    ("system", "code", "said"), [("Darwin", 0, "not tested there"), ("MINGW64_NT-10.0", 1, "WSL 2")]
)
def test_other_systems_are_told_what_works(sandbox: Sandbox, system: str, code: int, said: str) -> None:
    sandbox.fake_python()
    sandbox.program("uname", f"echo {system}")
    done = sandbox.run("plan")
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
