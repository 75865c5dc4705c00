"""The files of a KV cache: never more than the limit, whatever is killed, and never a wrong answer."""

import errno
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from images.serve.hook import imagefactory_kv_files as kv
from images.serve.hook.imagefactory_kv_files import PAGE, Files, InUseError, last_use
from tests.fixtures.engines import wait_until
from tests.fixtures.serving import REPOSITORY

PLACE, OTHER = "0" * 32, "1" * 32
SIZE = PAGE
FILE = PAGE + SIZE
HOOK = REPOSITORY / "images" / "serve" / "hook"

CHURN = """
import hashlib, mmap, os, random, sys, threading, time
from imagefactory_kv_files import Files
folder, place, limit, seed, log = sys.argv[1:]
files, seed, log = Files(folder, place, int(limit)), int(seed), os.open(log, os.O_WRONLY | os.O_APPEND)
def churn(seed):
    chance, data = random.Random(seed), mmap.mmap(-1, 4096)
    while True:
        name = hashlib.sha256(str(chance.randrange(400)).encode()).hexdigest()
        content = bytes.fromhex(name) * 128
        deed = chance.randrange(10)
        if deed < 6:
            data[:] = content
            files.write(name, memoryview(data), time.time_ns() - chance.randrange(10**12))
            os.write(log, b"w")
        elif deed < 9 and files.read(name, memoryview(data)) and data[:] != content:
            os.write(log, b"!")
        else:
            files.touch([(name, time.time_ns())])
for thread in range(4):
    threading.Thread(target=churn, args=(seed * 4 + thread,)).start()
"""


def page(content: bytes = b"") -> memoryview:
    data = mmap.mmap(-1, SIZE)
    data[: len(content)] = content
    return memoryview(data)


def named(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def on_disk(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".kv", ".tmp"}]


