"""What the README shows is what this commit does."""

from __future__ import annotations

import re
from pathlib import Path

from imagefactory.commands.show.docs import DIGEST, replace_between, settings_table, tag_table
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from tasks import namespace

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_digest_of_the_first_example_is_that_of_this_commit() -> None:
    project = Project(ROOT)
    [cell] = select(project.matrix, ["gemma4-31b"])
    image = KnownLayers(project.known_layers).image(make_plan(project, cell))
    assert image is not None, "build gemma4-31b and commit locks/layers.toml"
    assert DIGEST.findall(README) == [image.digest], "run `invoke docs`"


def test_the_tables_are_those_of_this_matrix() -> None:
    assert replace_between(README, "tags", tag_table(ROOT)) == README, "run `invoke docs`"
    serving = (ROOT / "docs" / "serving.md").read_text("utf-8")
    assert replace_between(serving, "settings", settings_table(ROOT)) == serving, "run `invoke docs`"


def test_it_takes_three_minutes_to_read() -> None:
    assert len(README.split()) < 900


def test_every_file_that_is_linked_exists() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_that_is_shown_exists() -> None:
    shown = set(re.findall(r"\./inv ([a-z][a-z.]*)", README))
    assert shown
    assert sorted(shown - set(namespace.task_names)) == []
