"""What is compiled beside a start: which modules, by how many compilers, and what ends them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images.serve.program import ahead, readings
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_until

GB = 1_000_000_000
FACTS = {"flashinfer": {"archs": "12.1a", "modules": {"sampling": "flashinfer.a:one", "moe": "flashinfer.b:two"}}}
SCRIPT = REPOSITORY / "images" / "serve" / "compile_ahead.py"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with FlashInfer's metadata."""
    site = tmp_path / "venv" / "lib" / "python3.13" / "site-packages"
    (site / "flashinfer_python-0.7.0.post1.dist-info").mkdir(parents=True)
    return tmp_path / "venv"


def compiled(folder: Path, name: str) -> None:
    """Leave a compiled module where FlashInfer looks for it."""
    path = folder / name / f"{name}.so"
    path.parent.mkdir(parents=True)
    path.touch()


def test_compilers_find_a_driver_that_only_the_loader_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.serve.program.private_files.PLACE", str(tmp_path))
    root, system = tmp_path / "root", tmp_path / "root" / "usr" / "lib" / "aarch64-linux-gnu"
    driver = root / "opt" / "driver" / "libcuda.so.1"
    system.mkdir(parents=True)
    assert not ahead.linker_path({}, str(root))
    driver.parent.mkdir(parents=True)
    driver.touch()
    given = {"LD_LIBRARY_PATH": ":/opt/driver", "LIBRARY_PATH": "/mine"}
    folder, mine = ahead.linker_path(given, str(root))["LIBRARY_PATH"].split(":")
    assert mine == "/mine"
    assert Path(folder, "libcuda.so").read_text("ascii") == f"INPUT({driver})\n", "a script for the linker"
    (system / "libcuda.so").touch()
    assert not ahead.linker_path(given, str(root))


def test_modules_in_the_image_or_in_the_volume_are_not_compiled(venv: Path, tmp_path: Path) -> None:
    environment = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path / "volume")}
    cached = tmp_path / "volume" / ".cache" / "flashinfer"
    compiled(cached / "0.6.12" / "121a" / "cached_ops", "sampling")  # for another FlashInfer
    first = ahead.find(FACTS, environment, str(venv))
    assert list(first.missing) == ["sampling", "moe"]
    assert first.outcome(first) == "sampling, moe absent"
    compiled(cached / "0.7.0.post1" / "121a" / "cached_ops", "sampling")
    now = ahead.find(FACTS, environment, str(venv))
    assert first.outcome(now) == "sampling compiled; moe absent", "not what was found at the beginning"
    compiled(venv / "lib/python3.13/site-packages/flashinfer_jit_cache/jit_cache", "moe")
    found = ahead.find(FACTS, environment, str(venv))
    assert found.outcome(found) == "moe in the image; sampling from the volume"
    assert found == (("moe",), ("sampling",), {})


@pytest.mark.parametrize(
    ("cores", "available", "reserved", "expected"),
    [
        (20, 118 * GB, 102 * GB, 2),  # a Spark whose server takes 80 %
        (20, 60 * GB, 0, 13),
        (4, 60 * GB, 0, 2),
        (1, 60 * GB, 0, 1),
        (20, 105 * GB, 102 * GB, 0),
        (20, None, 0, 1),
    ],
)
def test_compilers_take_what_the_server_leaves(cores: int, available: int | None, reserved: int, expected: int) -> None:
    assert ahead.jobs(cores, available, reserved + ahead.floor(2 * GB)) == expected


FLASHINFER = """
import subprocess
from pathlib import Path
class Spec:
    def __init__(self, name):
        self.build_dir = Path(__file__).parent.parent / name
        self.lock_path, self.jit_library_path = self.build_dir.parent / f"{name}.lock", self.build_dir / f"{name}.so"
        self.sources = ["a", "b"]
    def build(self, verbose, need_lock):
        subprocess.run([{compiler}], check=True, process_group=0)  # as ninja does
        self.jit_library_path.touch()
def one(): return Spec("sampling")
def two(): return Spec("moe")
"""


def run_script(
    tmp_path: Path, compiler: str, floor: int = 0, modules: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    package = tmp_path / "flashinfer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "specs.py").write_text(FLASHINFER.replace("{compiler}", compiler))
    job = {"modules": modules or {"sampling": "flashinfer.specs:one"}, "jobs": 1, "floor": floor}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(job)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_each_module_is_compiled_and_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    compiler = '"sh", "-c", "test $0 = moe", self.build_dir.name'
    modules = {"sampling": "flashinfer.specs:one", "moe": "flashinfer.specs:two"}
    process = run_script(tmp_path, compiler, modules=modules)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "[serve] sampling could not be compiled beside the start, and is compiled at first use" in said
    assert "[serve] compiled moe in 0 s" in said


def test_objects_of_an_earlier_start_are_counted(tmp_path: Path) -> None:
    """Only the others are compiled: ninja noted the first, and was killed while the second was written."""
    folder = tmp_path / "sampling"
    folder.mkdir()
    for name in ("a.o", "b.o"):
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    (folder / ".ninja_log").write_text(
        f"# ninja log v7\n5\t90\t1\t{folder}/a.o\tc0ffee\n5\t91\t1\t{folder}/gone.o\tc0\n"
    )
    _, said = run_script(tmp_path, '"true"').communicate(timeout=60)
    assert "[serve] compiling sampling goes on: an earlier start left 1 of 2 objects\n" in said
    assert "[serve] compiled sampling in" in said


@pytest.mark.parametrize("how", ["its parent ends", "memory runs short"])
def test_compilers_end_with_it(tmp_path: Path, how: str) -> None:
    mark = tmp_path / "compiling"
    compiler = f'"sh", "-c", "echo $$ > {mark}; sleep 60; exit 0"'
    process = run_script(tmp_path, compiler, floor=0 if how == "its parent ends" else sys.maxsize)
    wait_until(lambda: (mark.exists() and mark.read_text().strip()) or process.poll() is not None, 30)
    if how == "its parent ends":
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert ("GB of memory are left; it continues at first use" in said) == (how != "its parent ends")
    # On a busy machine, memory may run short before there is a compiler.
    compiler_process = Path("/proc", mark.read_text().strip() if mark.exists() else "none")
    wait_until(lambda: not compiler_process.exists(), 10)


def test_the_limit_of_a_container_counts_without_pages_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "CGROUP", str(tmp_path))
    machine = readings.memory()[1]
    (tmp_path / "memory.max").write_text("max\n")
    assert readings.memory()[1] == pytest.approx(machine, rel=0.5)
    (tmp_path / "memory.max").write_text("100000000\n")
    (tmp_path / "memory.current").write_text("90000000\n")
    assert readings.memory()[1] == 10_000_000
    (tmp_path / "memory.stat").write_text("file 70\ninactive_file 60000000\nactive_file 5000000\n")
    assert readings.memory()[1] == 75_000_000
