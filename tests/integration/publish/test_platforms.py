"""One tag for several platforms: an index of published images."""

import pytest

from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import BaseLock, WheelLock
from imagefactory.project.matrix import SOURCE
from imagefactory.publish.prune import Policy, prune
from imagefactory.publish.tags import CATALOG
from tests.fixtures.failures import is_failure
from tests.fixtures.platforms import FOREIGN, MACHINE, PLATFORM, machine_of
from tests.fixtures.publishing import START, Publisher
from tests.fixtures.small_factory import CELL

OTHER = Cell(CELL.model, CELL.version, CELL.arch, FOREIGN)


@pytest.fixture
def two_platforms(publisher: Publisher) -> Publisher:
    """Let the small factory build the same for another processor."""
    locks = publisher.factory.root / "locks"
    for kind, path in (
        (WheelLock, WheelLock.path(locks, CELL.version, CELL.arch, CELL.platform)),
        (BaseLock, BaseLock.path(locks, "bookworm", CELL.platform)),
    ):
        lock = kind.read(path).model_copy(update={"platform": OTHER.platform})
        lock.write(path.with_name(path.name.replace(MACHINE, machine_of(FOREIGN))))
    publisher.factory.edit_matrix(f"[{PLATFORM}]", "[linux/arm64, linux/amd64]")
    return publisher


def images(here: str, there: str) -> dict[str, str]:
    """Name the image of either machine, as an index does."""
    return {MACHINE: here, machine_of(FOREIGN): there}


def entries(publisher: Publisher, tag: str) -> dict[str, str]:
    document = publisher.repository.require_manifest(tag).document()
    return {entry["platform"]["architecture"]: entry["digest"] for entry in document["manifests"]}


def test_moving_tags_are_an_index_and_each_image_keeps_a_tag_of_its_own(two_platforms: Publisher) -> None:
    here, there = two_platforms.publish(CELL, OTHER)
    assert entries(two_platforms, "tiny") == images(here, there)
    tags = two_platforms.tags()
    assert tags["tiny"] == tags["tiny-v1.0"] == tags["latest"]
    fixed = {tag: digest for tag, digest in tags.items() if tag.startswith("tiny-v1.0-cpu-")}
    assert sorted(fixed.values()) == sorted([here, there])
    # What links the package to its repository is beside the images, whose bytes are everybody's.
    for tag in ("tiny", CATALOG):
        annotations = two_platforms.repository.require_manifest(tag).document()["annotations"]
        assert annotations[SOURCE] == "https://git.example/factory"
    for digest in (here, there):
        assert SOURCE not in two_platforms.repository.require_manifest(digest).document()["annotations"]
    # Publishing and rollback on one platform leave the other its image.
    first = here
    [here] = two_platforms.publish_changed(2048)
    assert entries(two_platforms, "tiny") == images(here, there)
    [there] = two_platforms.publish(OTHER)
    assert two_platforms.rollback().image.digest == first
    assert entries(two_platforms, "latest") == images(first, there)
    two_platforms.promote(OTHER, again=True)  # lifts no hold of this platform
    assert is_failure(two_platforms.refusal(), "held-back")


def test_pruning_keeps_the_images_of_an_index_in_use(two_platforms: Publisher) -> None:
    two_platforms.publish(CELL, OTHER)
    two_platforms.publish_changed(2000, 2100)
    before = entries(two_platforms, "tiny")
    pruning = prune(two_platforms.repository, Policy(keep=1), delete=True, moment=START)
    assert {item.kind for item in pruning.deletions} >= {"index", "image", "catalog"}
    assert entries(two_platforms, "tiny") == before
    for digest in before.values():
        assert two_platforms.repository.manifest(digest) is not None
    assert {image.digest for image in two_platforms.catalog.images} == set(before.values())
