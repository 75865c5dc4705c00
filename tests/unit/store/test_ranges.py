"""Reading parts of remote files, from servers with and without ranges."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagefactory.store.http import SMALL, WINDOW, RangeFile, RangesRefusedError
from tests.fixtures.servers import Answer, SimpleIndex, scripted

CONTENT = bytes(index * 7 % 251 for index in range(5 * WINDOW + 17))


@pytest.fixture
def remote(simple_index: SimpleIndex, tmp_path: Path) -> tuple[SimpleIndex, str]:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    simple_index.add(path)
    return simple_index, f"{simple_index.server.url}/files/file.bin"


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def test_remote_file_reads_like_a_local_one(remote: tuple[SimpleIndex, str], session: requests.Session) -> None:
    file, local = RangeFile(remote[1], session), io.BytesIO(CONTENT)
    assert file.size == len(CONTENT)
    assert file.readable()
    assert file.seekable()
    for offset, whence, length in [
        (-22, io.SEEK_END, 22),
        (0, io.SEEK_SET, 10),
        (5, io.SEEK_CUR, 100),
        (WINDOW - 3, io.SEEK_SET, WINDOW + 7),
        (-5, io.SEEK_END, 50),
        (0, io.SEEK_END, 5),
        (2 * WINDOW, io.SEEK_SET, -1),
        (len(CONTENT) + 10, io.SEEK_SET, 3),
    ]:
        assert file.seek(offset, whence) == local.seek(offset, whence)
        assert file.read(length) == local.read(length)
        assert file.tell() == local.tell()


def test_end_of_a_file_takes_one_request(remote: tuple[SimpleIndex, str], session: requests.Session) -> None:
    index, url = remote
    file = RangeFile(url, session)
    file.seek(-WINDOW, io.SEEK_END)
    assert len(file.read()) == WINDOW
    assert index.bytes_served("file.bin") == WINDOW


def test_small_file_is_read_whole_from_a_server_without_ranges(
    remote: tuple[SimpleIndex, str], session: requests.Session
) -> None:
    index, url = remote
    index.ranges = False
    file = RangeFile(url, session)
    file.seek(3)
    assert file.read(5) == CONTENT[3:8]
    assert len(index.log) == 1


def test_large_file_is_refused_from_a_server_without_ranges(
    simple_index: SimpleIndex, tmp_path: Path, session: requests.Session
) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(SMALL + 1))
    simple_index.add(path)
    simple_index.ranges = False
    with pytest.raises(RangesRefusedError, match="200"):
        RangeFile(f"{simple_index.server.url}/files/large.bin", session)


@pytest.mark.parametrize("headers", [{}, {"Content-Range": "bytes 0-3/*"}])
def test_range_is_refused_without_a_valid_content_range(session: requests.Session, headers: dict[str, str]) -> None:
    with (
        scripted(lambda _: Answer(b"abcd", 206, headers)) as server,
        pytest.raises(RangesRefusedError, match="which range"),
    ):
        RangeFile(server.url, session)
