"""After a power failure, objects that may not have reached the disk are compiled again, and no others."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from imagefactory.compile import power_loss
from imagefactory.compile.power_loss import MARK, drop_doubtful, marked


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder with an object from before the mark, one from after, an empty one, and ninja's files."""
    build = tmp_path / "build"
    (build / "dir").mkdir(parents=True)
    (build / "dir" / "old.cu.o").write_text("whole")
    (build / "empty.o").touch()
    (build / "empty.txt").touch()
    for path in build.rglob("*"):
        os.utime(path, (1000, 1000))
    for name in ("new.cu.o", ".ninja_log", ".ninja_deps"):
        (build / name).write_text("after")
    (tmp_path / MARK).write_text(json.dumps({"boot": "one", "flushed": time.time() - 30}))
    return build


def names(build: Path) -> set[str]:
    return {path.name for path in build.rglob("*") if path.is_file()}


def test_files_written_since_the_mark_are_removed_after_another_boot(build: Path) -> None:
    assert drop_doubtful(build.parent, build, boot="two") == 2
    assert names(build) == {"old.cu.o", "empty.txt", ".ninja_log", ".ninja_deps"}


def test_nothing_is_removed_if_only_the_process_was_killed(build: Path) -> None:
    before = names(build)
    assert drop_doubtful(build.parent, build, boot="one") == 0
    assert names(build) == before


def test_nothing_is_removed_after_a_run_that_ended(build: Path) -> None:
    (build.parent / MARK).unlink()
    assert drop_doubtful(build.parent, build, boot="two") == 0


@pytest.mark.parametrize("text", ["", "\0\0\0", "{}", "[]", '{"boot": "one", "flushed": "soon"}'])
def test_damaged_mark_vouches_for_nothing(build: Path, text: str) -> None:
    (build.parent / MARK).write_text(text)
    drop_doubtful(build.parent, build, boot="one")
    assert names(build) == {".ninja_log", ".ninja_deps"}


def test_mark_is_there_while_the_compile_runs_and_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(power_loss, "_flush", lambda path: flushed.append(path.name))
    clock = iter([0.0, 10.0, 61.0, 61.0, 62.0])
    monkeypatch.setattr("imagefactory.compile.power_loss.time.monotonic", lambda: next(clock))
    build = tmp_path / "build"
    build.mkdir()
    with marked(tmp_path, build, boot="one") as keep_safe:
        first = json.loads((tmp_path / MARK).read_text())
        (build / "a.o").touch()
        keep_safe()
        assert flushed == [], "not a minute has passed"
        keep_safe()
        assert flushed == ["a.o"]
        assert json.loads((tmp_path / MARK).read_text())["flushed"] > first["flushed"]
        os.utime(build / "a.o", (1000, 1000))
        keep_safe()
        assert flushed == ["a.o"], "a file is flushed once"
        (build / "b.o").touch()
    assert flushed == ["a.o", "b.o"]
    assert not (tmp_path / MARK).exists()


def test_interrupted_run_leaves_no_mark(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), marked(tmp_path, tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / MARK).exists()
