"""README and docs show commands that exist, and what they print."""

import shlex
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from imagefactory.launch.preview import Preview
from imagefactory.mods.choose import Chosen
from imagefactory.plan.serve.description import describe
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.console import PAGES, Listed, Shown, differs, in_blocks, in_text, parse, shown
from tests.fixtures.inv import Inv

SHOWN = [one for page in PAGES for one in shown(page)]
LISTED = Listed.read()


def test_every_command_on_a_page_is_run_or_has_a_reason_why_not() -> None:
    listed = [*LISTED.here, *LISTED.published, *LISTED.container, *LISTED.elsewhere]
    assert [line for line, number in Counter(listed).items() if number > 1] == []
    on_pages = {one.command for one in SHOWN}
    assert sorted(on_pages - set(listed)) == [], "list them in tests/fixtures/pages.yaml"
    assert sorted(set(listed) - on_pages) == [], "no page shows these any more"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_ours_on_a_page_can_be_parsed(page: Path) -> None:
    wrong = [parse(words) for words in in_blocks(page)]
    # In a sentence, `./inv audit` and `./inv verify --image` name a command without its arguments.
    named = [parse(words) for words in in_text(page) if words[0] not in {"COMMAND", "…"}]
    wrong += [why for why in named if not why.endswith("needs a value.")]
    assert list(filter(None, wrong)) == []


@pytest.mark.parametrize(
    "one", [one for one in SHOWN if one.command in LISTED.here], ids=lambda one: f"{one.page}: {one.command}"
)
def test_pages_show_what_commands_print(
    one: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(one.command.partition(" > ")[0])
    inv = Inv(Checkout(REPOSITORY), monkeypatch, capsys)
    done = on_a_spark(words) if words[0] == "docker" else inv(*words[1:])
    printed = done.stderr + done.stdout
    assert (done.returncode == 0) == (not any(line.startswith("error") for line in one.output)), printed
    assert differs(one.output, printed) == "", printed


def on_a_spark(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run what a container of the default image would run there, as far as this machine can."""
    project = Project(REPOSITORY)
    cell = select_one(project.matrix, "")
    served = describe(project.matrix, cell, project.model_lock, Chosen((), ()), "upstream")
    given = dict(word.split("=") for flag, word in pairwise(words) if flag == "-e")
    arguments = words[words.index("IMAGE") + 1 :]
    readings = str(REPOSITORY / "tests" / "fixtures" / "readings" / "gb10.json")
    variables = {**given, "FACTORY_READINGS": readings}
    return Preview(REPOSITORY, served.description, served.model).run(*arguments, variables=variables)
