"""What goes to the second Spark: an image through docker save and load, weights that are compared with their hashes."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.errors import EngineError, FactoryError, MachineError
from imagefactory.pair.images import Image, find, send
from imagefactory.pair.machines import HERE, There
from imagefactory.pair.weights import HASHING, files_of, read
from imagefactory.store.digests import sha256_of

COMMIT = "c0ffee" * 6 + "c0ff"
IMAGE = {
    "Id": "sha256:1",
    "Size": 3_000_000,
    "Architecture": "arm64",
    "RootFS": {"Layers": ["sha256:2"]},
    "Config": {"Entrypoint": ["/serve"], "Env": ["A=1"], "Labels": None},
}
LOADED = 'cat > "$0.loaded"; echo "Loaded image ID: sha256:1"'
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift 2
eval "exec $*"
"""

Docker = Callable[..., Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Write an ssh to this machine, and a docker that inspects, saves and loads as told; return the latter's path."""

    def write(image: object = IMAGE, save: str = "head -c 3000000 /dev/zero", load: str = LOADED) -> Path:
        inspected = f"echo {shlex.quote(json.dumps([image]))}" if image else "echo 'No such image' >&2; exit 1"
        cases = f"case $1 in\nimage) {inspected};;\nsave) {save};;\nload) {load};;\nesac\n"
        for name, text in {"docker": f"#!/bin/sh\n{cases}", "ssh": SSH}.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "docker"

    return write


def test_an_image_is_the_same_in_daemons_that_name_it_differently(docker: Docker) -> None:
    docker()
    ours = find(HERE, "x")
    docker(IMAGE | {"Id": "sha256:9", "Size": 1})
    theirs = find(HERE, "x")
    assert ours
    assert theirs
    assert (ours.id, ours.contents) == ("sha256:1", theirs.contents)
    docker(IMAGE | {"Config": {"Env": ["A=2"]}})
    assert find(HERE, "x") != theirs
    docker(None)
    assert find(HERE, "x", "y") is None


def test_an_image_is_sent_whole(docker: Docker, tmp_path: Path) -> None:
    program, said = docker(), list[str]()
    image = find(HERE, "x")
    assert image
    assert send(image, There("spark2", tmp_path), "spark-vllm:tiny", said.append) == image
    assert program.with_name("docker.loaded").stat().st_size == 3_000_000
    assert said == ["image: 3.0 MB sent"]


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"load": "echo 'write: no space left on device' >&2; exit 1"}, "engine-failed", "docker system prune"),
        ({"save": "echo 'no such image' >&2; exit 1"}, "engine-failed", "docker save"),
        ({"load": "cat >/dev/null"}, "image-differs", "Run it again"),
        ({"load": "echo 'Connection reset by peer' >&2; exit 255"}, "no-ssh", "ping spark2"),
    ],
)
def test_an_image_that_does_not_arrive_is_an_error(
    docker: Docker, tmp_path: Path, changes: dict[str, str], name: str, words: str
) -> None:
    docker(**changes)
    with pytest.raises(FactoryError) as caught:
        send(Image("sha256:1", 1, ""), There("spark2", tmp_path), "spark-vllm:tiny", lambda _: None)
    assert caught.value.name == name
    assert words in caught.value.fix


def test_another_image_than_the_one_sent_is_refused(docker: Docker, tmp_path: Path) -> None:
    docker()
    with pytest.raises(EngineError, match="is not the one that was sent"):
        send(Image("sha256:1", 1, "others"), There("spark2", tmp_path), "spark-vllm:tiny", lambda _: None)


def snapshot(cache: Path, *, linked: bool = True) -> Path:
    repository = cache / "models--some--tiny"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": b"weights"}.items():
        place = repository / "blobs" / (sha256_of(content) if linked else name)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        (folder / name).symlink_to(place)
    return folder


def test_the_hashes_of_a_cache_are_the_names_of_its_blobs(tmp_path: Path) -> None:
    files = files_of(snapshot(tmp_path))
    assert [tuple(file) for file in files] == [
        ("config.json", 2, sha256_of(b"{}")),
        ("model.safetensors", 7, sha256_of(b"weights")),
    ]


def test_files_without_a_known_hash_are_not_copied(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as caught:
        files_of(snapshot(tmp_path, linked=False))
    assert caught.value.name == "no-hashes"


def test_files_that_differ_from_their_hashes_are_removed_and_named(tmp_path: Path) -> None:
    folder = snapshot(tmp_path)
    (folder / "git").write_bytes(b"hello\n")  # by `git hash-object`
    damaged = folder / "model.safetensors"
    damaged.write_bytes(b"weightz")
    listed = [[str((folder / path).relative_to(tmp_path)), size, digest] for path, size, digest in (
        ("config.json", 2, sha256_of(b"{}")),
        ("model.safetensors", 7, sha256_of(b"weights")),
        ("git", 6, "ce013625030ba8dba906f756967f9e9ca394464a"),
        ("absent", 1, "0" * 64),
    )]  # fmt: skip
    command = [sys.executable, "-I", "-c", HASHING.read_text("utf-8"), str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(listed), capture_output=True, text=True, check=True)
    assert [Path(line).name for line in done.stdout.splitlines()] == ["model.safetensors", "absent"]
    assert not damaged.exists()
    assert (folder / "config.json").exists()


def test_what_is_missing_is_named() -> None:
    used = {"repo": "some/tiny", "revision": "c0", "used_as": "model", "missing": ["model.safetensors"]}
    other = {"repo": "other/model", "revision": "c1", "used_as": "", "missing": ["x"]}
    models = read({"absent": [{"repo": "a/drafter"}], "snapshots": [used, other]})
    assert models.lacking == "a/drafter, model.safetensors of some/tiny"
    assert models.folders == ("models--some--tiny/snapshots/c0",)
