"""Installing with uv and settling leaves the same files as the embedded engine."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from uv import find_uv_bin

from imagefactory.assemble.layers.wheel_layer import wheel_entries
from imagefactory.oci.entry import read_content
from imagefactory.plan.plan import Environment
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.wheels import WheelFactory

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
EPOCH = 315619200
SITE = f"lib/python{PYTHON}/site-packages"


class Image:
    """An environment on this machine, treated as a Docker build treats the image's."""

    def __init__(self, folder: Path) -> None:
        self.venv = folder / "venv"
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "VIRTUAL_ENV": str(self.venv),
            "UV_CACHE_DIR": str(self.venv / ".uv"),
            "UV_LINK_MODE": "hardlink",
            "UV_NO_CONFIG": "1",
            "UV_OFFLINE": "1",
        }
        self.run(sys.executable, "-m", "venv", "--without-pip", str(self.venv))
        self.settle("finish")
        self.before = self.files()

    def run(self, *command: str) -> None:
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def install(self, *wheels: Path) -> None:
        self.run(find_uv_bin(), "pip", "install", "--no-deps", "--no-index", *map(str, wheels))

    def settle(self, *words: str) -> None:
        self.run(sys.executable, "-IB", str(REPOSITORY / "images/docker/settle.py"), *words)

    def yielding(self, wheel: Path, *paths: str) -> None:
        """Install a wheel that leaves paths to another one."""
        file = self.folder / "yields"
        file.write_text("".join(f"{path}\n" for path in paths))
        self.settle("keep", str(file))
        self.install(wheel)
        self.settle("restore", str(file))

    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.venv).as_posix(): path.read_bytes()
            for path in self.venv.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def new(self) -> dict[str, bytes]:
        return {path: data for path, data in self.files().items() if path not in self.before}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def expected(*wheels: tuple[Path, tuple[str, ...]]) -> dict[str, bytes]:
    environment = Environment(venv="venv", python=PYTHON)
    entries = [
        entry for wheel, without in wheels for entry in wheel_entries(wheel, wheel.name, environment, without=without)
    ]
    return {
        entry.path.removeprefix("venv/"): read_content(entry.content) for entry in entries if entry.content is not None
    }


def content(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out what the engines write in their own words."""
    own = ("RECORD", "INSTALLER", "direct_url.json")
    return {path: data for path, data in files.items() if not path.endswith(own) and not path.startswith("bin/")}


def test_uv_and_the_embedded_engine_install_the_same(image: Image, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory(
        "one",
        files={
            "one/__init__.py": "x = 1\n",
            "one/sub/a.py": "",
            "one/__pycache__/__init__.cpython-311.pyc": "stale",
            "one-1.0.data/data/share/one.txt": "text",
            "one-1.0.data/headers/one.h": "//",
        },
        entry_points={"one": "one:main"},
    )
    with ZipFile(wheel, "a") as archive:
        archive.writestr("one/empty/deeper/", b"")
    image.install(wheel)
    image.settle("finish")
    assert content(image.new()) == content(expected((wheel, ())))
    assert {path for path in image.new() if path.startswith("bin/")} == {"bin/one"}
    assert not (image.venv / SITE / "one/empty").exists()
    assert {path.lstat().st_mtime for path in [image.venv, *image.venv.rglob("*")]} == {EPOCH}
    names = {path.name for path in image.venv.rglob("*")}
    assert names.isdisjoint({"REQUESTED", "uv_cache.json", ".uv", ".lock", ".kept", "__pycache__"})
    record = (image.venv / SITE / "one-1.0.dist-info/RECORD").read_text()
    assert "REQUESTED" not in record
    assert "uv_cache.json" not in record


SHARED = f"{SITE}/shared/__init__.py"


@pytest.mark.parametrize("loser_first", [True, False])
def test_shared_path_belongs_to_the_winner_in_any_order(
    image: Image, wheel_factory: WheelFactory, *, loser_first: bool
) -> None:
    loser = wheel_factory("loser", files={"shared/__init__.py": "wrong\n", "loser.py": ""})
    winner = wheel_factory("winner", files={"shared/__init__.py": "right\n"})
    for yields in (True, False) if loser_first else (False, True):
        if yields:
            image.yielding(loser, SHARED)
        else:
            image.install(winner)
        image.settle("finish")
    assert content(image.new()) == content(expected((winner, ()), (loser, (SHARED,))))
    assert image.files()[SHARED] == b"right\n"
    assert "shared/__init__.py" not in (image.venv / SITE / "loser-1.0.dist-info/RECORD").read_text()
    assert "shared/__init__.py" in (image.venv / SITE / "winner-1.0.dist-info/RECORD").read_text()


def test_folder_left_empty_by_a_yielded_file_is_removed(image: Image, wheel_factory: WheelFactory) -> None:
    image.yielding(wheel_factory("loser", files={"shared/__init__.py": "wrong\n", "loser.py": ""}), SHARED)
    image.settle("finish")
    assert not (image.venv / SITE / "shared").exists()
    assert (image.venv / SITE / "loser.py").exists()
