"""Wheel layers hold what installing the wheels gives."""

import base64
import csv
import importlib.metadata
import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from installer.records import RecordEntry, parse_record_file

from imagefactory.assemble.layers.layer_blob import _write
from imagefactory.assemble.layers.wheel_layer import metadata_entries, wheel_entries
from imagefactory.oci.entry import Bytes, DeflatedSlice, Entry, RawSlice
from imagefactory.oci.tar import complete
from imagefactory.plan.plan import Environment, SecondName
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.wheels import WheelFactory

ENVIRONMENT = Environment(venv="opt/venv", python="3.11")
SITE = "opt/venv/lib/python3.11/site-packages"
LARGE = random.Random(7).randbytes(80_000)
SCRIPTS = ("full", "full-nested", "script", "shell", "windowed")


def entries_of(wheel: Path, **options: object) -> dict[str, Entry]:
    return {entry.path: entry for entry in wheel_entries(wheel, wheel.name, ENVIRONMENT, **options)}  # type: ignore[arg-type]


def unpacked(folder: Path, *wheels: Path, **options: object) -> Path:
    """Write wheels as one layer and unpack it as an engine would."""
    entries = [entry for wheel in wheels for entry in entries_of(wheel, **options).values()]
    store = Store(folder / "store")
    with store.scratch() as scratch:
        blob = _write(complete(entries, owner="a test"), store, scratch, lambda _: None, None)
    with tarfile.open(store.blob(blob.digest)) as tar:
        tar.extraction_filter = staticmethod(lambda member, _: member)  # what we wrote, as it is
        tar.extractall(folder / "root")  # noqa: S202 - ours
    return folder / "root"


def text_of(entry: Entry) -> str:
    assert isinstance(entry.content, Bytes)
    return entry.content.data.decode()


STEM = "full_house-1.0"
FULL: dict[str, Any] = {
    "files": {
        "full_house/__init__.py": "def main(): ...\n",
        "full_house/large.bin": LARGE,
        "full_house/empty.txt": "",
        "full_house/run.sh": "#!/bin/sh\n",
        "full_house/__pycache__/stale.cpython-311.pyc": b"\0",
        f"{STEM}.data/scripts/script": "#!python\nprint(1)\n",
        f"{STEM}.data/scripts/windowed": "#!pythonw -E\nprint(1)\n",
        f"{STEM}.data/scripts/shell": "#!/bin/sh\nexit 0\n",
        f"{STEM}.data/headers/full.h": "int x;\n",
        f"{STEM}.data/data/share/full/manual": "read me\n",
        f"{STEM}.data/purelib/full_extra.py": "EXTRA = 1\n",
        f"{STEM}.data/platlib/full_native.py": "NATIVE = 1\n",
        f"{STEM}.dist-info/licenses/LICENSE": "free\n",
    },
    "entry_points": {"full": "full_house:main", "full-nested": "full_house.cli:App.main"},
    "executable": ["full_house/run.sh"],
}
"""Everything that a wheel may have."""


@pytest.fixture
def full_wheel(wheel_factory: WheelFactory) -> Path:
    return wheel_factory("full-house", **FULL)


def test_files_are_installed_where_the_standard_says_and_only_scripts_are_executable(
    full_wheel: Path,
) -> None:
    folders = {
        "opt/venv/bin": SCRIPTS,
        "opt/venv/include/site/python3.11/full-house": ["full.h"],
        "opt/venv/share/full": ["manual"],
        SITE: ["full_extra.py", "full_native.py"],
        f"{SITE}/full_house": ["__init__.py", "large.bin", "empty.txt", "run.sh"],
        f"{SITE}/full_house-1.0.dist-info": ["INSTALLER", "METADATA", "RECORD", "WHEEL", "entry_points.txt"],
        f"{SITE}/full_house-1.0.dist-info/licenses": ["LICENSE"],
    }
    entries = entries_of(full_wheel)
    assert set(entries) == {f"{path}/{name}" for path in folders for name in folders[path]}
    executable = {path for path, entry in entries.items() if entry.mode == 0o755}
    assert executable == {f"{SITE}/full_house/run.sh", *(f"opt/venv/bin/{name}" for name in SCRIPTS)}
    assert {entry.mode for entry in entries.values()} == {0o755, 0o644}


def test_scripts_run_the_python_of_the_environment(full_wheel: Path) -> None:
    entries = entries_of(full_wheel)
    assert text_of(entries["opt/venv/bin/script"]) == "#!/opt/venv/bin/python3\nprint(1)\n"
    assert text_of(entries["opt/venv/bin/windowed"]) == "#!/opt/venv/bin/python3\nprint(1)\n"
    assert text_of(entries["opt/venv/bin/shell"]) == "#!/bin/sh\nexit 0\n"
    assert "from full_house import main\n" in text_of(entries["opt/venv/bin/full"])
    nested = text_of(entries["opt/venv/bin/full-nested"])
    assert nested.startswith("#!/opt/venv/bin/python3\n")
    assert "from full_house.cli import App\n" in nested
    assert "sys.exit(App.main())" in nested


