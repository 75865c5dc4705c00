"""The command for smoke tests, which an image has to pass before it gets a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    needs="smoke",
    iterable=["level"],
    help={
        "target": "test the image built for this target (default: the first model)",
        "image": "test this image instead: a reference by digest (pulled), an image of the daemon, or an OCI layout",
        "level": "static, container, serve or gpu; repeatable (default: all levels of the arch)",
        "json": "print the record as JSON",
    },
)
def smoke(project: Project, level: list[str], target: str = "", image: str = "", json: bool = False) -> None:
    """Smoke-test an image and record the results under its digest; a level that cannot run never counts as passed."""
    from imagefactory.commands.show import tables, terminal
    from imagefactory.smoke.levels import levels_named
    from imagefactory.smoke.runner import refuse_failed, results_folder, smoke
    from imagefactory.smoke.subject import subject_of_image, subject_of_target

    options.at_most_one(target=target, image=image)
    subject = subject_of_image(project, image) if image else subject_of_target(project, target)
    levels = levels_named(level, project.matrix, subject.arch)
    say(f"testing {subject.cell} for {subject.platform}: {subject.digest}")
    record = smoke(project, subject, levels, say)
    folder = results_folder(project, subject.digest)
    if json:
        print(record.to_json(), end="")
    else:
        terminal.out.print(tables.smoke_table(record))
        print(folder / "record.json")
    refuse_failed(record, levels, by_name=bool(level), folder=folder)
