"""Wheels that break a rule are refused by name, with the reason."""

import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors import InputError
from tests.fixtures.failures import raises
from tests.fixtures.wheels import WheelFactory
from tests.unit.assemble.test_wheel_layer import entries_of, full_wheel, unpacked

__all__ = ["full_wheel"]  # a fixture


def refuse(wheel: Path, name: str = "bad-wheel") -> str:
    """Return why a wheel is refused."""
    with raises(name) as caught:
        entries_of(wheel)
    assert caught.value.what.startswith(f"{wheel.name} ")
    return str(caught.value.why)


def rename(wheel: Path, old: str, new: str, mode: int = 0o100644) -> Path:
    """Give a member a name and a mode that no well-meaning tool would write."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, data in members:
            changed = zipfile.ZipInfo(info.filename)
            changed.external_attr = info.external_attr
            if info.filename == old:
                changed.filename = new  # past the cleaning that ZipInfo does
                changed.external_attr = mode << 16
            archive.writestr(changed, data.replace(old.encode(), new.encode()))
    return wheel


@pytest.mark.parametrize(
    "path",
    [
        *("../outside.py", "good/../../outside.py", "unsafe-1.0.data/data/../../../etc/passwd"),
        *("/etc/passwd", "..\\outside.py", "good//bad.py", "./good.py", "good\nbad.py"),
        *("good/.wh.other.py", "good/.wh..wh..opq"),
    ],
)
def test_unsafe_path_is_refused(wheel_factory: WheelFactory, path: str) -> None:
    wheel = wheel_factory("unsafe", files={"placeholder.py": ""})
    assert "path" in refuse(rename(wheel, "placeholder.py", path), "unsafe-wheel")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO], ids=["symlink", "device", "pipe"])
def test_member_that_is_no_file_is_refused(wheel_factory: WheelFactory, kind: int) -> None:
    wheel = rename(wheel_factory("odd", files={"thing": "/etc/passwd"}), "thing", "thing", kind | 0o777)
    assert "thing is a link or a device" in refuse(wheel, "unsafe-wheel")


def test_duplicate_member_is_refused(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("twice", files={"a.py": "", "b.py": ""})
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("a.py", "other")
    assert "a.py occurs twice" in refuse(wheel)


@pytest.mark.parametrize(
    "path",
    [
        *("scripts/python", "scripts/python3.13t", "scripts/pythonw", "data/bin", "data/bin/python3/x"),
        *("data/pyvenv.cfg", "data/lib64", "data/lib64/x.so", "data/lib"),
        "data/lib/python3.11/site-packages",
    ],
)
def test_wheel_cannot_replace_files_of_the_environment(wheel_factory: WheelFactory, path: str) -> None:
    wheel = wheel_factory("grabby", files={f"grabby-1.0.data/{path}": "mine\n"})
    assert "of the environment" in refuse(wheel, "unsafe-wheel")


def test_wheel_may_have_a_program_whose_name_begins_with_python(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("helper", files={"helper-1.0.data/scripts/python-helper": "#!python\n"})
    assert "opt/venv/bin/python-helper" in entries_of(wheel)


def test_two_files_with_one_path_are_refused(wheel_factory: WheelFactory) -> None:
    script = {"double-1.0.data/scripts/tool": "#!python\n"}
    wheel = wheel_factory("double", files=script, entry_points={"tool": "double:main"})
    assert "Two of its files have the path bin/tool" in refuse(wheel)


@pytest.mark.parametrize(
    ("name", "target"),
    [("..", "m:f"), ("a/b", "m:f"), (".wh.x", "m:f"), ("ok", "m:f()"), ("ok", "m;x:f"), ("ok", "m:")],
)
def test_malformed_entry_point_is_refused(wheel_factory: WheelFactory, name: str, target: str) -> None:
    assert refuse(wheel_factory("pointed", entry_points={name: target}))


def test_zip_bomb_is_refused(wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.assemble.layers.wheel_layer.MAX_UNPACKED", 1000)
    wheel = wheel_factory("endless", files={"zeros": bytes(2000)})
    assert "claims to unpack to" in refuse(wheel, "unsafe-wheel")


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(lambda _: None, id="no RECORD"),
        pytest.param(lambda text: text.split("\n", 1)[1], id="a file that RECORD does not have"),
        pytest.param(lambda text: text.replace("sha256=", "sha256=é", 1), id="a hash that is not one"),
        pytest.param(lambda text: text.replace("sha256=", "md5="), id="a weak hash"),
        pytest.param(lambda text: "one field only\n" + text, id="not a table"),
    ],
)
def test_broken_record_is_refused(wheel_factory: WheelFactory, record: Callable[[str], str | None]) -> None:
    assert refuse(wheel_factory("broken", record=record))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut in half"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"<html>not found</html>", id="not a zip"),
    ],
)
def test_file_that_is_no_wheel_is_refused(wheel_factory: WheelFactory, spoil: Callable[[bytes], bytes]) -> None:
    wheel = wheel_factory("spoiled")
    wheel.write_bytes(spoil(wheel.read_bytes()))
    assert refuse(wheel)


def test_member_with_unusual_compression_is_refused(wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("odd", files={"a.py": "x = 1\n"})
    with zipfile.ZipFile(wheel) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_BZIP2) as archive:
        for name, data in members:
            archive.writestr(name, data)
    assert "compressed in a way that wheels do not use" in refuse(wheel)


@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_wheel_is_harmless_or_an_error_with_a_remedy(
    full_wheel: Path, tmp_path: Path, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(full_wheel.read_bytes())
    for where, change in changes:
        data[min(int(where * len(data)), len(data) - 1)] ^= change
    spoiled = tmp_path / "spoiled" / full_wheel.name
    spoiled.parent.mkdir(exist_ok=True)
    spoiled.write_bytes(bytes(data))
    with suppress(InputError):
        unpacked(tmp_path, spoiled)
