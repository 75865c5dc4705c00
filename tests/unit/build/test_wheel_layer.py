"""Wheels become what installing them gives, and those that break a rule are refused by name."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import importlib.metadata
import io
import os
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from installer.records import RecordEntry, parse_record_file

from imagefactory.build.layers.wheel_layer import Environment, metadata_entries, wheel_entries
from imagefactory.errors.layers import BadWheelError, DamagedFileError, DuplicatePathError
from imagefactory.oci.entry import Bytes, DeflatedSlice, Entry, RawSlice
from imagefactory.oci.gzip import LayerBlob
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.plan.plan import SecondName
from tests.fixtures.wheels import WheelFactory

ENVIRONMENT = Environment(venv="opt/venv", python="3.11")
SITE = "opt/venv/lib/python3.11/site-packages"
LARGE = random.Random(7).randbytes(80_000)


def entries_of(wheel: Path, **options: object) -> dict[str, Entry]:
    return {entry.path: entry for entry in wheel_entries(wheel, wheel.name, ENVIRONMENT, **options)}  # type: ignore[arg-type]


def unpacked(folder: Path, *wheels: Path, **options: object) -> Path:
    """Write wheels as one layer and unpack it the way an engine would."""
    entries = [entry for wheel in wheels for entry in entries_of(wheel, **options).values()]
    out = io.BytesIO()
    blob = LayerBlob(out)
    for entry in complete(entries, owner="a test"):
        blob.write(header(entry))
        if entry.content is not None:
            blob.add(entry.content, entry.path)
            blob.write(padding(entry.content.size))
    blob.write(END)
    blob.finish()
    root = folder / "root"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(out.getvalue()))) as tar:
        tar.extractall(root, filter="fully_trusted")  # noqa: S202 - ours
    return root


def text_of(entry: Entry) -> str:
    assert isinstance(entry.content, Bytes)
    return entry.content.data.decode()


@pytest.fixture
def full_wheel(wheel_factory: WheelFactory) -> Path:
    """A wheel with everything that a wheel may have."""
    return wheel_factory(
        "full-house",
        files={
            "full_house/__init__.py": "def main(): ...\n",
            "full_house/large.bin": LARGE,
            "full_house/empty.txt": "",
            "full_house/run.sh": "#!/bin/sh\n",
            "full_house/__pycache__/stale.cpython-311.pyc": b"\0",
            "full_house-1.0.data/scripts/script": "#!python\nprint(1)\n",
            "full_house-1.0.data/scripts/windowed": "#!pythonw -E\nprint(1)\n",
            "full_house-1.0.data/scripts/shell": "#!/bin/sh\nexit 0\n",
            "full_house-1.0.data/headers/full.h": "int x;\n",
            "full_house-1.0.data/data/share/full/manual": "read me\n",
            "full_house-1.0.data/purelib/full_extra.py": "EXTRA = 1\n",
            "full_house-1.0.data/platlib/full_native.py": "NATIVE = 1\n",
            "full_house-1.0.dist-info/licenses/LICENSE": "free\n",
        },
        entry_points={"full": "full_house:main", "full-nested": "full_house.cli:App.main"},
        executable=["full_house/run.sh"],
    )


def test_everything_goes_where_the_standard_says(full_wheel: Path) -> None:
    assert sorted(entries_of(full_wheel)) == sorted(
        [
            "opt/venv/bin/full",
            "opt/venv/bin/full-nested",
            "opt/venv/bin/script",
            "opt/venv/bin/shell",
            "opt/venv/bin/windowed",
            "opt/venv/include/site/python3.11/full-house/full.h",
            "opt/venv/share/full/manual",
            *(
                f"{SITE}/{path}"
                for path in (
                    "full_extra.py",
                    "full_native.py",
                    "full_house/__init__.py",
                    "full_house/large.bin",
                    "full_house/empty.txt",
                    "full_house/run.sh",
                    "full_house-1.0.dist-info/INSTALLER",
                    "full_house-1.0.dist-info/METADATA",
                    "full_house-1.0.dist-info/RECORD",
                    "full_house-1.0.dist-info/WHEEL",
                    "full_house-1.0.dist-info/entry_points.txt",
                    "full_house-1.0.dist-info/licenses/LICENSE",
                )
            ),
        ]
    )


def test_scripts_start_the_python_of_the_environment(full_wheel: Path) -> None:
    entries = entries_of(full_wheel)
    assert text_of(entries["opt/venv/bin/script"]) == "#!/opt/venv/bin/python3\nprint(1)\n"
    assert text_of(entries["opt/venv/bin/windowed"]) == "#!/opt/venv/bin/python3\nprint(1)\n"
    assert text_of(entries["opt/venv/bin/shell"]) == "#!/bin/sh\nexit 0\n"
    assert "from full_house import main\n" in text_of(entries["opt/venv/bin/full"])
    nested = text_of(entries["opt/venv/bin/full-nested"])
    assert nested.startswith("#!/opt/venv/bin/python3\n")
    assert "from full_house.cli import App\n" in nested
    assert "sys.exit(App.main())" in nested


def test_scripts_and_what_the_wheel_marks_are_executable_and_nothing_else(full_wheel: Path) -> None:
    executable = {path for path, entry in entries_of(full_wheel).items() if entry.mode == 0o755}
    scripts = ("full", "full-nested", "script", "shell", "windowed")
    assert executable == {f"{SITE}/full_house/run.sh", *(f"opt/venv/bin/{name}" for name in scripts)}
    assert {entry.mode for entry in entries_of(full_wheel).values()} == {0o755, 0o644}


def test_the_umask_does_not_matter(full_wheel: Path) -> None:
    before = wheel_entries(full_wheel, full_wheel.name, ENVIRONMENT)
    previous = os.umask(0o077)
    try:
        assert wheel_entries(full_wheel, full_wheel.name, ENVIRONMENT) == before
    finally:
        os.umask(previous)


def test_the_record_lists_what_is_there_with_true_hashes(full_wheel: Path, tmp_path: Path) -> None:
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


def test_large_members_are_referred_to_and_not_read(full_wheel: Path, wheel_factory: WheelFactory) -> None:
    assert isinstance(entries_of(full_wheel)[f"{SITE}/full_house/large.bin"].content, DeflatedSlice)
    stored = wheel_factory("stored", files={"large.bin": LARGE}, stored=True)
    assert isinstance(entries_of(stored)[f"{SITE}/large.bin"].content, RawSlice)


def test_how_it_was_installed_is_not_for_the_wheel_to_say(wheel_factory: WheelFactory) -> None:
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


def test_paths_that_another_wheel_wins_are_left_out_and_not_recorded(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("loser", files={"shared.py": "LOSER = 1\n", "own.py": ""})
    entries = entries_of(wheel, without=["lib/python3.11/site-packages/shared.py"])
    assert f"{SITE}/shared.py" not in entries
    assert f"{SITE}/own.py" in entries
    assert "shared.py" not in text_of(entries[f"{SITE}/loser-1.0.dist-info/RECORD"])


def lie(text: str) -> str:
    """Swap the first sha256 of a RECORD for that of something else."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"something else").digest()).rstrip(b"=").decode()
    first = text.split("sha256=", 1)[1].split(",", 1)[0]
    return text.replace(first, digest, 1)


