"""The levels that an arch has, requires for a tag, or a user requests."""

from __future__ import annotations

import pytest

from imagefactory.errors.matrix import UnknownNameError
from imagefactory.matrix.matrix import Matrix
from imagefactory.smoke.levels import levels_named, levels_of, required_levels
from imagefactory.smoke.record import LEVELS


def test_a_cpu_image_has_no_gpu_level(real_matrix: Matrix) -> None:
    assert levels_of(real_matrix, "cpu") == ("static", "container", "serve")
    assert levels_of(real_matrix, "gb10") == LEVELS


@pytest.mark.parametrize("arch", ["cpu", "gb10", "rtx5090"])
def test_a_tag_requires_every_level_that_needs_no_gpu(real_matrix: Matrix, arch: str) -> None:
    assert required_levels(real_matrix, arch) == ("static", "container", "serve")


def test_requested_levels_are_sorted(real_matrix: Matrix) -> None:
    assert levels_named(["serve,static", "gpu"], real_matrix, "cpu") == ("static", "serve", "gpu")
    assert levels_named([], real_matrix, "cpu") == levels_of(real_matrix, "cpu")


def test_an_unknown_level_is_refused_with_the_nearest_name(real_matrix: Matrix) -> None:
    with pytest.raises(UnknownNameError, match="no level 'statik'") as caught:
        levels_named(["statik"], real_matrix, "cpu")
    assert caught.value.fix == "Did you mean static?"
