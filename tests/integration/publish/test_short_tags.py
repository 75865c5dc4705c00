"""Short tags name the compiled image once there is one that passed, else the one from published wheels."""

from dataclasses import replace

import pytest

from imagefactory.ci.night import plan_night
from imagefactory.project.locks.files import WheelLock
from imagefactory.publish.history import history
from imagefactory.publish.rollback import rollback
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.failures import is_failure
from tests.fixtures.publishing import Publisher
from tests.fixtures.small_factory import CELL

NATIVE = replace(CELL, version="1.0-native")
SHORT = ("latest", "tiny")


@pytest.fixture
def two_versions(publisher: Publisher) -> Publisher:
    """Let the small factory build the same release with a compiled wheel, which short tags prefer."""
    factory = publisher.factory
    factory.edit_matrix('"1.0", arch: cpu', '"1.0", arch: cpu, tags: 1.0-native')
    native = 'release: "1.0", compile: {cpu: [published, pure]}'
    factory.edit_matrix('{release: "1.0"}}', f'{{release: "1.0"}}, 1.0-native: {{{native}}}}}')
    lock = WheelLock.read(factory.project.wheel_lock_path(CELL))
    wheels = tuple(
        wheel.model_copy(update={"compiled": Sha256("a" * 64)}) if wheel.name == "pure" else wheel
        for wheel in lock.wheels
    )
    lock = lock.model_copy(update={"version": NATIVE.version, "wheels": wheels})
    lock.write(lock.home(factory.locks))
    return publisher


def named(publisher: Publisher) -> str:
    """Return what all short tags name."""
    tags = publisher.tags()
    [digest] = {tags[tag] for tag in SHORT}
    return digest


def left(publisher: Publisher) -> dict[str, str]:
    """Return what a night would do, and why."""
    night = plan_night(publisher.project, publisher.repository, [CELL, NATIVE])
    return {work.cell.version: f"{' '.join(work.needs)}: {work.reason}" for work in night.works}


def set_back(publisher: Publisher, to: str = "") -> Digest:
    return rollback(publisher.project, publisher.repository, NATIVE, to).image.digest


def test_the_compiled_image_takes_the_short_tags_and_a_rollback_gives_them_back(two_versions: Publisher) -> None:
    publisher = two_versions
    publisher.change(1024)
    [published] = publisher.publish(CELL)
    assert named(publisher) == published
    [native] = publisher.publish(NATIVE)
    assert named(publisher) == native
    told = history(publisher.catalog, ["tiny"], CELL.platform)
    assert "vLLM 1.0 → 1.0-native" in told[-1].changed
    assert left(publisher) == {}
    # The other one still gets new images, under the tag of its version.
    publisher.change(2048)
    [newer] = publisher.publish(CELL)
    assert (named(publisher), publisher.tags()["tiny-v1.0"]) == (native, newer)
    # A rollback goes to what the tags named before. It is somebody's choice: no night moves them to an image that was
    # there already, and none brings back what was left.
    assert set_back(publisher) == published
    assert "1.0" not in left(publisher)
    publisher.change(1024)
    assert (named(publisher), publisher.tags()["tiny-v1.0-native"]) == (published, native)
    assert is_failure(publisher.promote(NATIVE).refused[0], "held-back")
    publisher.change(4096)
    [newest] = publisher.publish(CELL)
    assert named(publisher) == newest
    [mended] = publisher.publish(NATIVE)
    assert named(publisher) == mended


def test_of_two_that_are_published_together_only_the_compiled_one_has_the_short_tags(two_versions: Publisher) -> None:
    both = two_versions.publish(CELL, NATIVE)
    assert named(two_versions) == both[1]
    tags_of = two_versions.catalog.tags_of
    assert [tags_of(digest) & {*SHORT} for digest in both] == [set(), {*SHORT}]


def test_an_image_that_becomes_the_default_takes_the_short_tags_without_a_new_build(two_versions: Publisher) -> None:
    published, native = two_versions.publish(CELL, NATIVE)
    assert named(two_versions) == native
    two_versions.factory.edit_matrix(", tags: 1.0-native", "")
    assert left(two_versions) == {"1.0": "promote: takes over tiny, latest"}
    two_versions.promote(CELL)
    assert (named(two_versions), left(two_versions)) == (published, {})