def test_a_record_that_is_known_to_be_wrong_can_be_put_right(
    wheel_factory: WheelFactory, tmp_path: Path
) -> None:
    wheel = wheel_factory("wrong", files={"large.bin": LARGE}, record=lie)
    root = unpacked(tmp_path, wheel, rehash=True)
    record = (root / SITE / "wrong-1.0.dist-info" / "RECORD").read_text()
    true = base64.urlsafe_b64encode(hashlib.sha256(LARGE).digest()).rstrip(b"=").decode()
    assert f"large.bin,sha256={true},{len(LARGE)}" in record


@pytest.mark.parametrize(
    ("content", "stored"),
    [(LARGE, False), (LARGE, True), (b"small", False), (b"small", True)],
    ids=["copied", "stored", "small", "small and stored"],
)
def test_a_record_that_lies_is_found_out(
    wheel_factory: WheelFactory, tmp_path: Path, content: bytes, *, stored: bool
) -> None:
    wheel = wheel_factory("liar", files={"file.bin": content}, record=lie, stored=stored)
    with pytest.raises(DamagedFileError, match=r"file\.bin is not what its wheel's RECORD says") as caught:
        unpacked(tmp_path, wheel)
    assert caught.value.where == str(wheel)


def test_a_record_that_lies_about_a_script_is_found_out(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("liar", files={"liar-1.0.data/scripts/tool": "#!python\n"}, record=lie)
    with pytest.raises(BadWheelError, match=r"liar-1\.0-py3-none-any\.whl") as caught:
        entries_of(wheel)
    assert "tool is not what its RECORD says" in caught.value.why


def rename(wheel: Path, old: str, new: str, mode: int | None = None) -> Path:
    """Return a member another name, which no well-meaning tool would write."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, data in members:
            changed = zipfile.ZipInfo(info.filename)
            changed.external_attr = info.external_attr
            if info.filename == old:
                changed.filename = new  # past the cleaning that ZipInfo does
                changed.external_attr = (mode or 0o100644) << 16
            archive.writestr(changed, data.replace(old.encode(), new.encode()))
    return wheel


UNSAFE = {
    "a path that climbs out": "../outside.py",
    "a path that climbs out in the middle": "good/../../outside.py",
    "a path that climbs out of a scheme": "unsafe-1.0.data/data/../../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "a path of another system": "..\\outside.py",
    "a path with an empty part": "good//bad.py",
    "a path with a dot": "./good.py",
    "a control character": "good\nbad.py",
    "a whiteout": "good/.wh.other.py",
    "an opaque whiteout": "good/.wh..wh..opq",
}


@pytest.mark.parametrize("path", UNSAFE.values(), ids=UNSAFE)
def test_a_wheel_with_an_unsafe_path_is_refused(wheel_factory: WheelFactory, path: str) -> None:
    wheel = rename(wheel_factory("unsafe", files={"placeholder.py": ""}), "placeholder.py", path)
    with pytest.raises(BadWheelError, match=r"unsafe-1\.0-py3-none-any\.whl cannot be installed") as caught:
        entries_of(wheel)
    assert "path" in caught.value.why


@pytest.mark.parametrize(
    "kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO], ids=["symlink", "device", "pipe"]
)
def test_a_wheel_holds_files_only(wheel_factory: WheelFactory, kind: int) -> None:
    wheel = rename(wheel_factory("odd", files={"thing": "/etc/passwd"}), "thing", "thing", kind | 0o777)
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel)
    assert "thing is a link or a device" in caught.value.why


def test_a_member_that_stands_twice_is_refused(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("twice", files={"a.py": "", "b.py": ""})
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("a.py", "other")
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel)
    assert "a.py stands in it twice" in caught.value.why


@pytest.mark.parametrize(
    "path", ["scripts/python", "scripts/python3", "scripts/python3.11", "data/pyvenv.cfg", "data/lib64/x.so"]
)
def test_a_wheel_cannot_replace_what_belongs_to_the_environment(
    wheel_factory: WheelFactory, path: str
) -> None:
    wheel = wheel_factory("grabby", files={f"grabby-1.0.data/{path}": "mine\n"})
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel)
    assert "of the environment" in caught.value.why


def test_two_files_of_a_wheel_cannot_be_one_path(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory(
        "double", files={"double-1.0.data/scripts/tool": "#!python\n"}, entry_points={"tool": "double:main"}
    )
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel)
    assert "Two of its files want to be bin/tool" in caught.value.why


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("..", "m:f"),
        ("a/b", "m:f"),
        (".wh.x", "m:f"),
        ("a b", "m:f"),
        ("ok", "m:f()"),
        ("ok", "m;x:f"),
        ("ok", "m:"),
    ],
)
def test_an_entry_point_that_is_not_one_is_refused(
    wheel_factory: WheelFactory, name: str, target: str
) -> None:
    with pytest.raises(BadWheelError):
        entries_of(wheel_factory("pointed", entry_points={name: target}))


def test_a_wheel_that_claims_to_be_endless_is_refused(
    wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefactory.build.layers.wheel_layer.MAX_UNPACKED", 1000)
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel_factory("endless", files={"zeros": bytes(2000)}))
    assert "claims to unpack to" in caught.value.why


def without_record(_: str) -> None:
    return None


BROKEN: dict[str, dict[str, object]] = {
    "no RECORD": {"record": without_record},
    "a file that RECORD does not have": {"record": lambda text: text.split("\n", 1)[1]},
    "a hash that is not one": {"record": lambda text: text.replace("sha256=", "sha256=é", 1)},
    "a weak hash": {"record": lambda text: text.replace("sha256=", "md5=")},
    "a RECORD that is not a table": {"record": lambda text: "one field only\n" + text},
}


@pytest.mark.parametrize("options", BROKEN.values(), ids=BROKEN)
def test_a_broken_wheel_is_named(wheel_factory: WheelFactory, options: dict[str, object]) -> None:
    with pytest.raises(BadWheelError, match=r"broken-1\.0-py3-none-any\.whl cannot be installed"):
        entries_of(wheel_factory("broken", "1.0", **options))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut in half"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"<html>not found</html>", id="not a zip"),
    ],
)
def test_a_file_that_is_not_a_wheel_is_named(
    wheel_factory: WheelFactory, spoil: Callable[[bytes], bytes]
) -> None:
    wheel = wheel_factory("spoiled")
    wheel.write_bytes(spoil(wheel.read_bytes()))
    with pytest.raises(BadWheelError, match="spoiled"):
        entries_of(wheel)


def test_an_encrypted_or_oddly_compressed_member_is_refused(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("odd", files={"a.py": "x = 1\n"})
    with zipfile.ZipFile(wheel) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_BZIP2) as archive:
        for name, data in members:
            archive.writestr(name, data)
    with pytest.raises(BadWheelError) as caught:
        entries_of(wheel)
    assert "compressed in a way that wheels do not use" in caught.value.why


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_no_damage_leads_to_anything_but_an_error_with_a_remedy(
    full_wheel: Path, tmp_path: Path, changes: list[tuple[float, int]]
) -> None:
    """Either the damage does no harm (a time stamp, say), or the build ends with a message."""
    data = bytearray(full_wheel.read_bytes())
    for where, change in changes:
        data[min(int(where * len(data)), len(data) - 1)] ^= change
    spoiled = tmp_path / "spoiled" / full_wheel.name
    spoiled.parent.mkdir(exist_ok=True)
    spoiled.write_bytes(bytes(data))
    with suppress(BadWheelError, DamagedFileError, DuplicatePathError):
        unpacked(tmp_path, spoiled)


def test_a_distribution_can_be_found_under_a_second_name(tmp_path: Path) -> None:
    for entry in metadata_entries(SecondName(name="vllm", version="1.0+cpu"), ENVIRONMENT):
        path = tmp_path / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(entry.content, Bytes)
        path.write_bytes(entry.content.data)
    [distribution] = importlib.metadata.distributions(path=[str(tmp_path / SITE)])
    assert (distribution.metadata["Name"], distribution.version) == ("vllm", "1.0+cpu")
    for file in distribution.files or ():
        assert file.hash is None or file.hash.value == _hash(tmp_path / SITE / str(file))


def _hash(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
