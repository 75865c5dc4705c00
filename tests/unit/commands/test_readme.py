"""The README matches this commit."""

from __future__ import annotations

import re

from imagefactory.commands.show.docs import DIGEST, replace_between, settings_table, tag_table
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from tasks import namespace
from tests.fixtures.checkouts import REPOSITORY as ROOT

README = (ROOT / "README.md").read_text("utf-8")


def test_the_digest_matches_this_commit() -> None:
    project = Project(ROOT)
    [cell] = select(project.matrix, ["gemma4-31b"])
    image = KnownLayers(project.known_layers).image(make_plan(project, cell))
    assert image is not None, "build gemma4-31b and commit locks/layers.toml"
    assert DIGEST.findall(README) == [image.digest], "run `invoke docs`"


def test_the_tables_match_the_matrix() -> None:
    assert replace_between(README, "tags", tag_table(ROOT)) == README, "run `invoke docs`"
    serving = (ROOT / "docs" / "serving.md").read_text("utf-8")
    assert replace_between(serving, "settings", settings_table(ROOT)) == serving, "run `invoke docs`"


def test_the_readme_stays_short() -> None:
    assert len(README.split()) < 900


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_shown_commands_exist() -> None:
    shown = set(re.findall(r"\./inv ([a-z][a-z.]*)", README))
    assert shown
    assert sorted(shown - set(namespace.task_names)) == []
