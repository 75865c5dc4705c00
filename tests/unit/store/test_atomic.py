"""Files are written atomically, and a full disk is reported as such."""

import errno
import os
from pathlib import Path

import pytest

from imagefactory.store.atomic import adopt, translating_disk_full, write_text, writing
from tests.fixtures.failures import raises


def test_file_appears_when_it_is_finished_and_an_unfinished_one_is_deleted(tmp_path: Path) -> None:
    target = tmp_path / "new" / "abc"
    with pytest.raises(KeyboardInterrupt), writing(target):
        raise KeyboardInterrupt
    assert list(target.parent.iterdir()) == []
    with writing(target) as file:
        file.write(b"all of it")
        assert not target.exists()
    assert target.read_bytes() == b"all of it"
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


def test_adopted_file_is_readable_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        adopt(file, tmp_path / "new" / "abc")
    finally:
        os.umask(previous)
    assert (tmp_path / "new" / "abc").stat().st_mode & 0o777 == 0o644
    assert not file.exists()


def test_text_is_replaced_and_keeps_its_line_endings(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "first")
    write_text(tmp_path / "text", "ä\r\nb\n")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa4\r\nb\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_full_disk_has_a_remedy_and_other_errors_are_not_translated(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        with raises("disk-full") as caught, translating_disk_full(tmp_path):
            raise OSError(number, os.strerror(number))
        assert "./inv clean" in caught.value.fix
        assert caught.value.where == str(tmp_path)
    with pytest.raises(PermissionError), translating_disk_full(tmp_path):
        raise PermissionError
