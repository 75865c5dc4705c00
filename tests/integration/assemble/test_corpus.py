"""Real wheels of every shape are installed as `uv pip install` does, apart from the declared differences."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.assemble.layers.wheel_layer import wheel_entries
from imagefactory.oci.entry import DeflatedSlice, read_content
from imagefactory.oci.gzip import LayerBlob
from imagefactory.plan.plan import Environment
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.locked_wheels import fetch_wheels
from tests.fixtures.wheels import make_wheel
from tests.unit.assemble.test_wheel_layer import FULL

pytestmark = pytest.mark.network

ENVIRONMENT = Environment(venv="venv", python="3.13")
IMAGES, OURS = "python3.13", "python{}.{}".format(*sys.version_info)
"""Folders named after a Python: that of images, and the one that runs the tests."""
SITE = f"lib/{IMAGES}/site-packages"
GB10 = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
CPU = Cell("tiny", "0.32.0", "cpu", "linux/amd64")
PLATFORMS = {"linux/arm64": "aarch64-manylinux_2_40", "linux/amd64": "x86_64-manylinux_2_40"}
SHAPES: dict[str, tuple[Cell, tuple[str, ...]]] = {
    "scripts of their own": (GB10, ("jmespath", "dill", "ninja", "numba")),
    "console scripts": (GB10, ("tqdm", "uvicorn", "pygments", "huggingface-hub", "charset-normalizer", "setuptools")),
    "pure": (GB10, ("certifi", "idna", "packaging", "typing-extensions", "requests", "jinja2", "click", "fastapi")),
    "platform": (GB10, ("pyyaml", "regex", "pydantic-core", "msgspec", "cffi", "markupsafe", "safetensors")),
    "namespace packages": (
        GB10,
        ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-proto", "opentelemetry-exporter-otlp",
         "googleapis-common-protos", "protobuf", "cuda-pathfinder", "nvidia-nvtx", "nvidia-cuda-crt"),
    ),
    "data": (GB10, ("sympy", "z3-solver")),
    ".pth files": (GB10, ("nvidia-cutlass-dsl",)),
    "bytecode and executable bits": (GB10, ("numpy", "tiktoken", "cuda-tile")),
    "data of another platform": (CPU, ("intel-openmp", "intel-cmplr-lib-ur")),
}  # fmt: skip


LEFT_OUT = {
    "REQUESTED": "REQUESTED is left out: nobody requested one thing more than another",
    "uv_cache.json": "uv notes where it had a local file from",
}


@dataclass(frozen=True)
class Installed:
    """A file of an environment."""

    sha256: str
    executable: bool
    data: bytes
    """The beginning of the file, enough to compare scripts."""


def wheels_of(cell: Cell, names: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Fetch locked wheels, and link them into a folder under their own names."""
    found = {}
    for wheel, file in fetch_wheels(Project(REPOSITORY), cell, names):
        path = folder / wheel.file
        if not path.exists():
            path.symlink_to(file)
        found[f"{wheel.name}=={wheel.version}"] = path
    return found


