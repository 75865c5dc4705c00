"""Files are written whole or not at all, and a full disk is reported as one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagefactory.errors.store import DiskFullError
from imagefactory.store.atomic import adopt, translating_disk_full, write_text, writing


def test_a_file_appears_when_it_is_finished(tmp_path: Path) -> None:
    target = tmp_path / "new" / "abc"
    with writing(target) as file:
        file.write(b"all of it")
        assert not target.exists()
    assert target.read_bytes() == b"all of it"
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_that_is_not_finished_vanishes(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "new" / "abc"
    with pytest.raises(error), writing(target):
        raise error
    assert list(target.parent.iterdir()) == []


def test_others_may_read_what_is_adopted_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        adopt(file, tmp_path / "new" / "abc")
    finally:
        os.umask(previous)
    assert (tmp_path / "new" / "abc").stat().st_mode & 0o777 == 0o644
    assert not file.exists()


def test_a_text_replaces_another_with_its_line_ends_as_they_are(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "first")
    write_text(tmp_path / "text", "ä\r\nb\n")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa4\r\nb\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_remedy(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFullError) as caught, translating_disk_full(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "invoke clean" in caught.value.fix
    assert caught.value.where == str(tmp_path)


def test_other_failures_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), translating_disk_full(tmp_path):
        raise PermissionError
