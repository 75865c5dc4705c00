"""The levels that an arch has, requires for a tag, or a user requests."""

from imagefactory.check.smoke.record import LEVELS, levels_named, levels_of, required_levels
from imagefactory.project.matrix import Matrix
from tests.fixtures.failures import raises


def test_a_cpu_image_has_no_gpu_level_and_no_tag_requires_it(serving_matrix: Matrix) -> None:
    assert levels_of(serving_matrix, "cpu") == ("static", "container", "serve")
    assert levels_of(serving_matrix, "gb10") == LEVELS
    for arch in ("cpu", "gb10", "rtx5090"):
        assert required_levels(serving_matrix, arch) == ("static", "container", "serve")


def test_requested_levels_are_sorted_and_an_unknown_one_is_refused_with_the_nearest_name(
    serving_matrix: Matrix,
) -> None:
    assert levels_named(["serve,static", "gpu"], serving_matrix, "cpu") == ("static", "serve", "gpu")
    assert levels_named([], serving_matrix, "cpu") == levels_of(serving_matrix, "cpu")
    with raises("unknown-name", match="Unknown level 'statik'") as caught:
        levels_named(["statik"], serving_matrix, "cpu")
    assert caught.value.fix == "Did you mean static?"
