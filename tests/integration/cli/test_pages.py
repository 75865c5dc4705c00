"""README and docs show what commands print that need a registry, or Docker."""

import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fixtures.console import PAGES, Listed, differs, shown
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.publishing import Publisher
from tests.fixtures.tiny_image import TARGET, invoke

pytestmark = [pytest.mark.slow, pytest.mark.each_run]
LISTED = Listed.read()
SHOWN = [one for page in PAGES for one in shown(page)]


def replaced(text: str, names: dict[str, str]) -> str:
    """Replace the names that a page uses with those of the test."""
    for name, ours in names.items():
        text = text.replace(name, ours)
    return text


def agree(command: str, names: dict[str, str], printed: str) -> None:
    """Check what was printed against every page that shows the command."""
    for one in SHOWN:
        if one.command == command:
            output = tuple(replaced(line, names) for line in one.output)
            assert differs(output, printed) == "", f"{one.page}: {command}\n{printed}"


def test_pages_show_what_commands_with_a_registry_print(publisher: Publisher) -> None:
    registry = publisher.repository.reference.name
    names = {
        "gemma4-31b@0.32.0/gb10 for linux/arm64": f"tiny@1.0/cpu for {PLATFORM}",
        "tiny@0.32.0/cpu for linux/arm64": f"tiny@1.0/cpu for {PLATFORM}",
        "gemma4-31b": "tiny",
        "https://github.com/OWNER/spark-image-factory/.github/workflows/": "https://git.example/factory#",
        "ghcr.io/YOU/spark-vllm": registry,
        "ghcr.io/OWNER/spark-vllm": registry,
        "2026-11-05": f"{datetime.now(UTC):%Y-%m-%d}",
        "960fe0b0bbd0": publisher.publish_changed(1000)[0][7:19],
    }
    publisher.change(1100)
    publisher.leave_record()
    for command in LISTED.published:
        done = publisher.invoke(*shlex.split(replaced(command.partition(" > ")[0], names))[1:])
        assert done.returncode == 0, f"{command}: {done.stderr}"
        agree(command, names, done.stderr + done.stdout)


@pytest.mark.engine
@pytest.mark.network
def test_pages_show_what_commands_with_an_image_print(tiny_checkout: Path, tiny_image: str) -> None:
    names = {"gemma4-31b": TARGET, "IMAGE": tiny_image, "docker run …": "docker run --rm --ipc host"}
    for command in LISTED.container:
        words = shlex.split(replaced(command, names))
        if words[0] == "docker":
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            printed = done.stderr + done.stdout
        else:
            printed = invoke(tiny_checkout, *words[1:])
        agree(command, names, printed)
