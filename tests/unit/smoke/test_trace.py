"""Tracing an image: what its programs opened, and what nothing touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.oci.listing import ListedPath
from imagefactory.smoke import trace_hook
from imagefactory.smoke.trace import noted_paths, resolve, untouched

SITE = "opt/venv/lib/python3.13/site-packages"


def listed(path: str, size: int = 10, target: str = "") -> ListedPath:
    kind = "symlink" if target else "file"
    return ListedPath(path, kind, "0644", 0, 0, 0, 0 if target else size, target, "")


FILES = {
    entry.path: entry
    for entry in (
        listed(f"{SITE}/used/__init__.py"),
        listed(f"{SITE}/used/big.so", 2_000_000),
        listed(f"{SITE}/used/small.so", 999_999),
        listed(f"{SITE}/used-1.0.dist-info/METADATA", 5_000_000),
        listed(f"{SITE}/idle/__init__.py", 7),
        listed(f"{SITE}/idle/lib.so", 3_000_000),
        listed(f"{SITE}/idle-1.0.dist-info/entry_points.txt"),
        listed("opt/venv/lib64", target="lib"),
        listed("usr/local/cuda/lib.so", target=f"../../../{SITE}/idle/lib.so"),
        listed("loop/a", target="b"),
        listed("loop/b", target="a"),
    )
}
OWNERS = {path: f"{path.split('/')[5].partition('-')[0]}-1.0.whl" for path in FILES if path.startswith(SITE)}


@pytest.mark.parametrize(
    ("noted", "file"),
    [
        (f"/{SITE}/used/__init__.py", f"{SITE}/used/__init__.py"),
        (f"/{SITE}/other/../used/big.so", f"{SITE}/used/big.so"),
        ("/opt/venv/lib64/python3.13/site-packages/used/big.so", f"{SITE}/used/big.so"),
        ("/usr/local/cuda/lib.so", f"{SITE}/idle/lib.so"),
        (f"/{SITE}/used/__pycache__/__init__.cpython-313.pyc", f"{SITE}/used/__init__.py"),
        (
            f"/var/cache/imagefactory/pycache/{SITE}/used/__init__.cpython-313.pyc",
            f"{SITE}/used/__init__.py",
        ),
    ],
)
def test_noted_path_is_resolved_to_the_file_of_the_image(noted: str, file: str) -> None:
    assert resolve([noted], FILES) == {file}


@pytest.mark.parametrize("noted", ["/proc/self/maps", "/loop/a", "", "/"])
def test_path_that_no_wheel_has_is_ignored(noted: str) -> None:
    assert not resolve([noted], FILES) & OWNERS.keys()


def test_untouched_distributions_and_large_files_are_listed() -> None:
    touched = resolve([f"/{SITE}/used/__init__.py", f"/{SITE}/idle-1.0.dist-info/entry_points.txt"], FILES)
    distributions, files = untouched(OWNERS, FILES, touched, 1_000_000)
    assert [(one.owner, one.files, one.size) for one in distributions] == [("idle-1.0.whl", 2, 3_000_007)]
    assert [(one.name, one.size) for one in files] == [("used/big.so", 2_000_000)]


def test_hook_notes_what_a_python_opens_imports_loads_and_starts(tmp_path: Path) -> None:
    notes = tmp_path / "notes" / "step"
    notes.mkdir(parents=True)
    data, module = tmp_path / "data.txt", tmp_path / "some_module.py"
    data.write_text("x")
    module.write_text("")
    program = (
        f"exec(open({trace_hook.__file__!r}).read(), {{}})\n"
        "import ctypes, subprocess\n"
        f"open('data.txt').read()\n"
        "import some_module\n"
        "try:\n    ctypes.CDLL('/nowhere/libmissing.so')\nexcept OSError:\n    pass\n"
        "subprocess.run(['true'], check=True)\n"
    )
    environment = {
        "IMAGEFACTORY_TRACE": str(notes),
        "PYTHONPATH": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "LD_DEBUG": "files,libs",
        "LD_DEBUG_OUTPUT": str(notes / "ld"),
    }
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    found = noted_paths(notes.parent)
    assert {str(data), str(module), "/nowhere/libmissing.so"} <= found
    assert {"/usr/bin/true", "/bin/true"} & found
    assert any("/libc.so" in path for path in found)


def test_hook_without_its_folder_changes_nothing(tmp_path: Path) -> None:
    program = f"exec(open({trace_hook.__file__!r}).read(), {{}}); open(__import__('os').devnull).read(); print('ran')"
    environment = {"IMAGEFACTORY_TRACE": str(tmp_path / "missing")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("ran\n", "")
