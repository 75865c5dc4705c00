"""Plots: every picture in a light and a dark version, the same bytes for the same results."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from imagefactory.check.bench.plots import STEPS, THEMES, plot
from imagefactory.check.bench.result import BenchResult
from tests.fixtures.benchmarks import BOUND, at_speed, drafting, measurement, result
from tests.fixtures.failures import raises

NAMES = ("users", "latency", "acceptance", "start", "history")


def everything(speed: float = 64) -> BenchResult:
    """Return a result with figures for every plot."""
    ones = tuple(
        at_speed(speed * users, repeat=repeat, users=users, kind="mixed", acceptance=drafting(users))
        for repeat in (1, 2)
        for users in (1, 4)
    )
    cold = {"cache": "cold", "seconds": 9, "steps": {"imports": 6.0, "weights": 3.0, "ready": 9.0}}
    kernels = {"kernels": "sampling absent", "compiled": {"sampling": 79}}
    warm = {**cold, "cache": "warm", "kernels": "sampling in the image"}
    return result(measurements=ones, starts=({**cold, **kernels}, warm))


def results() -> list[BenchResult]:
    """Return two results with other settings."""
    bound = BOUND.model_copy(update={"settings": {"A": "1"}})
    return [everything(), everything(128).model_copy(update={"bound": bound})]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw light versions only, which takes half the time."""
    monkeypatch.setattr("imagefactory.check.bench.plots.THEMES", THEMES[:1])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Draw every plot; return the texts by name."""
    return {file.stem: file.read_text("utf-8") for file in plot(results(), tmp_path_factory.mktemp("plots"))}


def test_every_plot_is_drawn_light_and_dark(drawn: dict[str, str]) -> None:
    assert list(drawn) == [f"{name}-{theme.name}" for name in NAMES for theme in THEMES]
    for name, text in drawn.items():
        ET.fromstring(text)  # noqa: S314 - our own file
        paper = next(theme.paper for theme in THEMES if theme.name in name)
        assert paper in text
    assert "users at once" in drawn["users-light"]
    assert "tokens per step" in drawn["acceptance-dark"]
    for told in ("imports", "sampling absent", "sampling compiled in 79 s", "sampling in the image"):
        assert told in drawn["start-light"]
    assert "stroke-dasharray" in drawn["users-light"], "series differ in more than colour"


@pytest.mark.usefixtures("light")
def test_history_is_of_the_newest_profile_and_explains_its_bars(tmp_path: Path) -> None:
    others = [one.model_copy(update={"profile": "../chat"}) for one in results()]
    plot([*results(), *others], tmp_path)
    drawn = (tmp_path / "history-light.svg").read_text("utf-8")
    assert "profile ../chat" in drawn
    assert "standard deviation of the repeats" in drawn


@pytest.mark.usefixtures("light")
def test_plots_are_repeatable(drawn: dict[str, str], tmp_path: Path) -> None:
    again = {file.stem: file.read_text("utf-8") for file in plot(results(), tmp_path)}
    assert again == {name: text for name, text in drawn.items() if name.endswith("light")}


def test_only_what_was_measured_is_drawn(tmp_path: Path) -> None:
    names = {file.stem.partition("-")[0] for file in plot([result()], tmp_path)}
    assert names == {"throughput", "latency"}
    with raises("bad-bench-result", match="nothing to plot"):
        plot([result(measurements=())], tmp_path)


@pytest.mark.usefixtures("light")
def test_an_incomplete_result_says_so_in_its_plot(tmp_path: Path) -> None:
    plot([result(complete=False, why="it was interrupted")], tmp_path)
    assert "incomplete" in (tmp_path / "latency-light.svg").read_text("utf-8")


@pytest.mark.usefixtures("light")
def test_a_plot_shows_the_newest_results_and_says_that_others_exist(tmp_path: Path) -> None:
    many = [everything(64 + number).model_copy(update={"starts": ()}) for number in range(9)]
    images = [
        one.model_copy(update={"bound": BOUND.model_copy(update={"digest": f"sha256:{str(number) * 64}"})})
        for number, one in enumerate(many)
    ]
    plot(images, tmp_path)
    text = (tmp_path / "acceptance-light.svg").read_text("utf-8")
    assert "the newest 6 of 9 results" in text
    assert ("image 88888888" in text, "image 22222222" in text) == (True, False)


@pytest.mark.usefixtures("light")
def test_servers_at_two_addresses_are_two_sides(tmp_path: Path) -> None:
    addresses = [f"http://localhost:{port}" for port in (8001, 8002)]
    bounds = [BOUND.model_copy(update={"target": "", "digest": "", "address": address}) for address in addresses]
    servers = [everything().model_copy(update={"bound": bound}) for bound in bounds]
    plot(servers, tmp_path)
    for name in ("users", "acceptance", "start", "history"):
        text = (tmp_path / f"{name}-light.svg").read_text("utf-8")
        assert all(address in text for address in addresses), name


@pytest.mark.usefixtures("light")
def test_one_user_gets_bars_with_every_repeat_and_the_title_says_how_many_requests(tmp_path: Path) -> None:
    ones = [at_speed(speed, repeat=repeat) for repeat, speed in enumerate((20, 40, 60), 1)]
    busy = result().machine.model_copy(update={"load": 9.13})
    plot([result(measurements=ones, machine=busy)], tmp_path)
    drawn = (tmp_path / "throughput-light.svg").read_text("utf-8")
    assert "1 user, n=6, load before: 9.1 on 2 CPUs" in drawn
    # 3 * 128 tokens in 128 / 20 + 128 / 40 + 128 / 60 seconds would be 32.7: the bar is the mean of the repeats.
    assert ">40.0<" in drawn
    [points] = re.findall(r'<g id="PathCollection_1">.*?</g>\n   </g>', drawn, re.DOTALL)
    assert points.count("<use ") == 3


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(("requests", "shown"), [(2, ["p50"]), (16, ["p50", "p90"]), (512, ["p50", "p90", "p99"])])
def test_a_percentile_is_drawn_only_if_there_were_enough_requests(
    tmp_path: Path, requests: int, shown: list[str]
) -> None:
    plot([result(measurements=[measurement(requests=requests)])], tmp_path)
    drawn = (tmp_path / "latency-light.svg").read_text("utf-8")
    assert [name for name in ("p50", "p90", "p99") if name in drawn] == shown


def test_the_steps_of_a_start_have_labels_and_colours_of_their_own_in_their_order(tmp_path: Path) -> None:
    seconds = dict.fromkeys(reversed(STEPS), 9.0) | {"server": 0.1}
    start = {"cache": "cold", "seconds": 72, "steps": seconds}
    plot([result(measurements=(), starts=(start,))], tmp_path)
    for theme in THEMES:
        assert len({*theme.steps}) == len(STEPS)
        drawn = (tmp_path / f"start-{theme.name}.svg").read_text("utf-8")
        assert re.search(r">[^<]*\bserver 0\.1[^<]*<", drawn), "what is too narrow for a label has it below"
        assert "72.1 s<" in drawn
        _, _, legend = drawn.partition('id="legend_1"')
        boxes = re.findall(r'd="M ([\d.]+) ([\d.]+)[^"]*" style="fill: (#\w+)', legend)
        in_rows = sorted(boxes, key=lambda box: (float(box[1]), float(box[0])))
        assert [colour for *_, colour in in_rows] == list(theme.steps), "as the bar is read"
