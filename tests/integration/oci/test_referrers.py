"""What is attached to images, in a real registry that has no API for it, as GHCR has none."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.errors import RegistryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.image_push import push_image
from imagefactory.oci.registry.reference import Descriptor, is_digest
from imagefactory.oci.registry.referrers import Attachment
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.failures import raises
from tests.fixtures.small_images import small_image

LAYERS = [b"a layer"]


def test_an_attachment_whose_content_got_lost_is_sent_again(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = push_image(repository, small_image(LAYERS)).descriptor
    write, losses = repository.write_manifest, 1

    def lose(*arguments: Any, **options: Any) -> tuple[Digest, Mapping[str, str]]:
        nonlocal losses
        if losses:
            losses -= 1
            raise RegistryError("no-content", "Lost.", where="here", why="A race.", fix="Again.")
        return write(*arguments, **options)

    monkeypatch.setattr(repository, "write_manifest", lose)
    attached = referrers.attach(repository, image, "application/vnd.test", [Payload("text/plain", b"a")])
    assert [item.digest for item in referrers.find(repository, image.digest)] == [attached.digest]
    losses = 2
    with raises("no-content"):
        referrers.attach(repository, image, "application/vnd.test", [Payload("text/plain", b"b")])


def test_parallel_attachments_are_all_listed(repository: Repository) -> None:
    image = push_image(repository, small_image(LAYERS)).descriptor

    def attach(number: int) -> None:
        referrers.attach(repository, image, "application/vnd.test", [Payload("text/plain", str(number).encode())])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attach, range(8)))
    assert len(referrers.find(repository, image.digest)) == 8


class Interrupted(Repository):
    """A repository whose user is interrupted once, after a kind of request for a tag."""

    after = ""
    interruption: Callable[[], object] = lambda: None

    def _then(self, kind: str, name: str, answer: Any) -> Any:
        if kind == self.after and not is_digest(name):
            self.after = ""
            self.interruption()
        return answer

    def manifest(self, name: str) -> Any:
        return self._then("read", name, super().manifest(name))

    def resolve(self, name: str) -> Any:
        return self._then("look", name, super().resolve(name))

    def write_manifest(self, body: bytes, media_type: str, tag: str | None = None, **options: Any) -> Any:
        return self._then("write", tag or digest_of(body), super().write_manifest(body, media_type, tag, **options))


@pytest.mark.usefixtures("rivals")
@pytest.mark.parametrize("moment", ["read", "look", "write"])
def test_of_two_writers_of_attachments_neither_loses_its_own(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    image = push_image(repository, small_image(LAYERS)).descriptor
    # Processes do not share locks.
    monkeypatch.setattr(referrers, "_ONE_AT_A_TIME", SimpleNamespace(setdefault=lambda _, lock: lock))

    def attach(writer: Repository, *texts: bytes) -> list[Descriptor]:
        several = [Attachment("application/vnd.sig", [Payload("text/plain", text)]) for text in texts]
        return referrers.attach_many(writer, image, several)

    slow = Interrupted(repository.reference, repository.credentials, repository.retry)
    slow.after = moment
    theirs: list[Descriptor] = []
    slow.interruption = lambda: theirs.extend(attach(repository, b"theirs", b"theirs too"))
    ours = attach(slow, b"ours", b"ours too")
    assert slow.after == ""
    found = {item.digest for item in referrers.find(repository, image.digest)}
    assert found == {item.digest for item in (*ours, *theirs)}
    assert len(found) == 4
