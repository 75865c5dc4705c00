"""Five nights of a fork, from the workflow's own steps: the first one, a quiet one, two broken ones, and the mend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.engines import forget_images, need
from tests.fixtures.tiny_image import TARGET
from tests.fixtures.whole_night import Rehearsal, five_nights, rehearsal

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.network, pytest.mark.disk(12)]
QUIET = ["plan", "scan", "promote", "report", "status"]
"""The jobs of a night after which nothing changed."""


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Rehearsal]:
    need("docker-registry")
    with rehearsal(tmp_path / "nights", TARGET) as fork:
        yield fork
        forget_images(fork.place)


def test_five_nights_of_a_fork(fork: Rehearsal) -> None:
    nights = five_nights(fork, TARGET)

    first = next(nights)
    assert first.failed == [], first.log[-6000:]
    assert first.results["compile"] == "skipped"
    assert {"tiny", "tiny-v0.32.0"} < set(first.moved)
    fork.inv("verify", "--strict", "--image", f"{fork.place}:tiny")

    quiet = next(nights)
    assert [run.job for run in quiet.jobs if run.result != "skipped"] == QUIET
    assert (quiet.failed, quiet.pushed, quiet.moved, quiet.issues) == ([], 0, [], ())

    broken = next(nights)
    assert broken.failed == ["smoke", "promote", "report", "status"], broken.log[-6000:]
    assert broken.moved == []
    [issue] = fork.github.issues
    assert issue["state"] == "open"
    assert "RuntimeError: broken on purpose" in issue["body"]

    after = next(nights)
    assert after.failed == ["report", "status"], after.log[-6000:]
    assert (after.pushed, after.moved, after.issues) == (0, [], ())

    mended = next(nights)
    assert mended.failed == [], mended.log[-6000:]
    assert "tiny" in mended.moved
    assert [issue["state"] for issue in fork.github.issues] == ["closed"]
