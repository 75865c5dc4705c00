"""Commands for answers: measure them, and judge whether two images give the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import command, say, show

if TYPE_CHECKING:
    from imagefactory.check.answers.result import AnswersResult
    from imagefactory.check.bench.result import BoundTo
    from imagefactory.project.project import Project

CANNOT_TELL = 15  # an exit code that no class of errors has


@command(
    "answers",
    default=True,
    target="measure the image built for this target (default: the first model)",
    image="measure this image instead: a reference by digest (pulled), or an OCI layout",
)
def measure(project: Project, set: list[str], target: str = "", image: str = "") -> None:
    """Measure how an image responds to fixed texts and scenarios; the result is a JSON file."""
    from imagefactory.check.answers.measuring import measure_image
    from imagefactory.check.smoke.subject import subject_of_image, subject_of_target
    from imagefactory.launch.prepare import settings_from

    options.at_most_one(target=target, image=image)
    settings = settings_from(set)
    subject = subject_of_image(project, image) if image else subject_of_target(project, target)
    _, path = measure_image(project, subject, settings, say)
    print(path.relative_to(project.root))


@command(
    "answers",
    positional=["first", "second"],
    first="a result file, or a target or image to measure, twice",
    second="another of the same",
    again="a second measurement of the first side, after a restart: the noise. Needed with result files",
    set_first=f"first only: {options.SET}",
    set_second=f"second only: {options.SET}",
    set=f"both: {options.SET}",
)
def compare(
    project: Project,
    first: str,
    second: str,
    set_first: list[str],
    set_second: list[str],
    set: list[str],
    again: str = "",
) -> None:
    """Judge whether two results, images or settings give the same answers.

    The exit code is 1 if they changed, and 15 if that cannot be told.
    """
    from imagefactory.check.answers.comparison import change, figures, judge, refuse_other_dummies
    from imagefactory.cli.show.bench_tables import behaviour_line, figures_table

    # Before minutes of measuring.
    refuse_other_dummies(_bound(project, first, [*set, *set_first]), _bound(project, second, [*set, *set_second]))
    left = _measured(project, first, [*set, *set_first])
    right = _measured(project, second, [*set, *set_second])
    repeated = None
    # Two starts of one image differ a little; only what differs more counts as a change.
    if again or not first.endswith(".json"):
        repeated = _measured(project, again or first, [*set, *set_first])
    difference, what = figures(left, right), change(left, right)
    noise = figures(left, repeated) if repeated else None
    verdict, why = judge(what, difference, noise)
    show(figures_table(difference, noise))
    if difference.scenarios:
        print(behaviour_line(difference))
    print(f"{verdict}: {why} (what differs: {what})")
    if verdict != "same":
        raise Exit(code=1 if verdict == "changed" else CANNOT_TELL)


@command("answers")
def example(project: Project) -> None:
    """Put a small trained model among the downloaded ones, to see with tiny/cpu what counts as a change."""
    from imagefactory.check.answers.example import NAME, SETTINGS, write_example
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.plan.serve.image_paths import MODEL_CACHE
    from imagefactory.store.paths import expand_home

    folder = expand_home(HUB_CACHE, "HOME") / NAME
    write_example(project.root, folder)
    say(f"{folder}: written; containers find it with these settings:")
    settings = {"MODEL_PATH": f"{MODEL_CACHE}/{NAME}"} | SETTINGS
    print(" ".join(f"--set {name}={value}" for name, value in settings.items()))


def _bound(project: Project, name: str, settings: list[str]) -> BoundTo:
    from imagefactory.check.bench.running import bound_to
    from imagefactory.check.smoke.subject import subject_named
    from imagefactory.launch.prepare import settings_from

    if name.endswith(".json"):
        return _result(name).bound
    return bound_to(project, subject_named(project, name), settings_from(settings))


def _result(name: str) -> AnswersResult:
    from imagefactory.check.answers.result import AnswersResult

    return AnswersResult.read(options.existing("RESULT", name, folder=Path(name).is_dir()))


def _measured(project: Project, name: str, settings: list[str]) -> AnswersResult:
    from imagefactory.check.answers.measuring import measure_image
    from imagefactory.check.smoke.subject import subject_named
    from imagefactory.launch.prepare import settings_from

    if name.endswith(".json"):
        return _result(name)
    return measure_image(project, subject_named(project, name), settings_from(settings), say)[0]
