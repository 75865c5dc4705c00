"""The requirement that no index can meet, found in the resolver's words and checked on the index."""

import pytest

from imagefactory.errors import LockError
from imagefactory.lock.unmet import first_unmet
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import load_matrix
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

MATRIX = load_matrix(REPOSITORY / "matrix.yaml")
CELL = Cell("gemma4-31b", MATRIX.defaults.vllm, "gb10", "linux/arm64")
OLDER_AND_NEWER = (
    "Because there is no version of dep==3 and mid<=1.0 depends on dep==3, we can conclude that mid<=1.0 cannot be "
    "used. (1) Because there is no version of dep==4 and mid>=1.1 depends on dep==4, we can conclude that mid>=1.1 "
    "cannot be used. And because all versions of vllm depend on mid and you require vllm==2.0, it is unsatisfiable."
)
EXCLUDED = "and all versions of vllm depend on one of: dep>=1.5,<1.6 dep>1.6,<2 we can conclude that it cannot be used."


@pytest.mark.parametrize(
    ("words", "unmet"),
    [
        (OLDER_AND_NEWER, "mid asks for dep==4, and the newest on the index is 2.0"),
        ("vllm>=0.33.0 depends on dep>=2,<3 and vllm[fast] depends on mid>=9.", "vllm asks for mid>=9, and "),
        (EXCLUDED, None),
        ("nothing depends on", None),
        ("it depends on , and depends on ???", None),
    ],
)
def test_what_the_newest_version_asks_for_is_looked_up(
    simple_index: SimpleIndex, wheel_factory: WheelFactory, words: str, unmet: str | None
) -> None:
    simple_index.add(wheel_factory("dep", "2.0"), wheel_factory("mid", "1.1"))
    failure = LockError("unresolvable", "It cannot be resolved.", where="here", why=words, fix="Wait.")
    indexes = Indexes(IndexConfig(indexes=(simple_index.url,)))
    found = first_unmet(failure, MATRIX, CELL, indexes, set())
    assert str(found).startswith(unmet) if unmet else found is None
    assert found is None or first_unmet(failure, MATRIX, CELL, indexes, {found.requirement.name}) is None
