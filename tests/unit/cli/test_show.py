"""The progress of builds and pushes, on a terminal and in a log, and the tables of plans and targets."""

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from imagefactory.cli.command import show
from imagefactory.cli.doctor import Diagnosis
from imagefactory.cli.show import terminal as terminal_module
from imagefactory.cli.show.live import Display, watching
from imagefactory.cli.show.pictures import mods_picture
from imagefactory.cli.show.tables import diagnosis_lines, mods_table, plan_table, table
from imagefactory.errors import UsageError
from imagefactory.mods.compatibility import ModResult, Status
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Layer, WheelLayer, WheelSettings
from imagefactory.plan.status import LayerStatus, PlanStatus
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.small_factory import CELL, SmallFactory

LAYERS: list[Layer] = [
    WheelLayer(
        kind="wheel",
        name=f"package-{number}",
        key=Sha256(f"{number:064}"),
        inputs=(),
        settings=WheelSettings(python="3.11", venv="opt/venv"),
        download=1000,
        unpacked=2000,
    )
    for number in range(40)
]


def terminal(height: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(display: Display, height: int = 20) -> list[str]:
    console = terminal(height)
    console.print(display, height=height)
    return [line.rstrip() for line in text(console).splitlines()]


@pytest.fixture
def log() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_the_table_shows_the_state_bytes_and_rate_of_layers() -> None:
    display = Display()
    display.layers(LAYERS[:2])
    display.state(LAYERS[0].key, "packing", 1_500_000, 3_000_000)
    display.state(LAYERS[1].key, "cached", 5_000, 5_000)
    _, first, second, total = shown(display)
    assert re.fullmatch(r"wheel package-0 +packing +1.5 MB of 3.0 MB +.*/s", first)
    assert re.fullmatch(r"wheel package-1 +cached +5.0 kB", second)
    assert total == "1 of 2 layers ready"


@pytest.mark.parametrize("height", [3, 24])
def test_the_table_fits_the_terminal_and_keeps_layers_in_progress(height: int) -> None:
    display = Display()
    display.layers(LAYERS)
    for item in LAYERS[:30]:
        display.state(item.key, "done", 1, 1)
    display.state(LAYERS[35].key, "packing", 1, 2)
    display.state(LAYERS[39].key, "downloading", 1, 2)
    lines = shown(display, height)
    assert len(lines) <= height
    assert any("package-35" in line for line in lines)
    assert any("package-39" in line for line in lines) or height == 3
    assert lines[-1] == "30 of 40 layers ready"


def test_a_log_has_one_line_for_each_finished_layer_or_pushed_blob(log: Console) -> None:
    display = Display(log)
    display.layers(LAYERS[:2])
    for state in ("waiting", "downloading", "packing", "packing", "done"):
        display.state(LAYERS[0].key, state, 2000, 2000)
    display.state(LAYERS[1].key, "cached", 10, 10)
    display.blobs({Digest("sha256:a"): "wheel torch"})
    display.state("sha256:a", "uploading", 5_000, 10_000)
    display.state("sha256:a", "uploaded", 10_000, 10_000)
    assert text(log).splitlines() == [
        "done     wheel package-0 (2.0 kB)",
        "cached   wheel package-1 (0.0 kB)",
        "uploaded wheel torch (10.0 kB)",
    ]


def test_the_display_suits_the_console(log: Console) -> None:
    screen = terminal(20)
    for console in (screen, log):
        with watching(console) as watch:
            watch.layers(LAYERS[:1])
            watch.state(LAYERS[0].key, "done", 1, 1)
    assert "1 of 1 layer ready" in text(screen)
    assert text(log) == "done     wheel package-0 (0.0 kB)\n"


def test_a_plan_shows_cached_layers_and_an_unknown_image(small_factory: SmallFactory, log: Console) -> None:
    plan = make_plan(small_factory.project, CELL)
    first, *others = plan.layers
    layers = tuple(LayerStatus(layer, None, cached=layer is first) for layer in plan.layers)
    log.print(plan_table(PlanStatus(plan, layers, None)))
    assert f"{len(plan.layers)} layers (1 cached)" in text(log)
    assert text(log).count("to build") == len(others)
    assert "image not known before it is built" in text(log)


def test_progress_never_exceeds_its_total_and_a_log_mentions_slow_layers(log: Console) -> None:
    display, plain = Display(), Display(log, every=0)
    for one in (display, plain):
        one.layers(LAYERS[:1])
        one.state(LAYERS[0].key, "packing", 583_300_000, 578_100_000)
    assert "583.3" not in "".join(shown(display)) + text(log)
    assert "packing      wheel package-0: 578.1 MB of 578.1 MB" in text(log)


def test_a_log_says_what_waits_for_wheels_and_how_far_an_image_is_on_its_way(log: Console) -> None:
    display = Display(log, every=0)
    display.layers(LAYERS[:3])
    display.state(LAYERS[0].key, "waiting for wheels", 0, 0)
    display.state(LAYERS[1].key, "waiting for wheels", 0, 0)
    display.state(LAYERS[2].key, "downloading", 5_000, 10_000)
    display.images(["spark-vllm:tiny"])
    for state in ("sending", "unpacking", "loaded"):
        display.state("spark-vllm:tiny", state, 2_000, 2_000)
    assert text(log).splitlines()[-5:] == [
        "downloading  wheel package-2: 5.0 kB of 10.0 kB",
        "waiting for wheels: wheel package-0, wheel package-1",
        "sending      spark-vllm:tiny: 2.0 kB of 2.0 kB",
        "unpacking    spark-vllm:tiny: 2.0 kB of 2.0 kB",
        "loaded   spark-vllm:tiny (2.0 kB)",
    ]
    assert shown(display)[-1] == "1 of 1 image ready"


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x9b2J", "\r", "\u202e", "\u2028"])
def test_no_text_from_outside_commands_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sign: str
) -> None:
    monkeypatch.setattr(terminal_module.out, "_force_terminal", True)
    for shown_text in (f"a{sign}b", Text(f"a{sign}b"), table([[f"a{sign}b"]], "x")):
        terminal_module.out.print(shown_text)
        terminal_module.err.print(shown_text)
    error = UsageError("bad-option", f"a{sign}b", where=f"a{sign}b", why=f"a{sign}b", fix="x")
    terminal_module.err.print(terminal_module.error_message(error))
    found = "".join(capsys.readouterr())
    assert sign not in re.sub(r"\x1b\[[0-9;]*m", "", found)
    assert found.count("a") > 6