def test_record_lists_every_file_with_its_hash(full_wheel: Path, tmp_path: Path) -> None:
    site = unpacked(tmp_path, full_wheel) / SITE
    [distribution] = importlib.metadata.distributions(path=[str(site)])
    assert distribution.metadata["Name"] == "full-house"
    assert distribution.read_text("INSTALLER") == "imagefactory\n"
    listed = {}
    for row in parse_record_file((distribution.read_text("RECORD") or "").splitlines()):
        entry = RecordEntry.from_elements(*row)
        listed[(site / entry.path).resolve()] = entry
    there = {path.resolve() for path in (tmp_path / "root").rglob("*") if path.is_file()}
    assert set(listed) == there
    for path, entry in listed.items():
        if path.name == "RECORD":
            assert (entry.hash_, entry.size) == (None, None)
        else:
            assert entry.validate_stream(io.BytesIO(path.read_bytes())), path
    assert {str(path) for path in distribution.files or ()} >= {
        "full_house/__init__.py",
        "../../../bin/full",
        "../../../share/full/manual",
    }


def test_large_members_are_not_read(full_wheel: Path, wheel_factory: WheelFactory) -> None:
    assert isinstance(entries_of(full_wheel)[f"{SITE}/full_house/large.bin"].content, DeflatedSlice)
    stored = wheel_factory("stored", files={"large.bin": LARGE}, stored=True)
    assert isinstance(entries_of(stored)[f"{SITE}/large.bin"].content, RawSlice)


def test_metadata_about_the_installation_is_replaced(wheel_factory: WheelFactory) -> None:
    info = "sly-1.0.dist-info"
    wheel = wheel_factory(
        "sly",
        files={
            f"{info}/direct_url.json": '{"url": "https://elsewhere.example"}',
            f"{info}/REQUESTED": "",
            f"{info}/INSTALLER": "sly\n",
        },
    )
    entries = entries_of(wheel)
    assert sorted(path.rpartition("/")[2] for path in entries) == ["INSTALLER", "METADATA", "RECORD", "WHEEL"]
    assert text_of(entries[f"{SITE}/{info}/INSTALLER"]) == "imagefactory\n"
    rows = [row[0] for row in csv.reader(text_of(entries[f"{SITE}/{info}/RECORD"]).splitlines())]
    assert rows == [f"{info}/INSTALLER", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]


def test_path_of_another_wheel_is_left_out_and_not_recorded(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("loser", files={"shared.py": "LOSER = 1\n", "own.py": ""})
    entries = entries_of(wheel, without=["lib/python3.11/site-packages/shared.py"])
    assert f"{SITE}/shared.py" not in entries
    assert f"{SITE}/own.py" in entries
    assert "shared.py" not in text_of(entries[f"{SITE}/loser-1.0.dist-info/RECORD"])


def recorded(data: bytes) -> str:
    """Return a hash as RECORD spells it."""
    return base64.urlsafe_b64encode(bytes.fromhex(sha256_of(data))).rstrip(b"=").decode()


def lie(text: str) -> str:
    """Swap the first sha256 of a RECORD for that of something else."""
    first = text.split("sha256=", 1)[1].split(",", 1)[0]
    return text.replace(first, recorded(b"something else"), 1)


def test_wrong_record_is_corrected_by_rehashing(wheel_factory: WheelFactory, tmp_path: Path) -> None:
    wheel = wheel_factory("wrong", files={"large.bin": LARGE}, record=lie)
    root = unpacked(tmp_path, wheel, rehash=True)
    record = (root / SITE / "wrong-1.0.dist-info" / "RECORD").read_text()
    assert f"large.bin,sha256={recorded(LARGE)},{len(LARGE)}" in record


def test_wrong_hash_of_a_script_is_an_error(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("liar", files={"liar-1.0.data/scripts/tool": "#!python\n"}, record=lie)
    with raises("bad-wheel", match=r"liar-1\.0-py3-none-any\.whl") as caught:
        entries_of(wheel)
    assert "tool is not what its RECORD says" in caught.value.why


def test_distribution_is_found_under_its_second_name(tmp_path: Path) -> None:
    for entry in metadata_entries(SecondName(name="vllm", version="1.0+cpu"), ENVIRONMENT):
        path = tmp_path / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(entry.content, Bytes)
        path.write_bytes(entry.content.data)
    [distribution] = importlib.metadata.distributions(path=[str(tmp_path / SITE)])
    assert (distribution.metadata["Name"], distribution.version) == ("vllm", "1.0+cpu")
    for file in distribution.files or ():
        assert file.hash is None or file.hash.value == recorded((tmp_path / SITE / str(file)).read_bytes())
