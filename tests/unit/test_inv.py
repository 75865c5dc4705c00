"""`./inv`: makes its environment once, from whatever Python or uv there is, and says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY


class Sandbox:
    """A folder with `inv`, a project file, and a PATH that holds only what a test puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.log = root / "log"
        self.project = root / "my project"
        self.bin.mkdir(parents=True)
        self.project.mkdir()
        shutil.copy(REPOSITORY / "inv", self.project / "inv")
        (self.project / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        for tool in ("cmp", "cp", "dirname", "mkdir", "chmod", "sh", "env", "cat"):
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def fake_python(self, name: str = "python3", *, old: bool = False) -> None:
        """A Python whose `-m venv` makes an environment of fakes."""
        made = f"""
case "$*" in
  -c*) exit {int(old)} ;;
  "-m venv "*) mkdir -p "$3/bin"
    printf '#!/bin/sh\\ncase "$1" in -*) [ ! -e "{self.root}/no-network" ] ;; *) echo "python $*" ;; esac\\n' \\
      >"$3/bin/python"
    chmod +x "$3/bin/python" ;;
esac"""
        self.program(self.bin / name, made)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.project / "inv"), *arguments],
            cwd=self.root,
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )

    def called(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path / "sandbox")


def test_the_first_run_sets_up_and_the_second_only_runs(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    first = sandbox.run("targets", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"python {sandbox.project}/tasks targets --json\n"
    assert "setting up" in first.stderr
    calls = sandbox.called()
    second = sandbox.run("plan")
    assert second.stdout == f"python {sandbox.project}/tasks plan\n"
    assert second.stderr == ""
    assert sandbox.called() == calls


def test_a_changed_project_file_sets_up_again(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    sandbox.run("plan")
    (sandbox.project / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    assert "setting up" in sandbox.run("plan").stderr


def test_a_set_up_that_fails_is_tried_again(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    (sandbox.root / "no-network").touch()
    assert sandbox.run("plan").returncode != 0
    (sandbox.root / "no-network").unlink()
    assert sandbox.run("plan").returncode == 0


def test_an_environment_whose_python_is_gone_is_made_again(sandbox: Sandbox) -> None:
    sandbox.fake_python()
    sandbox.run("plan")
    (sandbox.project / ".venv" / "bin" / "python").unlink()
    again = sandbox.run("plan")
    assert again.returncode == 0, again.stderr
    assert "setting up" in again.stderr


def test_uv_is_used_where_it_is(sandbox: Sandbox) -> None:
    made = f'case "$*" in venv*) for last in "$@"; do :; done; mkdir -p "$last/bin"; \
printf "#!/bin/sh\\necho python\\n" >"$last/bin/python"; chmod +x "$last/bin/python";; esac; cat "{os.devnull}"'
    sandbox.program(sandbox.bin / "uv", made)
    done = sandbox.run("plan")
    assert done.returncode == 0, done.stderr
    assert "uv pip install" in sandbox.called()


def test_an_old_python_is_passed_over_for_a_newer_one(sandbox: Sandbox) -> None:
    sandbox.fake_python("python3", old=True)
    sandbox.fake_python("python3.12")
    assert sandbox.run("plan").returncode == 0
    assert "python3.12 -m venv" in sandbox.called()


def test_without_a_python_it_says_what_to_install(sandbox: Sandbox) -> None:
    done = sandbox.run("plan")
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr


@pytest.mark.skipif(
    shutil.which("shellcheck", path=str(Path(sys.executable).parent)) is None, reason="no shellcheck"
)
def test_the_scripts_are_clean_shell() -> None:
    scripts = [str(REPOSITORY / name) for name in ("inv", ".ci/run")]
    shellcheck = str(Path(sys.executable).parent / "shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