def test_long_paths_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/home/somebody/{'x' * 300}"
    show(diagnosis_lines([Diagnosis("cache", "build", "failed", path, f"Remove {path}.")]))
    assert capsys.readouterr().out.count(path) == 2


NAME = "a-mod-with-a-rather-long-name"


def fits(count: int) -> list[ModResult]:
    """Return the results of two mods on some versions of vLLM and one of SGLang."""
    versions = [f"0.{30 + number}.0" for number in range(count)]
    first: dict[int, Status] = {0: "upstream", 1: "not needed"}
    ours = [ModResult(NAME, version, first.get(number, "applies"), "0.24.0") for number, version in enumerate(versions)]
    others = [ModResult("other", version, "other server") for version in versions]
    both = [ModResult(NAME, "sglang-0.5.23", "other server"), ModResult("other", "sglang-0.5.23", "conflict")]
    return [*ours, *others, *both]


def test_a_wide_terminal_says_in_words_which_versions_a_mod_fits(log: Console) -> None:
    log.print(mods_table(fits(3)))
    lines = [line.split() for line in text(log).splitlines()]
    assert lines == [
        ["vLLM", "0.30.0", "0.31.0", "0.32.0"],
        [NAME, *["upstream", "since", "0.24.0", "not", "needed", "applies"]],
        ["SGLang", "0.5.23"],
        ["other", "conflict"],
    ], "nothing is said where a mod is for the other server"


@pytest.mark.parametrize("count", [3, 5, 8])
def test_more_versions_cut_no_name_and_no_line_in_the_picture_of_mods(count: int) -> None:
    picture = mods_picture(fits(count))
    words = re.sub(r"<[^>]+>", " ", picture).replace("&#160;", " ")
    assert words.count(NAME) == 2
    assert [word for word in words.split() if word.endswith("…")] == []
    assert all(words.count(f"0.{30 + number}.0") == 1 for number in range(count))
    assert [words.count(sign) for sign in "↑·✓✗"] == [2, 2, count - 2 + 1, 2], "in the table, and in its key"
    lines = {float(number) for number in re.findall(r'<text class="mods-r\d" x="[\d.]+" y="([\d.]+)"', picture)}
    assert len(lines) == 4 + 2, "no row is folded"


def test_a_narrow_terminal_shows_a_plan_without_what_does_not_fit(small_factory: SmallFactory) -> None:
    plan = make_plan(small_factory.project, CELL)
    layers = tuple(LayerStatus(layer, None, cached=False) for layer in plan.layers)
    narrow = Console(file=io.StringIO(), width=58)
    narrow.print(plan_table(PlanStatus(plan, layers, None)))
    rows = [line for line in text(narrow).splitlines() if line.rstrip().endswith("to build")]
    assert len(rows) == len(plan.layers)
    assert all(f"{layer.kind} {layer.name} " in row for row, layer in zip(rows, plan.layers, strict=True))
