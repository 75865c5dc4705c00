"""What is asked of a registry: attachments are listed once per image, and the catalog is read once per run."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from imagefactory.ci.night import plan_night
from imagefactory.oci.registry.repository import Repository
from tests.fixtures.fault_proxy import FaultProxy, Request
from tests.fixtures.publishing import Publisher, passing
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_factory import CELL, SECOND


@dataclass(frozen=True)
class Watched:
    """A way to the publisher's repository that notes every request."""

    repository: Repository
    asked: list[Request]

    def count(self, method: str, path: str) -> int:
        return sum(request.method == method and path in request.path for request in self.asked)

    def listings(self) -> list[str]:
        """Return the images whose attachments were listed, in order."""
        return sorted(request.path.rpartition("/")[2] for request in self.asked if "/referrers/" in request.path)


@pytest.fixture
def watched(publisher: Publisher, guarded_registry: GuardedRegistry, fault_proxy: FaultProxy) -> Iterator[Watched]:
    asked: list[Request] = []

    def note(request: Request) -> None:
        asked.append(request)

    fault_proxy.choose = note
    name = publisher.repository.reference.repository
    with guarded_registry.repository(name, at=fault_proxy.address) as repository:
        repository.resolve("nothing")  # the first request only brings a token
        asked.clear()
        yield Watched(repository, asked)


def test_publishing_a_new_image_lists_its_attachments_once_and_reads_the_catalog_once(
    publisher: Publisher, watched: Watched
) -> None:
    publisher.publish_changed(1000)
    publisher.change(1100)
    [promoted] = publisher.publish_with(passing, CELL, repository=watched.repository).promoted
    assert watched.listings() == [promoted.image.digest]
    assert watched.count("GET", "/manifests/catalog") == 1
    assert watched.count("PUT", "/manifests/catalog") == 1
    # The write looks at the tag before it and after its wait, and once more when all tags are set.
    assert watched.count("HEAD", "/manifests/catalog") == 3


def test_promoting_several_images_lists_each_once_and_reads_the_catalog_once(
    publisher: Publisher, watched: Watched
) -> None:
    staged = publisher.push(CELL, SECOND)
    for image in staged:
        publisher.vouch(image)
    assert publisher.promote(CELL, SECOND, repository=watched.repository).refused == []
    assert watched.listings() == sorted(image.digest for image in staged)
    assert watched.count("GET", "/manifests/catalog") == 1


def test_a_night_lists_only_what_is_staged_and_not_published(publisher: Publisher, watched: Watched) -> None:
    publisher.publish(SECOND)
    tested = publisher.push_tested(1000)
    night = plan_night(publisher.project, watched.repository, [CELL, SECOND])
    assert [(work.cell, work.needs) for work in night.works] == [(CELL, ("promote",))]
    assert night.current == 1
    assert watched.listings() == [tested.digest]
    assert watched.count("GET", "/manifests/catalog") == 1
