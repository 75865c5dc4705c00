"""What the first Spark lends to the second: an image as a registry has it, and a model as the hub has it."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import requests

from imagefactory.errors import MachineError
from imagefactory.pair.images import saved
from imagefactory.pair.lending import Piece, lent
from imagefactory.pair.weights import files_of, hub, wants
from imagefactory.store.digests import sha256_of

LAYERS = (b"one" * 100, b"two" * 100)
CONFIG = json.dumps({"rootfs": {"diff_ids": [f"sha256:{sha256_of(layer)}" for layer in LAYERS]}}).encode()
COMMIT = "c0ffee" * 6 + "c0ff"


def test_pieces_are_served_whole_and_from_a_byte_on_and_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    pieces = {"/a b": Piece(tmp_path / "file", start=2, size=6), "/text": Piece.of(b"text", "text/plain")}
    with lent(pieces) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        assert requests.get(f"{url}/a%20b", timeout=5).content == b"234567"
        rest = requests.get(f"{url}/a%20b?x=1", headers={"Range": "bytes=4-"}, timeout=5)
        assert (rest.status_code, rest.content, rest.headers["Content-Range"]) == (206, b"67", "bytes 4-5/6")
        head = requests.head(f"{url}/text", timeout=5)
        assert (head.headers["Content-Length"], head.headers["Content-Type"]) == ("4", "text/plain")
        assert requests.get(f"{url}/none", timeout=5).status_code == 404
    assert server.sent == {"/a b": 8}


def blob(data: bytes) -> str:
    return f"blobs/sha256/{sha256_of(data)}"


def of_docker_20() -> dict[str, bytes | str]:
    """The second layer occurs twice, as a link, as old daemons write it."""
    config = json.loads(CONFIG)
    config["rootfs"]["diff_ids"].append(f"sha256:{sha256_of(LAYERS[1])}")
    data = json.dumps(config).encode()
    listed = {"Config": "x.json", "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}
    return {
        "x.json": data,
        "a/layer.tar": LAYERS[0],
        "b/layer.tar": LAYERS[1],
        "c/layer.tar": "../b/layer.tar",
        "manifest.json": json.dumps([listed]).encode(),
    }


def of_containerd() -> dict[str, bytes | str]:
    descriptors = [{"digest": f"sha256:{sha256_of(layer)}", "size": len(layer)} for layer in LAYERS]
    manifest = json.dumps(
        {"config": {"digest": f"sha256:{sha256_of(CONFIG)}"}, "layers": descriptors, "own": 1}
    ).encode()
    contents: dict[str, bytes | str] = {blob(data): data for data in (*LAYERS, CONFIG, manifest, b'{"other": 1}')}
    listed = {"Config": blob(CONFIG), "Layers": [blob(layer) for layer in LAYERS]}
    return {**contents, "manifest.json": json.dumps([listed]).encode()}


@pytest.mark.parametrize(("contents", "layers"), [(of_docker_20(), 3), (of_containerd(), 2)])
def test_a_saved_image_has_the_digests_of_its_daemon(
    tmp_path: Path, contents: dict[str, bytes | str], layers: int
) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    source = saved(tmp_path / "image.tar")
    assert len(source.document["layers"]) == layers
    config = contents.get("x.json", CONFIG)
    assert isinstance(config, bytes)
    assert source.ids[0] == f"sha256:{sha256_of(config)}"
    for digest, piece in source.blobs.items():
        assert f"sha256:{sha256_of(b''.join(piece.blocks(0)))}" == digest
    assert ("own" in source.document) == (layers == 2), "the manifest of a daemon with containerd's store is kept"


def cache(root: Path, *, linked: bool = True) -> dict[str, object]:
    repository = root / "models--some--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": b"weights"}.items():
        place = repository / "blobs" / (sha256_of(content) if linked else name)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        (snapshot / name).symlink_to(place)
    used = {"repo": "some/tiny", "revision": COMMIT, "used_as": "model", "complete": True, "missing": []}
    return {"absent": [], "snapshots": [used, {**used, "used_as": "", "repo": "other/model"}]}


def test_a_cache_of_the_hub_is_served_with_its_hashes(tmp_path: Path) -> None:
    pieces = hub(tmp_path, cache(tmp_path))
    answer = json.loads(b"".join(pieces["/api/models/some/tiny/revision/main"].blocks(0)))
    assert answer["sha"] == COMMIT
    assert answer["siblings"][1]["lfs"] == {"sha256": sha256_of(b"weights"), "size": 7}
    assert b"".join(pieces[f"/some/tiny/resolve/{COMMIT}/model.safetensors"].blocks(3)) == b"ghts"
    assert not [path for path in pieces if "other" in path]


def test_files_that_nobody_has_hashes_of_are_not_served(tmp_path: Path) -> None:
    cache(tmp_path, linked=False)
    with pytest.raises(MachineError) as caught:
        files_of(tmp_path / "models--some--tiny", COMMIT)
    assert caught.value.name == "no-hashes"


def test_what_is_missing_is_named() -> None:
    used = {"repo": "some/tiny", "used_as": "model", "complete": False, "missing": ["model.safetensors"]}
    other = {"repo": "other/model", "used_as": "", "complete": False, "missing": ["x"]}
    assert wants({"absent": [{"repo": "a/drafter"}], "snapshots": [used, other]}) == (
        "a/drafter, model.safetensors of some/tiny"
    )
