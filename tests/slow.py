"""A pytest plugin for slow tests: runs a part of them, and refuses a test before it fills the disk."""

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

GB = 10**9
DISK_OF_FIXTURES = {"tiny_checkout": 8, "loaded": 20, "gpu_image": 24}
"""Free gigabytes that an image takes: downloads, layers, a layout, and its files in Docker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-part",
        metavar="K/N",
        type=_part,
        help="of the tests marked slow, run every Nth file, from the Kth on, and those marked each_run",
    )


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise pytest.UsageError(f"--slow-part: {text!r} is not like 2/8, the second of eight parts")
    return int(match[1]), int(match[2])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (part := config.getoption("--slow-part")) is None:
        return
    number, parts = part
    # By file, because the tests of a file share what takes long: images, servers, locks.
    files = sorted({item.path for item in items if item.get_closest_marker("slow")})
    chosen = set(files[number - 1 :: parts])
    left_out = {
        item
        for item in items
        if item.get_closest_marker("slow") and item.path not in chosen and not item.get_closest_marker("each_run")
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where large files go, and how much room there is."""
    if config.option.markexpr == "not slow":
        return []
    return [f"disk: {free // GB} GB free in {place}" for place, free in _free().items()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that would fill the disk halfway through."""
    if not (needed := disk_needed(item)):
        return
    short = [f"{place} has {free // GB}" for place, free in _free().items() if free < needed * GB]
    if short:
        pytest.fail(
            f"This test needs {needed} GB of disk, and {', '.join(short)}. Free some, or set TMPDIR.", pytrace=False
        )


def disk_needed(item: pytest.Item) -> int:
    """Return the free gigabytes that a test needs: those of its largest fixture, or its marker `disk`."""
    marked = [int(marker.args[0]) for marker in item.iter_markers("disk")]
    return max([0, *marked, *(DISK_OF_FIXTURES.get(name, 0) for name in getattr(item, "fixturenames", ()))])


def _free() -> dict[Path, int]:
    """Return the free bytes of the disks that tests write to, each named by one of its folders."""
    cached = os.environ.get("FACTORY_CACHE") or Path("~/.cache").expanduser()
    folders = [Path(tempfile.gettempdir()), Path(cached), *_docker_root()]
    disks = {folder.stat().st_dev: folder for folder in reversed(folders) if folder.is_dir()}
    return {folder: shutil.disk_usage(folder).free for folder in disks.values()}


@cache
def _docker_root() -> list[Path]:
    if shutil.which("docker") is None:
        return []
    command = ["docker", "info", "--format", "{{.DockerRootDir}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [Path(done.stdout.strip())] if done.returncode == 0 and done.stdout.strip() else []
