"""What planning a night costs, counted in calls: seconds depend on the machine."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

from imagefactory.ci.night import find_compiles, nightly_cells, plan_night
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import all_combinations, reason_excluded
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY


def plan_everything(project: Project) -> None:
    """Plan the first night of this checkout, as `./inv ci.plan --first` does."""
    cells = nightly_cells(project)
    night = plan_night(project, Repository.open("127.0.0.1:9/a/b"), cells, first=True)
    assert len(night.works) > 100
    assert find_compiles(project, None, cells).jobs


@contextmanager
def counted_calls() -> Iterator[Counter[CodeType]]:
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(previous)


def test_a_night_judges_a_combination_about_once() -> None:
    """To judge all of them for each image took most of the time: 193 times 1,680 combinations."""
    project = Project(REPOSITORY)
    with counted_calls() as calls:
        plan_everything(project)
    assert calls[reason_excluded.__code__] < 2 * len(list(all_combinations(project.matrix)))
