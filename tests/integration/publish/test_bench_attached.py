"""Benchmark results attached to images in a registry."""

from __future__ import annotations

from imagefactory.bench.result import BenchResult
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import contents
from imagefactory.publish.bench_records import BENCH_TYPE, attach_result
from tests.fixtures.benchmarks import BOUND, result
from tests.fixtures.publishing import Publisher


def test_a_result_is_found_with_its_image(publisher: Publisher) -> None:
    [staged] = publisher.push()
    found = result(bound=BOUND.model_copy(update={"digest": staged.digest}))
    attach_result(publisher.repository, found)
    [referrer] = referrers.find(publisher.repository, staged.digest, BENCH_TYPE)
    manifest = publisher.repository.manifest(referrer.digest)
    assert manifest is not None
    [item] = [item for item in contents(publisher.repository, manifest) if item.media_type == BENCH_TYPE]
    assert BenchResult.model_validate_json(publisher.repository.blob(item.digest)) == found