def installed_by_uv(requirements: list[str], links: Path, venv: Path, platform: str) -> dict[str, Installed]:
    """Let uv install for the images' Python; only names of folders differ from the one here.

    uv knows a wheel of `--find-links` by its path alone: with the user's cache, it would install what another run
    of the tests had made under the same path.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    environment["UV_CACHE_DIR"] = str(venv.with_name("uv-cache"))
    subprocess.run(
        [uv, "venv", "--quiet", "--no-config", "--no-python-downloads", "--python", sys.executable, str(venv)],
        env=environment, check=True,
    )  # fmt: skip
    before = set(read_tree(venv))
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--no-config", "--offline", "--no-index", "--find-links", str(links),
         "--no-deps", "--no-compile-bytecode", "--python", str(venv / "bin/python"), "--python-version", "3.13",
         "--python-platform", PLATFORMS[platform], *requirements],
        env=environment, check=True,
    )  # fmt: skip
    own = {".lock"}  # uv's, not any wheel's
    added = {path: file for path, file in read_tree(venv).items() if path not in before | own}
    return {path.replace(OURS, IMAGES): file for path, file in added.items()}


def read_tree(root: Path) -> dict[str, Installed]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                data = path.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                executable = bool(path.stat().st_mode & 0o100)
                found[str(path.relative_to(root))] = Installed(digest, executable, data[:4096])
    return found


def installed_by_us(wheels: Mapping[str, Path]) -> dict[str, Installed]:
    """Read our entries, each through the checks that writing a layer does."""
    found = {}
    for wheel in wheels.values():
        with Path(os.devnull).open("wb") as nothing:
            blob = LayerBlob(nothing)
            for entry in wheel_entries(wheel.resolve(), wheel.name, ENVIRONMENT):
                assert entry.content is not None
                if isinstance(entry.content, DeflatedSlice):
                    blob.add(entry.content, entry.path)
                    digest, beginning = str(entry.content.sha256), b""
                else:
                    data = read_content(entry.content)
                    digest, beginning = hashlib.sha256(data).hexdigest(), data[:4096]
                path = entry.path.removeprefix("venv/")
                found[path] = Installed(digest, entry.mode == 0o755, beginning)
    return found


def assert_same(theirs: dict[str, Installed], ours: dict[str, Installed]) -> dict[str, str]:
    """Compare two environments; return the paths that differ, each with its declared difference."""
    met = {path: declared(path, theirs.get(path), ours.get(path)) for path in theirs.keys() | ours.keys()}
    return {path: difference for path, difference in met.items() if difference is not None}


def declared(  # noqa: PLR0911 - one for each declared difference
    path: str, uv: Installed | None, our: Installed | None
) -> str | None:
    """Return the declared difference that a path shows, or None if both are the same; fail for any other."""
    name = path.rpartition("/")[2]
    if our is None and uv is not None:
        if "/__pycache__/" in path:
            return "bytecode in wheels is left out"
        assert ".dist-info/" in path, f"only uv installs {path}"
        assert name in LEFT_OUT, f"only uv installs {path}"
        return LEFT_OUT[name]
    assert our is not None
    assert uv is not None, f"only we install {path}"
    if name == "RECORD" and ".dist-info/" in path and uv.executable:
        return "RECORD is executable for uv when the wheel's own was"
    assert our.executable == uv.executable, f"{path} is executable for {'us' if our.executable else 'uv'} only"
    if our.sha256 == uv.sha256:
        return None
    if path.startswith("bin/"):
        assert our.data.startswith(b"#!/venv/bin/python3\n"), f"{path} differs"
        if our.data.partition(b"\n")[2] == uv.data.partition(b"\n")[2]:
            return "scripts name another interpreter"
        assert uv.data.count(b"sys.exit(") == our.data.count(b"sys.exit(") == 1, f"{path} differs"
        return "console scripts are written from another template"
    assert ".dist-info/" in path, f"{path} differs"
    assert name in {"INSTALLER", "RECORD"}, f"{path} differs"
    return f"{name} tells who installed what"


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("links")


@pytest.mark.parametrize(
    "shape",
    [name if name == "console scripts" else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES],
)
def test_real_wheels_are_installed_as_uv_does(shape: str, links: Path, tmp_path: Path) -> None:
    cell, names = SHAPES[shape]
    wheels = wheels_of(cell, names, links)
    assert len(wheels) == len(names), f"not locked: {set(names) - {key.partition('==')[0] for key in wheels}}"
    theirs = installed_by_uv(list(wheels), links, tmp_path / "venv", cell.platform)
    assert_same(theirs, installed_by_us(wheels))
    assert len(theirs) > len(names) * 3


def test_wheel_with_everything_is_installed_as_uv_does(links: Path, tmp_path: Path) -> None:
    """No locked wheel has headers; this one has them, and everything else of the standard."""
    wheel = make_wheel(links, "full-house", **FULL)
    wheels = {"full-house==1.0": wheel}
    theirs = installed_by_uv(list(wheels), links, tmp_path / "venv", "linux/amd64")
    met = assert_same(theirs, installed_by_us(wheels))
    assert set(met.values()) == {
        "scripts name another interpreter",
        "console scripts are written from another template",
        "INSTALLER tells who installed what",
        "RECORD tells who installed what",
        "bytecode in wheels is left out",
        *LEFT_OUT.values(),
    }
