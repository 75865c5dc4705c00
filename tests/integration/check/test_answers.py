"""Answers of a small trained model: equal ones are called the same, and each deliberate fault is found."""

import json
from pathlib import Path

import pytest

from imagefactory.check.answers.comparison import change, figures, judge
from imagefactory.check.answers.result import AnswersResult, Continuation, window_of
from imagefactory.check.smoke.containers import docker
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.trained import mounted

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
Place = dict[str, float]


def by_token(place: Place) -> dict[int, float]:
    return {int(token): value for token, value in place.items()}


@pytest.fixture(scope="module")
def faults(trained: Path, tiny_image: str, served: AnswersResult) -> dict[str, AnswersResult]:
    """The same panel from one process, whole (under an empty name) and with each fault."""
    options = (*mounted(trained), "--volume", f"{REPOSITORY}:/repo:ro", "--entrypoint", "/opt/venv/bin/python3")
    done = docker("run", "--rm", "--ipc", "host", *options, tiny_image, "/repo/tests/trained/faults.py", timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    kinds = [window.kind for window in served.windows]

    def windows(texts: list[list[Place]]) -> dict[str, object]:
        return {
            "windows": tuple(
                map(window_of, kinds, found["texts"], [[by_token(place) for place in text] for text in texts])
            )
        }

    def continuations(texts: list[tuple[list[int], list[Place]]]) -> dict[str, object]:
        return {
            "continuations": tuple(
                Continuation(kind=kind, tokens=tuple(tokens), top=tuple(by_token(place) for place in top))
                for kind, (tokens, top) in zip(kinds[::2], texts, strict=True)
            )
        }

    whole = served.model_copy(
        update={"chat": ()} | windows(found["results"][""]) | continuations(found["continued"][""])
    )
    updates = {name: windows(texts) for name, texts in found["results"].items()}
    updates |= {name: continuations(texts) for name, texts in found["continued"].items()}
    return {name: whole.model_copy(update=update) for name, update in updates.items()}


def test_a_server_says_what_the_model_says_in_one_process(
    served: AnswersResult, faults: dict[str, AnswersResult]
) -> None:
    found = figures(served, faults[""])
    assert judge(change(served, faults[""]), found, figures(faults[""], faults["nothing"]))[0] == "same", found
    assert found.places > 5000
    # A trained model prefers some tokens; a uniform one would have 384.
    assert found.same_choice > 0.999
    certain = [max(place.values()) for window in served.windows for place in window.top]
    assert sum(value > -1 for value in certain) > len(certain) / 4


def test_every_deliberate_fault_is_found(faults: dict[str, AnswersResult]) -> None:
    whole = faults[""]
    noise = figures(whole, faults["nothing"])
    found = {name: figures(whole, other) for name, other in faults.items()}
    verdicts = {name: judge("drafter" if "drafter" in name else "code", one, noise)[0] for name, one in found.items()}
    same = {name for name, verdict in verdicts.items() if verdict == "same"}
    assert same == {"", "nothing", "a drafter"}, found
    assert len(verdicts) == 9 + len(same)
    assert found["a drafter"].continuations == 8
