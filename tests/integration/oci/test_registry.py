"""Images and what is attached to them, in a real registry that requires tokens and has no API for referrers."""

import json
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from imagefactory.errors import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.engines import need
from tests.fixtures.failures import raises
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.platforms import MACHINE
from tests.fixtures.registries import HURRIED, USERS, GuardedRegistry
from tests.fixtures.small_factory import SmallFactory
from tests.fixtures.small_images import small_image, what_is_missing

LAYERS = [b"first" * 1000, b"second" * 2000, os.urandom(300_000)]


@pytest.fixture
def repository(guarded_registry: GuardedRegistry) -> Repository:
    """Open a new repository."""
    return guarded_registry.repository()


def test_image_is_pushed_by_digest_and_comes_back_byte_for_byte(repository: Repository, tmp_path: Path) -> None:
    image = small_image(LAYERS)
    with raises("no-content", match="does not have that content"):
        repository.put_manifest(image.manifest, MANIFEST_TYPE, "latest")
    assert repository.manifest("latest") is None
    with raises("no-content"):
        repository.blob(digest_of(b"x"))
    pushed = push_image(repository, image)
    assert set(pushed.outcomes.values()) == {"uploaded"}
    assert what_is_missing(repository, pushed.digest) == []
    # This registry does not distinguish a repository without tags from a missing one.
    with raises("no-repository", match=repository.reference.repository):
        repository.tags()
    assert repository.blob(digest_of(LAYERS[2])) == LAYERS[2]
    with raises("wrong-digest", match="other content"):
        repository.download(digest_of(LAYERS[0]), 17, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    spaced = json.dumps(json.loads(image.manifest), indent=3).encode()
    manifest = repository.require_manifest(repository.put_manifest(spaced, MANIFEST_TYPE))
    assert (manifest.body, manifest.media_type) == (spaced, MANIFEST_TYPE)


def test_second_push_only_looks_up(guarded_registry: GuardedRegistry, fault_proxy: FaultProxy) -> None:
    repository = guarded_registry.repository(at=fault_proxy.address)
    push_image(repository, small_image(LAYERS))
    fault_proxy.calm()

    def unwanted() -> BinaryIO:
        raise AssertionError("a blob was opened")

    image = small_image(LAYERS)
    again = push_image(repository, replace(image, parts=[replace(part, open=unwanted) for part in image.parts]))
    assert again.count("present") == len(again.outcomes) == 4
    assert again.uploaded == 0
    assert fault_proxy.account.requests == {"HEAD blob": 4, "HEAD manifest": 1}


def test_built_image_is_pushed_from_the_store_and_skopeo_copies_it(
    repository: Repository, small_factory: SmallFactory, tmp_path: Path
) -> None:
    [built] = small_factory.build()
    store = Store(small_factory.cache)
    labels: dict[Digest, str] = {}
    states: list[str] = []
    watcher = SimpleNamespace(blobs=labels.update, state=lambda _key, state, *_: states.append(state))
    pushed = push_image(repository, Pushable.of_image(built.image, store.blob), tag="store", watcher=watcher)
    assert pushed.digest == built.image.digest
    assert list(labels.values())[-1] == "config"
    assert next(iter(labels.values())).startswith("base ")
    assert states.count("uploaded") == len(labels)
    assert pushed.descriptor.platform == {"architecture": MACHINE, "os": "linux"}
    need("skopeo")
    options = ["--src-tls-verify=false", f"--src-creds=writer:{USERS['writer'].password}"]
    source, target = f"docker://{repository.reference.at(pushed.digest)}", f"oci:{tmp_path}/copy"
    subprocess.run(["skopeo", "copy", *options, source, target], check=True, capture_output=True)
    assert Layout(tmp_path / "copy").manifest_digest() == pushed.digest


def push_to(repository: Repository) -> object:
    return push_image(repository, small_image(LAYERS))


def test_anonymous_user_may_read_a_public_image_but_not_write(
    guarded_registry: GuardedRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    digest = push_image(guarded_registry.repository("public/image"), small_image(LAYERS), tag="latest").digest
    anonymous = Repository.open(f"{guarded_registry.address}/public/image", retry=HURRIED)
    assert anonymous.resolve("latest") == digest
    with raises("credentials-refused", match="without credentials"):
        push_image(anonymous, small_image([b"new"]))


def test_token_is_replaced_before_it_expires(
    guarded_registry: GuardedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = guarded_registry.repository()
    push_to(repository)
    before = len(guarded_registry.tokens.requests)
    now = [0.0]
    monkeypatch.setattr("imagefactory.oci.registry.connection.time.monotonic", lambda: now[0] + 1e9)
    push_to(repository)
    now[0] += 280
    push_to(repository)
    assert len(guarded_registry.tokens.requests) - before == 1
    now[0] += 15
    push_to(repository)
    assert len(guarded_registry.tokens.requests) - before == 2


# --- what is attached to images ------------------------------------------------------------------


def test_an_attachment_whose_content_got_lost_is_sent_again(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = push_image(repository, small_image([b"a layer"])).descriptor
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
    image = push_image(repository, small_image([b"a layer"])).descriptor

    def attach(number: int) -> None:
        referrers.attach(repository, image, "application/vnd.test", [Payload("text/plain", str(number).encode())])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attach, range(8)))
    assert len(referrers.find(repository, image.digest)) == 8
