"""Our ninja: the longest objects first, few large ones at once, one group of several, and nothing twice."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.fixtures.ninja import TOOLS, environment, weights, write_project

OBJECTS = {"a.o": 3.0, "b.o": 20.0, "c.o": 1.0, "d.o": 300.0}
NO_TIME = dict.fromkeys(OBJECTS, 0.0)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("ninja_in_order")


def run(folder: Path, *words: str, expected: int = 0, **changes: Any) -> subprocess.CompletedProcess[str]:
    told = weights(OBJECTS, **changes)
    command = [str(TOOLS / "ninja"), *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, told), capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def begun(folder: Path) -> list[str]:
    lines = (folder / "compiled").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith("begin")]


def test_longest_objects_are_compiled_first(tmp_path: Path) -> None:
    write_project(tmp_path, NO_TIME)
    run(tmp_path, jobs=1)
    assert begun(tmp_path) == ["d.o", "b.o", "a.o", "c.o"]
    assert (tmp_path / "all.so").exists()


def test_other_weights_outdate_nothing(tmp_path: Path) -> None:
    write_project(tmp_path, NO_TIME)
    times = (tmp_path / "build.ninja").stat().st_mtime_ns
    run(tmp_path)
    changed = run(tmp_path, learnt={"a.o": 1000.0}, rules=[["b.o", 1, 9], ["*", 1, 1]])
    assert "no work to do" in changed.stdout
    assert len(begun(tmp_path)) == len(OBJECTS)
    assert (tmp_path / "build.ninja").stat().st_mtime_ns == times


def test_only_some_large_objects_are_compiled_at_once(tmp_path: Path) -> None:
    names = [f"large{number}.o" for number in range(4)] + ["small0.o", "small1.o"]
    write_project(tmp_path, dict.fromkeys(names, 0.2))
    run(tmp_path, "-j6", rules=[["large*", 1, 5], ["*", 9, 1]], memory_gb=18.0, learnt={})
    most, now = 0, set[str]()
    for line in (tmp_path / "compiled").read_text().splitlines():
        word, name = line.split()
        if name.startswith("large"):
            now ^= {name}
            most = max(most, len(now))
        assert word in ("begin", "end")
    assert most == 2


@pytest.mark.parametrize(
    ("heavy", "expected"),
    [(0.0, (4, 4, 4.0)), (0.1, (4, 2, 4.0)), (0.9, (3, 3, 3.0)), (1.0, (3, 3, 3.0))],
    ids=["small objects only", "few large ones", "mostly large ones", "large ones only"],
)
def test_memory_is_divided_so_that_the_compile_ends_first(
    program: ModuleType, heavy: float, expected: tuple[int, int, float]
) -> None:
    objects = {"large.o": 1000 * heavy, "small.o": 1000 * (1 - heavy)}
    told = weights(objects, rules=[["large*", 1, 5], ["*", 1, 1]], jobs=4, memory_gb=15.0)
    assert program.at_once({name: own for name, own in objects.items() if own}, told) == expected


def test_one_large_object_fits_at_least(program: ModuleType) -> None:
    told = weights({"large.o": 9.0}, rules=[["*", 1, 5]], jobs=2, memory_gb=5.1)
    assert program.at_once({"large.o": 9.0}, told)[:2] == (1, 1)


def test_no_object_is_large_where_large_ones_have_no_figure(program: ModuleType) -> None:
    told = weights({"a.o": 9.0}, rules=[["*", 1, 5]], jobs=3, job_gb=4, large_gb=4, memory_gb=12)
    assert program.at_once({"a.o": 9.0}, told)[:2] == (3, 3)


def test_groups_are_disjoint_complete_and_link_nothing(tmp_path: Path) -> None:
    write_project(tmp_path, NO_TIME)
    for number in (1, 2):
        done = run(tmp_path, "all.so", expected=75, jobs=1, group=[number, 2])
        assert f"FACTORY-GROUP {number}/2" in done.stdout
        assert not (tmp_path / "all.so").exists()
    assert begun(tmp_path) == ["d.o", "b.o", "a.o", "c.o"]
    assert "Building" not in run(tmp_path, "all.so").stdout, "the link finds all objects"
    assert (tmp_path / "all.so").exists()


def test_group_of_a_failing_object_fails(tmp_path: Path) -> None:
    write_project(tmp_path, NO_TIME)
    (tmp_path / "compiler").write_text("#!/bin/sh\nexit 1\n")
    assert "FACTORY-GROUP" not in run(tmp_path, expected=1, group=[1, 2]).stdout


def test_groups_are_the_same_in_any_order_and_about_equal(program: ModuleType) -> None:
    objects = {f"{number}.o": float(number % 17 + 1) for number in range(200)}
    groups = program.split(objects, 5)
    assert groups == program.split(dict(reversed(objects.items())), 5)
    assert sorted(name for group in groups for name in group) == sorted(objects)
    loads = [sum(objects[name] for name in group) for group in groups]
    assert max(loads) - min(loads) <= 17


def test_objects_of_the_targets_are_recorded(tmp_path: Path) -> None:
    write_project(tmp_path, NO_TIME)
    with (tmp_path / "build.ninja").open("a") as file:
        file.write("build other.o: compile\n  seconds = 0\nbuild other.so: link other.o\n")
    run(tmp_path, "all.so")
    assert json.loads((tmp_path / "objects.json").read_text()) == {
        "folder": ".",
        "at_once": 6.0,
        "objects": OBJECTS,
    }
    run(tmp_path, "a.o", "all.so")
    assert len(json.loads((tmp_path / "objects.json").read_text())["objects"]) == len(OBJECTS)
    run(tmp_path, "a.o")
    assert list(json.loads((tmp_path / "objects.json").read_text())["objects"]) == ["a.o"]
    run(tmp_path)
    assert "other.o" in json.loads((tmp_path / "objects.json").read_text())["objects"]


def test_included_files_are_sorted_too(tmp_path: Path) -> None:
    for name, own in (("one", {"c.o": 0.0}), ("two", {"a.o": 0.0, "d.o": 0.0})):
        write_project(tmp_path, own, f"{name}.so")
        (tmp_path / "build.ninja").rename(tmp_path / f"{name}.ninja")
    (tmp_path / "build.ninja").write_text("subninja one.ninja\nsubninja two.ninja\n")
    run(tmp_path, jobs=1)
    assert begun(tmp_path) == ["d.o", "a.o", "c.o"]


def test_steps_around_an_assignment_stay_in_place(program: ModuleType) -> None:
    text = "build a.o: x\nname = b\nbuild d.o: x\n"
    assert program.arrange(text, Path(), weights(OBJECTS)) == text


def test_step_of_several_lines_gets_its_pool_behind_them(program: ModuleType) -> None:
    text = "build d.o: x $\n    e.cu\n  pool = compile\n  FLAGS = 1\n\nbuild a.o: x\n"
    told = weights(OBJECTS, rules=[["d.o", 1, 5], ["*", 1, 1]])
    arranged = program.arrange(text, Path(), told)
    assert arranged == (
        "pool factory_large\n  depth = 1\n"
        "build d.o: x $\n    e.cu\n  pool = factory_large\n  FLAGS = 1\n\nbuild a.o: x\n"
    )
    assert program.arrange(arranged, Path(), told) == arranged


@pytest.mark.parametrize(
    "words",
    [["-t", "recompact"], ["--version"], ["-n"], ["-C", "CMakeFiles/CMakeScratch/TryCompile-1"]],
    ids=["a tool", "the version", "a dry run", "a check of CMake's"],
)
def test_calls_that_compile_nothing_of_ours_are_left_alone(program: ModuleType, words: list[str]) -> None:
    assert program.Call.read(words, Path("/tree")) is None


def test_options_of_a_call_are_read(program: ModuleType) -> None:
    call = program.Call.read(["-v", "-C", "/tree", "-f", "x.ninja", "-j4", "a", "b"], Path("/elsewhere"))
    assert (call.folder, call.file, call.targets) == (Path("/tree"), Path("/tree/x.ninja"), ("a", "b"))
    assert call.options == ("-v", "-C", "/tree", "-f", "x.ninja", "-j", "4")
