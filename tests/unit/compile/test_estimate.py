"""The work left of a compile: expected times, what earlier runs taught, and how far it may be off."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from imagefactory.commands.show.live import compile_progress
from imagefactory.compile.estimate import ObjectWork, estimate, read_work
from imagefactory.compile.job import Request
from imagefactory.compile.ninja_progress import CompileProgress
from imagefactory.compile.settings import load_settings
from imagefactory.compile.weights import learn, tell
from imagefactory.resolve.wheelhouse.keep import CompileInputs
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.ninja import TOOLS

INPUTS = CompileInputs(
    name="vllm", version="1.0", sources={}, toolchain="sha256:0", arch_list="12.1a", platform="linux/arm64"
)
EXPECTED = {f"{number}.o": 60.0 for number in range(40)}


def compiled(folder: Path, seconds: dict[str, float], *, junk: str = "") -> None:
    """Leave behind what a compile leaves: the objects that it knows of, and ninja's log."""
    tree = folder / "build" / "cmake"
    tree.mkdir(parents=True, exist_ok=True)
    record = {"folder": "cmake", "at_once": 2.0, "objects": EXPECTED}
    (folder / "build" / "objects.json").write_text(json.dumps(record))
    lines = [f"5\t{int(took * 1000) + 5}\t0\t{name}\tabc" for name, took in seconds.items()]
    (tree / ".ninja_log").write_text("# ninja log v7\n" + "\n".join(lines) + f"\n{junk}")
    for name in seconds:
        (tree / name).touch()


def test_nothing_is_known_before_ninja_starts(tmp_path: Path) -> None:
    assert read_work(tmp_path) is None
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "objects.json").write_text('{"folder": "cma')
    assert read_work(tmp_path) is None


def test_work_is_read_from_the_tree(tmp_path: Path) -> None:
    compiled(tmp_path, {"0.o": 60, "1.o": 60}, junk="12\t99")
    work = read_work(tmp_path)
    assert work is not None
    assert (work.done, work.total, work.spent) == (2, 40, 120)
    assert work.left == pytest.approx(38 * 60)
    assert work.remaining == pytest.approx(38 * 30)


def test_object_that_is_gone_is_not_done(tmp_path: Path) -> None:
    compiled(tmp_path, {"0.o": 60, "1.o": 60})
    (tmp_path / "build" / "cmake" / "1.o").unlink()
    work = read_work(tmp_path)
    assert work is not None
    assert work.done == 1


def test_slow_machine_raises_the_estimate_and_each_object_reduces_the_doubt() -> None:
    begin = estimate(EXPECTED, {})
    some = estimate(EXPECTED, {f"{number}.o": 120.0 for number in range(5)})
    many = estimate(EXPECTED, {f"{number}.o": 120.0 for number in range(30)})
    assert begin.left == 40 * 60
    assert 35 * 60 < some.left < 35 * 120
    assert many.left == pytest.approx(10 * 120, rel=0.1)
    assert begin.doubt > some.doubt > many.doubt > 0


def test_objects_out_of_ccache_do_not_lower_the_estimate() -> None:
    work = estimate(EXPECTED, {f"{number}.o": 0.3 for number in range(20)})
    assert work.left == 20 * 60


def test_true_time_is_within_twice_the_doubt() -> None:
    # Every third object takes three times as long as expected, which nobody knows at first.
    true = {name: 180.0 if number % 3 == 0 else 60.0 for number, name in enumerate(EXPECTED)}
    for done in (6, 12, 24, 36):
        taken = dict(list(true.items())[:done])
        work = estimate(EXPECTED, taken)
        left = sum(true.values()) - sum(taken.values())
        assert abs(work.left - left) <= 2 * work.doubt * left, done


def test_nothing_left_is_certain() -> None:
    work = estimate(EXPECTED, EXPECTED)
    assert (work.left, work.doubt, work.remaining) == (0, 0, 0)


def test_longest_object_cannot_be_divided() -> None:
    objects = {"long.o": 600.0, "short.o": 10.0}
    assert estimate(objects, {}, at_once=1).remaining == 610
    assert estimate(objects, {}, at_once=64).remaining == 600


def test_progress_says_how_sure_it_is() -> None:
    work = ObjectWork(total=9, done=3, spent=60, left=3600, longest=600, doubt=0.21, at_once=4)
    progress = CompileProgress(3, 9, elapsed=30, here=3, work=work)
    said = compile_progress(progress)
    assert said == "3 of 9 objects, 30 s so far, about 15 min left (60 core-minutes ±21%)"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_times_are_learnt_for_the_same_chips_only(store: Store, tmp_path: Path) -> None:
    compiled(tmp_path / "one", {"0.o": 200, "1.o": 0.2, "2.o": 50})
    learn(store, INPUTS, tmp_path / "one")
    again = learn(store, INPUTS, tmp_path / "empty")
    assert again == {"0.o": 200, "2.o": 50}, "1.o came out of ccache"
    assert learn(store, CompileInputs(**{**vars(INPUTS), "arch_list": "9.0a"}), tmp_path / "empty") == {}
    compiled(tmp_path / "one", {"0.o": 100})
    assert learn(store, INPUTS, tmp_path / "one")["0.o"] == 100


def test_damaged_memory_is_only_forgotten(store: Store, tmp_path: Path) -> None:
    compiled(tmp_path / "one", {"0.o": 200})
    store.root.mkdir()
    store.root.joinpath("weights.json").write_text('{"vllm')
    assert learn(store, INPUTS, tmp_path / "one") == {"0.o": 200}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("ninja_in_order")


def told(tmp_path: Path, *, group: str = "") -> dict[str, Any]:
    (tmp_path / "build").mkdir(exist_ok=True)
    request = Request(what="vllm", vllm="0.32.0", arch="gb10", group=group)
    tell(tmp_path, load_settings(REPOSITORY), request, {"a.o": 5.0}, jobs=4, memory_gb=15)
    data: dict[str, Any] = json.loads((tmp_path / "build" / "weights.json").read_text())
    return data


def test_groups_do_not_depend_on_what_a_machine_has_learnt(tmp_path: Path) -> None:
    assert told(tmp_path)["learnt"] == {"a.o": 5.0}
    grouped = told(tmp_path, group="2/5")
    assert (grouped["learnt"], grouped["group"]) == ({}, [2, 5])


def test_committed_weights_give_the_measured_work_of_a_whole_vllm(
    program: ModuleType, tmp_path: Path
) -> None:
    objects = (REPOSITORY / "tests/golden/objects/vllm-0.32.0-12.1a.txt").read_text().split()
    weights = told(tmp_path)
    minutes = sum(program.weigh(name, weights)[0] for name in objects) / 60
    assert len(objects) == 394
    assert minutes == pytest.approx(780, rel=0.05)
    assert load_settings(REPOSITORY).costs["vllm"].minutes == pytest.approx(minutes, rel=0.05)
