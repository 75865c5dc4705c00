"""Commands for benchmarks: measure, compare, plot, check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say, select_one, show
from imagefactory.store.progress import count

if TYPE_CHECKING:
    from imagefactory.check.bench.endpoint import Endpoint
    from imagefactory.check.bench.measuring import Asking, Bench
    from imagefactory.check.bench.result import BenchResult
    from imagefactory.project.project import Project


def _asking(dataset: str, temperature: str, thinking: str, *, tools: bool) -> Asking:
    from imagefactory.check.bench.measuring import Asking

    thinks = {"": None, "on": True, "off": False}
    if thinking not in thinks:
        what = f"--thinking cannot be {thinking[:40]!r}."
        raise options.unfit("--thinking", what, "It is on or off.", "Leave it out for the model's own default.")
    return Asking(dataset, options.number("--temperature", temperature, most=2) or 0.0, thinks[thinking], tools)


def _bench(
    project: Project, profile: str, set: list[str], users: str, repeats: str, limit: str, asking: Asking
) -> Bench:
    from imagefactory.check.bench.measuring import Bench
    from imagefactory.check.bench.profiles import load_profiles
    from imagefactory.launch.prepare import settings_from

    load_profiles(project.root).named(profile)  # an unknown one is refused before anything starts
    numbers = [options.whole_number("--users", word, least=1) for word in users.split(",")]
    bench = Bench(
        project,
        profile,
        settings_from(set),
        users=tuple(number for number in numbers if number),
        repeats=options.whole_number("--repeats", repeats, least=1),
        limit=options.number("--limit", limit) or 1800,
        asking=asking,
    )
    _ = bench.prompts  # a missing data set, too
    return bench


@command(
    "bench",
    default=True,
    target="measure the image built for this target (default: the first model)",
    image="measure this image instead: a reference by digest (pulled), or an OCI layout",
    url="measure this running server instead; the image brings the tool. VLLM_API_KEY is its key",
)
def run(
    project: Project,
    set: list[str],
    target: str = "",
    image: str = "",
    url: str = "",
    profile: str = "quick",
    users: str = "",
    repeats: str = "",
    limit: str = "",
    dataset: str = "",
    temperature: str = "",
    thinking: str = "",
    with_tools: bool = False,
) -> None:
    """Measure an image or a running server: speed, latency, accepted drafts, starts; the result is a JSON file."""
    from imagefactory.check.bench.measuring import refuse_wrong_answers
    from imagefactory.check.bench.running import bench_image, bench_url, refuse_other_servers
    from imagefactory.check.smoke.subject import subject_of_image, subject_of_target
    from imagefactory.cli.show.bench_tables import result_tables

    options.at_most_one(target=target, image=image)
    options.at_most_one(set=set, url=url)
    asking = _asking(dataset, temperature, thinking, tools=with_tools)
    bench = _bench(project, profile, set, users, repeats, limit, asking)
    if not image:
        refuse_other_servers(bench, select_one(project, target))  # before anybody builds it
    subject = subject_of_image(project, image) if image else subject_of_target(project, target)
    if url:
        result, path = bench_url(bench, _endpoint(url), subject, say)
    else:
        result, path = bench_image(bench, subject, say)
    for table in result_tables(result):
        show(table)
    print(path.relative_to(project.root))
    refuse_wrong_answers(result, path)


@command(
    "bench",
    positional=["first", "second"],
    first="a result file; or a target, an image or the address of a running server, to measure",
    second="another of the same; both are measured in turn, images with a fresh start each time",
    target="of running servers: the target whose image brings the tool (default: the first model)",
    set_first=f"first only: {options.SET}",
    set_second=f"second only: {options.SET}",
    set=f"both: {options.SET}",
    by="a further difference that is intended, such as machine or model; repeatable",
    rounds="how often to measure targets or images (default: 4)",
)
def compare(
    project: Project,
    first: str,
    second: str,
    set_first: list[str],
    set_second: list[str],
    set: list[str],
    by: list[str],
    target: str = "",
    rounds: str = "",
    profile: str = "quick",
    users: str = "",
    repeats: str = "",
    limit: str = "",
    dataset: str = "",
    temperature: str = "",
    thinking: str = "",
    with_tools: bool = False,
) -> None:
    """Compare two results, images or settings: ratios with 95 % confidence intervals."""
    from imagefactory.check.bench.comparison import compare, noise_advice, refuse_incomparable, refuse_same
    from imagefactory.check.bench.result import BenchResult
    from imagefactory.check.bench.running import Side, asked_differences, run_interleaved
    from imagefactory.check.smoke.subject import subject_named, subject_of_target
    from imagefactory.cli.show.bench_tables import comparison_table

    if first.endswith(".json") and second.endswith(".json"):
        lefts, rights = ([BenchResult.read(options.existing("RESULT", name, folder=False))] for name in (first, second))
        refuse_same(lefts[0], rights[0])
        intended = {*by}
    else:
        asking = _asking(dataset, temperature, thinking, tools=with_tools)
        for name, settings in ((first, set_first), (second, set_second)):
            if _is_url(name) and (given := [*set, *settings]):
                what = f"{given[0]} cannot be set: the server at {name} runs already."
                raise options.unfit("--set", what, "Settings are read when a server starts.", "Start it with them.")
        left, right = (
            Side(
                _bench(project, profile, [*set, *settings], users, repeats, limit, asking),
                subject_of_target(project, target) if _is_url(name) else subject_named(project, name),
                _endpoint(name) if _is_url(name) else None,
            )
            for name, settings in ((first, set_first), (second, set_second))
        )
        intended = {*by, *asked_differences(left, right)}
        number = options.whole_number("--rounds", rounds, least=1) or 4
        lefts, rights = run_interleaved(left, right, number, say)
    for left_result, right_result in zip(lefts, rights, strict=True):
        refuse_incomparable(left_result, right_result, intended)
    sides = _side(first, lefts[0], rights[0]), _side(second, rights[0], lefts[0])
    compared = compare(lefts, rights)
    show(comparison_table(compared, *sides))
    if advice := noise_advice(compared, [*lefts, *rights]):
        say(advice)


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _endpoint(url: str) -> Endpoint:
    from imagefactory.check.bench.endpoint import Endpoint

    return Endpoint(url.rstrip("/").removesuffix("/v1"), os.environ.get("VLLM_API_KEY", ""))


def _side(name: str, result: BenchResult, opposite: BenchResult) -> str:
    apart = result.bound.settings.items() - opposite.bound.settings.items()
    return " ".join([name, *(f"{setting}={value}" for setting, value in sorted(apart))])


@command(
    "bench",
    positional=["shape"],
    shape="a name in data/shapes, such as small or gemma4-26b-a4b; or a model's config.json",
)
def model(project: Project, shape: str) -> None:
    """Put a model of a real shape with generated weights among the downloaded ones: nothing is fetched.

    Its speed, memory and starts are those of the shape; its answers are noise, and results say `generated`.
    """
    from imagefactory.check.bench.generated import SETTINGS, folder_name, write_model
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.plan.serve.image_paths import MODEL_CACHE
    from imagefactory.store.paths import expand_home

    name = folder_name(shape)
    folder = expand_home(HUB_CACHE, "HOME") / name
    write_model(project.root, shape, folder)
    say(f"{folder}: written; `bench`, `answers`, `smoke --level gpu` and `publish` take these settings:")
    settings = {"MODEL_PATH": f"{MODEL_CACHE}/{name}"} | SETTINGS
    print(" ".join(f"--set {name}={value}" for name, value in settings.items()))


@command(
    "bench",
    needs="plot",
    positional=["results"],
    results="a result file or a folder of them; several are separated by commas",
    output="the folder for the SVG files (default: build/bench/plots)",
)
def plot(project: Project, results: str, output: str = "") -> None:
    """Plot results in SVG, light and dark: throughput, latency, accepted drafts, starts, history."""
    from imagefactory.check.bench.plots import plot
    from imagefactory.check.bench.result import BenchResult

    folder = options.new_folder("--output", output) or project.root / "build" / "bench" / "plots"
    named = [options.existing("RESULTS", word, folder=Path(word).is_dir()) for word in results.split(",")]
    files = [file for path in named for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    for path in plot([BenchResult.read(file) for file in files], folder):
        print(path)


@command("bench", base="look for the images of results that are new since this commit (default: of all results)")
def check(project: Project, base: str = "") -> None:
    """Check the results in data/results: format, plausibility, and that new ones are of images of this checkout."""
    from imagefactory.check.bench.result import RESULTS, check_shared, unchanged_files
    from imagefactory.ci.pull_request import worktree
    from imagefactory.plan.known_layers import KnownLayers
    from imagefactory.plan.make import locked_plans

    unchanged: set[Path] = set()
    if base:
        with worktree(project.root, base) as folder:
            unchanged = unchanged_files(project.root, folder)
    layers = KnownLayers(project.known_layers)
    digests = {image.digest for plan in locked_plans(project) if (image := layers.image(plan))}
    number = check_shared(project.root, digests, unchanged)
    say(f"plausible: {count(number, 'result')}" if number else f"{RESULTS} has no results yet")
