"""The status of a plan: nothing is known before a build, everything after it."""

from __future__ import annotations

from imagefactory.plan.make import make_plan
from imagefactory.plan.status import plan_status
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def test_before_a_build_nothing_is_cached_and_no_image_is_known(small_factory: SmallFactory) -> None:
    status = plan_status(small_factory.project, make_plan(small_factory.project, CELL), [])
    assert {(blob, cached) for _, blob, cached in status.layers} == {(None, False)}
    assert (status.image, status.shared) == (None, 0)


def test_after_a_build_the_sizes_and_the_image_are_known(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    other = make_plan(small_factory.project, SECOND)
    status = plan_status(small_factory.project, built.plan, [built.plan, other])
    assert [layer.blob for layer in status.layers] == list(built.image.layers)
    assert all(layer.cached for layer in status.layers)
    assert status.image == built.image
    both = {layer.key for layer in other.layers}
    assert status.shared == sum(layer.download for layer in built.plan.layers if layer.key in both) > 0
