"""Compiled wheels as artifacts: what is written, what is refused, and that nothing is sent twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from imagefactory.commands.show.tables import wheels_table
from imagefactory.errors.registry import RepositoryMissingError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.errors.wheelhouse import DamagedWheelError, WheelArtifactError, WrongWheelError
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import StoredManifest
from imagefactory.resolve.wheelhouse.keep import CompileInputs, KeptWheel, all_kept, find, keep
from imagefactory.resolve.wheelhouse.remote import INPUTS, pull, push, remote_wheel, remote_wheels, tag_of
from imagefactory.resolve.wheelhouse.share import ListedWheel
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, canonical_json, sha256_of
from tests.fixtures.wheels import WheelFactory

WANTED = CompileInputs(
    name="vllm",
    version="0.19.1+cu130",
    sources={"vllm": "a" * 64},
    mods=("c" * 64,),
    toolchain="sha256:" + "b" * 64,
    arch_list="12.1a",
    platform="linux/arm64",
)
Change = Callable[[dict[str, Any]], object]


@dataclass
class Shelf:
    """A repository in memory: what a registry keeps, without the wire."""

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
        data = self.blobs[digest]
        if f"sha256:{sha256_of(data)}" != digest or len(data) != size:
            raise DigestMismatchError("Other bytes.", where=digest, why="They are.", fix="Try again.")
        path.write_bytes(data)

    def put_manifest(self, body: bytes, media_type: str, tag: str | None = None) -> Digest:
        assert media_type == "application/vnd.oci.image.manifest.v1+json"
        self.manifests[tag or sha256_of(body)] = body
        return Digest(f"sha256:{sha256_of(body)}")

    def manifest(self, name: str) -> StoredManifest | None:
        body = self.manifests.get(name)
        return None if body is None else StoredManifest(Digest(f"sha256:{sha256_of(body)}"), "", body)

    def tags(self) -> list[str]:
        if not self.there:
            raise RepositoryMissingError("No.", where="here", why="It is not.", fix="Push.")
        return sorted(self.manifests)


@pytest.fixture
def shelf() -> Any:
    return Shelf()


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


@pytest.fixture
def kept(here: Store, wheel_factory: WheelFactory) -> KeptWheel:
    return keep(here, WANTED, wheel_factory("vllm", "0.19.1+cu130", tag="cp38-abi3-linux_aarch64"))


def test_a_wheel_comes_back_as_it_went(shelf: Any, kept: KeptWheel, there: Store) -> None:
    assert push(shelf, kept) == "pushed"
    [remote] = remote_wheels(shelf, "vllm")
    assert (remote.key, remote.sha256, remote.size, remote.inputs) == (
        kept.key,
        kept.sha256,
        kept.size,
        WANTED,
    )
    assert pull(shelf, remote, there) == find(there, kept.key) == kept


def test_an_artifact_says_what_it_is_and_what_it_was_compiled_from(shelf: Any, kept: KeptWheel) -> None:
    push(shelf, kept)
    tag = f"wheel-vllm-0.19.1_cu130-{kept.key[:16]}"
    document = json.loads(shelf.manifests[tag])
    assert document["artifactType"] == "application/vnd.imagefactory.wheel.v1"
    assert document["annotations"]["imagefactory.key"] == kept.key
    assert json.loads(document["annotations"][INPUTS]) == WANTED.as_json()
    assert document["layers"] == [
        {
            "mediaType": "application/zip",
            "digest": f"sha256:{kept.sha256}",
            "size": kept.size,
            "annotations": {"org.opencontainers.image.title": kept.filename},
        }
    ]


def test_what_is_there_is_not_sent_again(shelf: Any, kept: KeptWheel) -> None:
    push(shelf, kept)
    sent = list(shelf.uploads)
    assert push(shelf, kept) == "present"
    assert shelf.uploads == sent


def test_a_damaged_wheel_is_not_pushed(shelf: Any, kept: KeptWheel) -> None:
    kept.path.write_bytes(bytes(kept.size))
    with pytest.raises(DamagedWheelError):
        push(shelf, kept)
    assert shelf.manifests == {}


def test_another_result_of_the_same_inputs_is_refused_both_ways(
    shelf: Any, kept: KeptWheel, there: Store, wheel_factory: WheelFactory
) -> None:
    push(shelf, kept)
    tag = "cp38-abi3-linux_aarch64"
    other = keep(there, WANTED, wheel_factory("vllm", "0.19.1+cu130", tag=tag, files={"vllm/x.py": "other"}))
    with pytest.raises(WheelArtifactError, match="The registry has a different"):
        push(shelf, other)
    [remote] = remote_wheels(shelf)
    with pytest.raises(WheelArtifactError, match="The wheelhouse has a different"):
        pull(shelf, remote, there)
    assert find(there, other.key) == other


def test_only_wheels_are_listed_and_those_of_a_name_alone(
    shelf: Any, kept: KeptWheel, here: Store, wheel_factory: WheelFactory
) -> None:
    push(shelf, kept)
    cache = replace(WANTED, name="flashinfer-jit-cache", version="0.7.0")
    push(
        shelf, keep(here, cache, wheel_factory("flashinfer-jit-cache", "0.7.0", tag="py3-none-linux_aarch64"))
    )
    shelf.manifests["gemma4-31b"] = b"{}"
    assert [wheel.inputs.name for wheel in remote_wheels(shelf)] == ["flashinfer-jit-cache", "vllm"]
    assert [wheel.tag for wheel in remote_wheels(shelf, "FlashInfer_JIT_cache")] == [tag_of(cache)]


def test_a_repository_that_is_not_there_has_no_wheels(shelf: Any) -> None:
    shelf.there = False
    assert remote_wheels(shelf) == []
    assert remote_wheel(shelf, "wheel-vllm-1-0") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(artifactType="application/something"),
        lambda document: document.pop("annotations"),
        lambda document: document["annotations"].update({INPUTS: "{}"}),
        lambda document: document["annotations"].update(
            {INPUTS: canonical_json(replace(WANTED, arch_list="12.0a").as_json()).decode()}
        ),
        lambda document: document["layers"].append(document["layers"][0]),
        lambda document: document.update(layers=[]),
        lambda document: document["layers"][0].pop("annotations"),
        lambda document: document["layers"][0]["annotations"].update(
            {"org.opencontainers.image.title": "../../vllm-1-py3-none-any.whl"}
        ),
        lambda document: document["layers"][0]["annotations"].update(
            {"org.opencontainers.image.title": "x.sh"}
        ),
        lambda document: document["layers"][0].pop("digest"),
    ],
)
def test_an_artifact_that_contradicts_itself_is_refused(
    shelf: Any, kept: KeptWheel, there: Store, change: Change
) -> None:
    push(shelf, kept)
    [tag] = shelf.manifests
    document = json.loads(shelf.manifests[tag])
    change(document)
    shelf.manifests[tag] = canonical_json(document)
    with pytest.raises(WheelArtifactError) as caught:
        remote_wheels(shelf)
    assert tag in caught.value.where
    assert list(all_kept(there)) == []


def test_a_wheel_that_is_not_what_its_inputs_say_does_not_get_in(
    shelf: Any, kept: KeptWheel, there: Store, wheel_factory: WheelFactory
) -> None:
    push(shelf, kept)
    [tag] = shelf.manifests
    document = json.loads(shelf.manifests[tag])
    foreign = wheel_factory("vllm", "0.19.1+cu130", tag="cp38-abi3-linux_x86_64").read_bytes()
    document["layers"][0] |= {"digest": f"sha256:{sha256_of(foreign)}", "size": len(foreign)}
    document["layers"][0]["annotations"]["org.opencontainers.image.title"] = (
        "vllm-0.19.1+cu130-cp38-abi3-linux_x86_64.whl"
    )
    shelf.blobs[document["layers"][0]["digest"]] = foreign
    shelf.manifests[tag] = canonical_json(document)
    [remote] = remote_wheels(shelf)
    with pytest.raises(WrongWheelError, match="linux/arm64"):
        pull(shelf, remote, there)
    assert list(all_kept(there)) == []


def test_bytes_that_changed_on_the_way_do_not_get_in(shelf: Any, kept: KeptWheel, there: Store) -> None:
    push(shelf, kept)
    shelf.blobs[f"sha256:{kept.sha256}"] = BytesIO(os.urandom(kept.size)).read()
    [remote] = remote_wheels(shelf)
    with pytest.raises(DigestMismatchError):
        pull(shelf, remote, there)
    assert list(all_kept(there)) == []
    assert [path for path in there.root.rglob("*") if path.suffix == ".whl"] == []


def test_the_table_says_where_a_wheel_is() -> None:
    row = ListedWheel("vllm.whl", sha256_of(b""), 5_000_000, WANTED, here=True, shared=None, locked=False)
    both = replace(row, shared=True, locked=True)
    table = wheels_table([row, both])
    cells = [list(column.cells) for column in table.columns]  # type: ignore[union-attr]
    assert cells[-2:] == [["here", "here, registry"], ["no", "yes"]]
    assert "no compiled wheels" in str(wheels_table([]))
