"""Damaged files, answers, settings and command lines: each is taken, or refused by a named error, and soon.

`FUZZ_CASES=1000 FUZZ_SEED=x pytest tests/unit/test_fuzz.py` tries more, and others, and counts them.
"""

import copy
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from imagefactory.check.bench.tool import ToolError
from imagefactory.cli.failures import complain, from_system
from imagefactory.errors import FactoryError
from images.serve.program.errors import StartError
from tests.fixtures.fuzzing import answers, checkout, container, records  # noqa: F401 - they add surfaces
from tests.fixtures.fuzzing.mutations import DEEP, OVERFLOW, Mutator, written
from tests.fixtures.fuzzing.surface import SURFACES

CASES, SEED = int(os.environ.get("FUZZ_CASES", "5")), os.environ.get("FUZZ_SEED", "0")
LIMIT = 10
"""Seconds for a case."""
NO_ZONE = "2026-11-01T00:00:00"
# fmt: off
FOUND: list[tuple[str, tuple[str | int, ...], Any]] = [
    ("data files", ("data", "tasks"), 5),
    ("settings of uv", ("index",), [1]),
    ("settings of uv", ("find-links",), 1),
    ("registry", ("sbom", "components", 0, "properties"), []),
    ("answers results", ("outcomes",), []),
    ("answers results", ("bound", "settings", "EXTRA_ARGS"), "'"),
    ("answers results", ("windows", 0, "top", 0), {}),
    ("answers records", ("started",), NO_ZONE),
    ("smoke records", ("started",), NO_ZONE),
    ("bench", ("started",), NO_ZONE),
    ("bench", ("measurements", 0, "kind"), "another"),
    ("bench", ("measurements", 0, "per_token", "p50"), 0),
    ("bench", ("measurements", 0, "output_tokens"), 10**400),
    ("server answers", ("tokens", 0), []),
    ("server answers", ("tokens", 0), OVERFLOW),
    ("github", ("issues", 0), []),
    ("github", ("issues",), [{"number": 3, "state": "open", "body": ""}] * 100),
    ("github", ("object",), []),
    ("github", ("rows", 0, "id"), "x"),
    ("hub of the factory", ("siblings", 0, "lfs", "size"), 10**400),
    ("hub of an image", ("siblings", 0, "size"), 10**400),
    ("model files", ("config.json", "head_dim"), OVERFLOW),
    ("model files", ("config.json", "head_dim"), 10**400),
    ("model files", ("model.safetensors.index.json", "weight_map", "a"), "\ud800"),
    ("model files", ("list", "files", "config.json", "size"), OVERFLOW),
    ("readings", ("driver",), DEEP),
    ("pair messages", ("revision",), {}),
]
"""What once ended in a traceback: a surface, a place in its first document, and what stood there."""
# fmt: on


class HangError(BaseException):
    """A case takes too long."""


def _give_up(_: int, __: FrameType | None) -> None:
    raise HangError


def _refused(call: Callable[[Any], object], document: Any) -> bool:
    """Have a document read within the limit; raise whatever a command would not explain."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return bool(call(document))
    except FactoryError as error:
        complain(error)
    except (StartError, ToolError) as error:
        str(error)
    except Exception as error:
        if from_system(error, "here") is None:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True


def _tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print at once, in a long run: somebody may end it."""
    if "FUZZ_CASES" in os.environ:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")


@pytest.mark.parametrize("name", SURFACES)
def test_what_is_damaged_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused, longest, failures = 0, 0.0, dict[str, str]()
    with SURFACES[name](tmp_path) as (form, documents, call):
        for number in range(CASES):
            source = Mutator(f"{SEED} {name} {number}")
            document = source.document(source.choice(documents), form)
            began = time.monotonic()
            try:
                refused += _refused(call, document)
            except (Exception, HangError) as error:  # noqa: BLE001 - whatever it is, it has a case
                shown = "".join(traceback.format_exception(error))[-3000:]
                place = re.findall(r"^  File .*", shown, re.MULTILINE)[-1]
                if place not in failures:
                    failures[place] = f"case {number}: {str(document)[:300]}\n{shown}"
                    _tell(capsys, failures[place])
            longest = max(longest, time.monotonic() - began)
            capsys.readouterr()
    row = (name, CASES, refused, CASES - refused, len(failures), f"{longest:.2f}", SEED)
    _tell(capsys, f"| {' | '.join(map(str, row))} |")
    assert not failures, "\n\n".join(failures.values())


@pytest.mark.parametrize(("name", "path", "value"), FOUND)
def test_what_was_found_stays_mended(name: str, path: tuple[str | int, ...], value: Any, tmp_path: Path) -> None:
    with SURFACES[name](tmp_path) as (form, documents, call):
        document = place = copy.deepcopy(documents[0])
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        _refused(call, document if form == "value" else written(document, form))


@pytest.mark.parametrize("name", SURFACES)
def test_what_is_sound_is_taken(name: str, tmp_path: Path) -> None:
    """Else a surface would look at nothing but its first refusal."""
    with SURFACES[name](tmp_path) as (form, documents, call):
        sound = documents[0]
        data = sound if form == "value" else sound.encode() if isinstance(sound, str) else written(sound, form)
        assert not _refused(call, data)
