"""Downloads: continued, checked, each file once, and stopped at once."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest
import requests
from filelock import FileLock

from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of
from imagefactory.store.downloads import RETRY, Downloader, Wanted, fetch
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, Asked, scripted
from tests.fixtures.small_factory import noise

DATA = noise(3_000_000)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.store.downloads.RETRY", Retry(pause=0))


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def wanted(*locations: str, data: bytes = DATA) -> Wanted:
    return Wanted("thing.whl", sha256_of(data), len(data), lambda: list(locations))


def get(store: Store, session: requests.Session, *locations: str, data: bytes = DATA) -> Path:
    return fetch(wanted(*locations, data=data), store, session, lambda _: None)


def leave_part(store: Store, data: bytes) -> Path:
    """Leave a partial download in the store; return the path of the complete file."""
    target = store.download(sha256_of(DATA))
    target.parent.mkdir(parents=True)
    target.with_suffix(".part").write_bytes(data)
    return target


def whole(asked: Asked) -> Answer:
    """Serve the file, or the requested range."""
    start = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    if not start:
        return Answer(DATA)
    if start >= len(DATA):
        return Answer(status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
    span = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
    return Answer(DATA[start:], HTTPStatus.PARTIAL_CONTENT, {"Content-Range": span})


def dying(asked: Asked) -> Answer:
    """Serve the file, but break the first connection in the middle."""
    return whole(asked) if "range" in asked.headers else Answer(DATA[:1_000_000], headers={"Content-Length": "3000000"})


def test_file_is_downloaded_once_and_kept(store: Store, session: requests.Session) -> None:
    told: list[int] = []
    with scripted(whole) as server:
        found = fetch(wanted(f"{server.url}/thing"), store, session, told.append)
        assert found.read_bytes() == DATA
        assert told == sorted(told)
        assert told[-1] == len(DATA)
        assert get(store, session, f"{server.url}/thing") == store.download(sha256_of(DATA))
        assert len(server.log) == 1


def test_download_continues_after_a_broken_connection(store: Store, session: requests.Session) -> None:
    with scripted(dying) as server:
        assert get(store, session, f"{server.url}/thing").read_bytes() == DATA
        first, second = (entry.headers.get("range") for entry in server.log)
    assert first is None
    assert second is not None
    assert 800_000 < int(second.removeprefix("bytes=").removesuffix("-")) <= 1_000_000


def test_download_of_a_killed_process_is_continued(store: Store, session: requests.Session) -> None:
    target = leave_part(store, DATA[:2_000_000])
    with scripted(whole) as server:
        get(store, session, f"{server.url}/thing")
        [entry] = server.log
    assert (entry.headers["range"], entry.sent) == ("bytes=2000000-", 1_000_000)
    assert target.read_bytes() == DATA
    assert not target.with_suffix(".part").exists()


@pytest.mark.parametrize("left", [b"another beginning" * 1000, DATA + b"more"])
def test_wrong_beginning_is_discarded(store: Store, session: requests.Session, left: bytes) -> None:
    leave_part(store, left)
    with scripted(whole) as server:
        assert get(store, session, f"{server.url}/thing").read_bytes() == DATA
        assert len(server.log) == 2


def test_download_restarts_when_the_server_does_not_support_ranges(store: Store, session: requests.Session) -> None:
    leave_part(store, DATA[:2_000_000])
    with scripted(lambda _: Answer(DATA)) as server:
        assert get(store, session, f"{server.url}/thing").read_bytes() == DATA


@pytest.mark.parametrize("content", [DATA[:-1] + b"!", DATA[:1000]], ids=["other bytes", "shorter"])
def test_wrong_file_is_refused_after_one_attempt(store: Store, session: requests.Session, content: bytes) -> None:
    with scripted(lambda _: Answer(content)) as server:
        with raises("wrong-digest", match=r"thing\.whl is not the file that was locked") as caught:
            get(store, session, f"{server.url}/thing")
        assert len(server.log) == 1
    assert sha256_of(DATA) in caught.value.why
    assert not list((store.root / "downloads").glob("**/*.part"))
    assert not store.download(sha256_of(DATA)).exists()


@pytest.mark.parametrize(
    "endless",
    [
        Answer(bytes(40_000_000)),
        Answer(headers={"Content-Length": str(2**40)}),
        Answer(
            b"100000\r\n%b\r\n" % bytes(2**20) * 40, headers={"Content-Length": "100", "Transfer-Encoding": "chunked"}
        ),
    ],
    ids=["larger", "said to be larger", "said to be right"],
)
def test_download_stops_at_the_locked_size(store: Store, session: requests.Session, endless: Answer) -> None:
    told: list[int] = []
    item = Wanted("thing.whl", sha256_of(DATA), 100, lambda: [f"{server.url}/thing"])
    with scripted(lambda _: endless) as server, raises("wrong-digest", match="not the file"):
        fetch(item, store, session, told.append)
    assert max(told, default=0) <= 100
    assert not list((store.root / "downloads").glob("**/*.part"))


def test_local_file_that_is_larger_than_the_locked_size_is_not_copied(
    store: Store, session: requests.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thing.whl").write_bytes(DATA + b"more")
    monkeypatch.setattr("imagefactory.store.downloads.shutil.copyfile", lambda *_: pytest.fail("copied"))
    with raises("wrong-digest", match="not the file"):
        get(store, session, str(tmp_path / "thing.whl"))


def test_next_location_is_tried(store: Store, session: requests.Session, tmp_path: Path) -> None:
    local = tmp_path / "thing.whl"
    local.write_bytes(DATA)
    with scripted(lambda _: Answer(b"wrong")) as server:
        places = [f"{server.url}/wrong", str(tmp_path / "missing.whl"), local.as_uri()]
        assert get(store, session, *places).read_bytes() == DATA


@pytest.mark.parametrize(
    ("status", "tries"), [(HTTPStatus.NOT_FOUND, 1), (HTTPStatus.SERVICE_UNAVAILABLE, RETRY.attempts)]
)
def test_request_is_retried_only_when_it_may_help(
    store: Store, session: requests.Session, status: HTTPStatus, tries: int
) -> None:
    with scripted(lambda _: Answer(status=status)) as server:
        with raises("download-failed", match=r"thing\.whl cannot be downloaded") as caught:
            get(store, session, server.url.replace("//", "//me:secret@"))
        assert len(server.log) == tries
    assert "secret" not in str(caught.value)


def test_unavailable_file_is_named_with_its_remedy(store: Store, session: requests.Session) -> None:
    item = Wanted("thing.deb", sha256_of(DATA), 1, list, "Lock its successor.")
    with raises("download-failed") as caught:
        fetch(item, store, session, lambda _: None)
    assert "No configured index, folder or mirror" in caught.value.why
    assert caught.value.fix == "Lock its successor."


def test_parallel_requests_download_a_file_once(store: Store, session: requests.Session) -> None:
    with scripted(whole) as server, ThreadPoolExecutor(5) as pool:
        location = f"{server.url}/thing"
        list(pool.map(lambda _: get(store, session, location), range(5)))
        assert len(server.log) == 1


def test_interruption_stops_downloads_and_keeps_partial_files(store: Store) -> None:
    arrived = threading.Event()

    def slow(_: int) -> None:
        arrived.set()
        time.sleep(0.05)

    with suppress(KeyboardInterrupt), scripted(whole) as server, Downloader(store) as downloader:
        future = downloader.submit(wanted(f"{server.url}/thing"), slow)
        arrived.wait(5)
        raise KeyboardInterrupt
    with pytest.raises(CancelledError):
        future.result(5)
    part = store.download(sha256_of(DATA)).with_suffix(".part")
    assert 0 < part.stat().st_size < len(DATA)


def test_wait_for_another_build_can_be_stopped(store: Store, session: requests.Session) -> None:
    target = store.download(Sha256("a" * 64))
    target.parent.mkdir(parents=True)
    stopped = threading.Event()
    with FileLock(target.with_suffix(".lock")), ThreadPoolExecutor(1) as pool:
        item = Wanted("x", Sha256("a" * 64), 1, list)
        future = pool.submit(fetch, item, store, session, lambda _: None, stopped)
        stopped.set()
        assert isinstance(future.exception(5), CancelledError)
