"""Tests pushing compiled wheels to a registry, and pulling them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from imagefactory.cli.show.tables import wheels_table
from imagefactory.errors import RegistryError
from imagefactory.lock.wheelhouse.keep import KeptWheel, find, keep
from imagefactory.lock.wheelhouse.share import INPUTS as INPUTS_ANNOTATION
from imagefactory.lock.wheelhouse.share import ListedWheel, pull, push, remote_wheel, remote_wheels, tag_of
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import StoredManifest
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, canonical_json, sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.wheelhouse import INPUTS, TAG
from tests.fixtures.wheels import WheelFactory

WANTED = replace(INPUTS, version="1.0+cu130")
TITLE = "org.opencontainers.image.title"
Change = Callable[[dict[str, Any]], object]


@dataclass
class Shelf:
    """A repository in memory."""

    reference: Reference = field(default_factory=lambda: Reference.parse("localhost:5000/small"))
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)
    there: bool = True

    def upload(self, digest: Digest, size: int, open_stream: Callable[[], BinaryIO]) -> str:
        if digest in self.blobs:
            return "present"
        with open_stream() as stream:
            self.blobs[digest] = stream.read()
        assert len(self.blobs[digest]) == size
        self.uploads.append(digest)
        return "uploaded"

    def download(self, digest: Digest, size: int, path: Path) -> None:
        assert len(self.blobs[digest]) == size
        path.write_bytes(self.blobs[digest])

    def put_manifest(self, body: bytes, media_type: str, tag: str | None = None) -> Digest:
        assert media_type == "application/vnd.oci.image.manifest.v1+json"
        self.manifests[tag or sha256_of(body)] = body
        return Digest(f"sha256:{sha256_of(body)}")

    def manifest(self, name: str) -> StoredManifest | None:
        body = self.manifests.get(name)
        return None if body is None else StoredManifest(Digest(f"sha256:{sha256_of(body)}"), "", body)

    def tags(self) -> list[str]:
        if not self.there:
            raise RegistryError("no-repository", "No.", where="here", why="It is not.", fix="Push.")
        return sorted(self.manifests)


@pytest.fixture
def shelf() -> Any:
    return Shelf()


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


@pytest.fixture
def kept(store: Store, wheel_factory: WheelFactory) -> KeptWheel:
    return keep(store, WANTED, wheel_factory("vllm", "1.0+cu130", tag=TAG))


def test_pulled_wheel_equals_the_pushed_one(shelf: Any, kept: KeptWheel, there: Store) -> None:
    assert push(shelf, kept) == "pushed"
    [remote] = remote_wheels(shelf, "vllm")
    assert (remote.sha256, remote.size, remote.inputs) == (kept.sha256, kept.size, WANTED)
    assert pull(shelf, remote, there) == find(there, kept.key) == kept
    # The artifact records the inputs of the wheel.
    tag = f"wheel-vllm-1.0_cu130-{kept.key[:16]}"
    document = json.loads(shelf.manifests[tag])
    assert document["artifactType"] == "application/vnd.imagefactory.wheel.v1"
    assert document["annotations"]["imagefactory.key"] == kept.key
    assert json.loads(document["annotations"][INPUTS_ANNOTATION]) == WANTED.as_json()
    [layer] = document["layers"]
    assert (layer["mediaType"], layer["digest"]) == ("application/zip", f"sha256:{kept.sha256}")
    assert (layer["size"], layer["annotations"]) == (kept.size, {TITLE: kept.filename})


def test_wheel_is_neither_pushed_twice_nor_when_damaged(shelf: Any, kept: KeptWheel) -> None:
    push(shelf, kept)
    sent = list(shelf.uploads)
    assert push(shelf, kept) == "present"
    assert shelf.uploads == sent
    kept.path.write_bytes(bytes(kept.size))
    with raises("damaged-wheel"):
        push(shelf, kept)


def test_different_wheel_of_the_same_inputs_is_neither_pushed_nor_pulled(
    shelf: Any, kept: KeptWheel, there: Store, wheel_factory: WheelFactory
) -> None:
    push(shelf, kept)
    other = keep(there, WANTED, wheel_factory("vllm", "1.0+cu130", tag=TAG, files={"vllm/x.py": "other"}))
    with raises("bad-wheel-artifact", match="The registry has a different"):
        push(shelf, other)
    [remote] = remote_wheels(shelf)
    with raises("bad-wheel-artifact", match="The registry has a different"):
        pull(shelf, remote, there)
    assert find(there, other.key) == other


def test_listing_has_only_wheels_of_a_package_and_a_missing_repository_none(
    shelf: Any, kept: KeptWheel, store: Store, wheel_factory: WheelFactory
) -> None:
    push(shelf, kept)
    cache = replace(WANTED, name="flashinfer-jit-cache", version="0.7.0")
    push(shelf, keep(store, cache, wheel_factory("flashinfer-jit-cache", "0.7.0", tag=TAG)))
    shelf.manifests["gemma4-31b"] = b"{}"
    assert [wheel.inputs.name for wheel in remote_wheels(shelf)] == ["flashinfer-jit-cache", "vllm"]
    assert [tag_of(wheel.inputs) for wheel in remote_wheels(shelf, "FlashInfer_JIT_cache")] == [tag_of(cache)]
    shelf.there = False
    assert remote_wheels(shelf) == []
    assert remote_wheel(shelf, "wheel-vllm-1-0") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(artifactType="application/something"),
        lambda document: document["annotations"].update({INPUTS_ANNOTATION: "{}"}),
        lambda document: document["annotations"].update({INPUTS_ANNOTATION: canonical_json(INPUTS.as_json()).decode()}),
        lambda document: document["layers"][0]["annotations"].update({TITLE: "../../vllm-1-py3-none-any.whl"}),
    ],
)
def test_inconsistent_artifact_is_refused(shelf: Any, kept: KeptWheel, change: Change) -> None:
    push(shelf, kept)
    [(tag, body)] = shelf.manifests.items()
    document = json.loads(body)
    change(document)
    shelf.manifests[tag] = canonical_json(document)
    with raises("bad-wheel-artifact") as caught:
        remote_wheels(shelf)
    assert tag in caught.value.where


def test_table_shows_where_a_wheel_is() -> None:
    row = ListedWheel("vllm.whl", sha256_of(b""), 5_000_000, WANTED, here=True, shared=None, locked=False)
    both = replace(row, shared=True, locked=True)
    table = wheels_table([row, both])
    cells = [list(map(str, column.cells)) for column in table.columns]  # type: ignore[union-attr]
    assert cells[-2:] == [["here", "here, registry"], ["no", "yes"]]
    assert "no compiled wheels" in str(wheels_table([]))