def size_of(folder: Path) -> int:
    total = 0
    for path in on_disk(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_ten_thousand_writes_and_many_kills_exceed_no_limit_and_leave_no_wrong_data(tmp_path: Path) -> None:
    folder, log = tmp_path / "kv", tmp_path / "log"
    folder.mkdir()
    log.touch()
    limit, chance, kills, most = 100 * FILE + 7, random.Random(5), 0, 0
    while log.stat().st_size < 10_000 or kills < 10:
        command = [sys.executable, "-B", "-c", CHURN, str(folder), PLACE, str(limit), str(kills), str(log)]
        child = subprocess.Popen(command, env={"PYTHONPATH": str(HOOK)})
        before = log.stat().st_size
        wait_until(lambda: log.stat().st_size > before + 10, 60)  # noqa: B023
        time.sleep(chance.uniform(0, 0.15))
        most = max(most, size_of(folder))  # while it writes: what is listed and then gone only makes it less
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
        assert size_of(folder) <= limit
    assert b"!" not in log.read_bytes(), "a read gave the data of something else"
    assert most <= limit
    files = Files(str(folder), PLACE, limit)
    assert not [path for path in on_disk(folder) if path.suffix == ".tmp"], "what the killed were writing is gone"
    assert files.total == size_of(folder) == len(files) * FILE
    into = page()
    for number in (number for number in range(400) if named(number) in files):
        assert files.read(named(number), into)
        assert into == bytes.fromhex(named(number)) * 128


def test_the_least_recently_used_go_first_also_after_a_restart(tmp_path: Path) -> None:
    files = Files(str(tmp_path), PLACE, 4 * FILE)
    day = 86400 * 10**9
    began = time.time_ns() - 9 * day
    for number in range(4):
        assert files.write(named(number), page(), began + number * day)
    files.touch([(named(0), began + 5 * day), (named(1), began - day)])
    files.close()
    files = Files(str(tmp_path), PLACE, 4 * FILE)
    for number in (4, 5):
        assert files.write(named(number), page(), began + (2 + number) * day)
    assert [number for number in range(6) if named(number) in files] == [0, 3, 4, 5]
    assert files.total == 4 * FILE == size_of(tmp_path)


@pytest.mark.parametrize("seconds", [3, 30])
def test_after_a_restart_too_the_end_of_a_conversation_goes_before_its_beginning(tmp_path: Path, seconds: int) -> None:
    files, now = Files(str(tmp_path), PLACE, 60 * FILE), time.time_ns() - 3600 * 10**9
    for turn in range(60):  # each uses what is there, and brings one part more
        began = now + turn * seconds * 10**9
        files.touch([(named(part), last_use(began, 16 * (part + 1))) for part in range(turn)])
        assert files.write(named(turn), page(), last_use(began, 16 * (turn + 1)))
    files.close()
    files = Files(str(tmp_path), PLACE, 60 * FILE)
    for number in range(100, 120):  # another conversation
        assert files.write(named(number), page(), last_use(time.time_ns(), 16 * (number - 99)))
    assert [part for part in range(60) if named(part) in files] == list(range(40))


def test_what_running_requests_use_is_kept_and_nothing_more_is_written(tmp_path: Path) -> None:
    files = Files(str(tmp_path), PLACE, 2 * FILE)
    assert files.write(named(0), page(), 100)
    assert files.write(named(1), page(), 200)
    assert not files.write(named(2), page(), 300, keep=100)
    assert files.write(named(2), page(), 300, keep=200), "the first is older than that"
    assert [number for number in range(3) if named(number) in files] == [1, 2]


def test_a_file_that_is_read_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, reading, go_on, readv = Files(str(tmp_path), PLACE, 2 * FILE), threading.Event(), threading.Event(), os.readv

    def slow(*arguments: object) -> int:
        reading.set()
        go_on.wait(60)
        return readv(*arguments)  # type: ignore[arg-type]

    assert files.write(named(0), page(b"oldest"), 1)
    assert files.write(named(1), page(), 2)
    monkeypatch.setattr(os, "readv", slow)
    into, right = page(), []
    reader = threading.Thread(target=lambda: right.append(files.read(named(0), into)))
    reader.start()
    assert reading.wait(60)
    assert files.write(named(2), page(), 3)
    assert [number for number in range(3) if named(number) in files] == [0, 2]
    go_on.set()
    reader.join()
    assert right == [True]
    assert bytes(into[:6]) == b"oldest"


@pytest.mark.parametrize("damage", ["truncated", "emptied", "longer", "head", "data", "another's", "vanished"])
def test_a_damaged_file_is_a_miss(tmp_path: Path, damage: str) -> None:
    files = Files(str(tmp_path), PLACE, 10 * FILE)
    files.write(named(0), page(b"right"), 1)
    files.write(named(1), page(b"other"), 1)
    path, other = (next(tmp_path.rglob(f"{named(number)}.kv")) for number in (0, 1))
    content = bytearray(path.read_bytes())
    if damage == "vanished":
        path.unlink()
    elif damage == "another's":
        path.write_bytes(other.read_bytes())
    else:
        changed = {"truncated": content[:-1], "emptied": bytearray(), "longer": content + b"x"}
        if damage in {"head", "data"}:
            content[70 if damage == "head" else PAGE + 100] ^= 1
        path.write_bytes(changed.get(damage, content))
    assert not files.read(named(0), page())
    assert named(0) not in files
    assert not path.exists()
    assert files.total == FILE
    assert files.write(named(0), page(b"again"), 2), "it can be written again"
    into = page()
    assert files.read(named(0), into)
    assert bytes(into[:5]) == b"again"


def test_another_place_is_not_read_but_counts_and_goes_first(tmp_path: Path) -> None:
    files = Files(str(tmp_path), OTHER, 3 * FILE)
    for number in range(3):
        files.write(named(number), page(), 1 + number)
    files.close()
    files = Files(str(tmp_path), PLACE, 3 * FILE)
    assert named(0) not in files
    assert not files.read(named(0), page())
    assert files.total == 3 * FILE
    assert files.write(named(0), page(b"mine"), 10)
    assert size_of(tmp_path) == 3 * FILE
    assert size_of(tmp_path / OTHER) == 2 * FILE


def test_a_smaller_limit_and_one_below_a_file_just_work(tmp_path: Path) -> None:
    files = Files(str(tmp_path), PLACE, 10 * FILE)
    for number in range(10):
        files.write(named(number), page(), 1 + number)
    files.close()
    files = Files(str(tmp_path), PLACE, 3 * FILE)
    assert [number for number in range(10) if named(number) in files] == [7, 8, 9]
    files.close()
    files = Files(str(tmp_path), PLACE, FILE - 1)
    assert not files.write(named(1), page(), 1)
    assert on_disk(tmp_path) == []


def test_only_files_of_its_own_are_counted_and_deleted(tmp_path: Path) -> None:
    mine = tmp_path / PLACE / "ab" / f"{named(0)}.kv.tmp"
    others = [tmp_path / "photos" / "a.kv", tmp_path / PLACE / "ab" / "notes.txt", tmp_path / "big.bin"]
    for path in (mine, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 9999)
    files = Files(str(tmp_path), PLACE, FILE)
    assert files.total == 0
    assert not mine.exists()
    assert files.write(named(1), page(), 1)
    assert files.write(named(2), page(), 2)
    assert all(path.exists() for path in others)


def test_a_full_disk_is_no_error_and_gives_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(str(tmp_path), PLACE, 10 * FILE)
    for number in range(3):
        files.write(named(number), page(), 1 + number)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        assert not files.write(named(3), page(), 4)
        files.close()
        patched.setattr(os, "write", full)
        files = Files(str(tmp_path), PLACE, 10 * FILE)  # and a server starts
    assert [number for number in range(4) if named(number) in files] == [1, 2]
    assert files.total == 2 * FILE == size_of(tmp_path)
    assert files.write(named(3), page(), 4)


def test_one_process_uses_a_folder_and_a_killed_one_does_not_keep_it(tmp_path: Path) -> None:
    files = Files(str(tmp_path), PLACE, FILE)
    with pytest.raises(InUseError, match="another server uses"):
        Files(str(tmp_path), OTHER, FILE)
    files.close()
    program = "import sys, imagefactory_kv_files as kv; kv.Files(*sys.argv[1:], 9); print(1, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-B", "-c", program, str(tmp_path), PLACE],
        env={"PYTHONPATH": str(HOOK)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    assert child.stdout.readline() == b"1\n"
    with pytest.raises(InUseError):
        Files(str(tmp_path), PLACE, FILE)
    child.kill()
    child.communicate()
    Files(str(tmp_path), PLACE, FILE).close()


def test_it_works_without_direct_access_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv.Files, "_takes_direct", lambda _: False)
    files = Files(str(tmp_path), PLACE, 2 * FILE)
    assert files.write(named(0), page(b"data"), 1)
    into = page()
    assert files.read(named(0), into)
    assert bytes(into[:4]) == b"data"
