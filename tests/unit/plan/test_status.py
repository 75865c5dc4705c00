"""The status of a plan before and after a build."""

from __future__ import annotations

from imagefactory.plan.make import make_plan
from imagefactory.plan.status import plan_status
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def test_nothing_is_known_before_a_build(small_factory: SmallFactory) -> None:
    status = plan_status(small_factory.project, make_plan(small_factory.project, CELL), [])
    assert {(blob, cached) for _, blob, cached in status.layers} == {(None, False)}
    assert (status.image, status.shared) == (None, 0)


def test_sizes_image_and_shared_layers_are_known_after_a_build(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    other = make_plan(small_factory.project, SECOND)
    status = plan_status(small_factory.project, built.plan, [built.plan, other])
    assert [layer.blob for layer in status.layers] == list(built.image.layers)
    assert all(layer.cached for layer in status.layers)
    assert status.image == built.image
    assert status.shared == sum(layer.download for layer in built.plan.layers[:-1]) > 0
    assert plan_status(small_factory.project, built.plan, [built.plan]).shared == 0
