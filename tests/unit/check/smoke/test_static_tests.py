"""Each static smoke test finds its fault in an image in memory."""

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.util import MAGIC_NUMBER, source_hash
from io import BytesIO
from typing import IO, Any

import pytest

from imagefactory.check.smoke.contents import Contents
from imagefactory.check.smoke.levels import test_static as smoke
from imagefactory.check.smoke.levels.image_files import resolved
from imagefactory.oci.compare import Opened
from imagefactory.oci.format import MTIME, VENV
from imagefactory.oci.listing import ListedPath
from imagefactory.plan.plan import Plan

SITE = f"{VENV}/lib/python3.11/site-packages"


class Image(Contents):
    """An image in memory; files are valid by default."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"config": {"Env": ["PATH=/bin"], "Labels": {"imagefactory.mods": "none"}}}
        self.listed: dict[str, ListedPath] = {}
        self.data: dict[str, bytes] = {}
        for folder in smoke.SHARED_FOLDERS:
            self.add(folder, kind="directory", mode="1777")

    @cached_property
    def _opened(self) -> Opened:
        return Opened(self.document, [])

    @cached_property
    def files(self) -> Mapping[str, ListedPath]:
        return self.listed

    def _open_each(self, paths: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
        yield from ((path, BytesIO(self.data[path])) for path in paths)

    def add(self, path: str, data: bytes = b"", **other: Any) -> None:
        fields: dict[str, Any] = {"kind": "file", "mode": "0644", "mtime": MTIME, "target": ""}
        fields |= {"uid": 0, "gid": 0, **other}
        sha256 = hashlib.sha256(data).hexdigest() if fields["kind"] == "file" else ""
        self.listed[path] = ListedPath(path=path, size=len(data), sha256=sha256, **fields)
        self.data[path] = data


@pytest.fixture
def image() -> Image:
    return Image()


def record(*rows: tuple[str, bytes]) -> bytes:
    def hashed(data: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    return "".join(f"{path},sha256={hashed(data)},1\n" for path, data in rows).encode()


def found_by(test: Callable[..., None], *arguments: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        test(*arguments)
    return str(caught.value).splitlines()[0]


def test_a_world_writable_file_and_an_unknown_setuid_program_are_found(image: Image) -> None:
    image.add("usr/bin/su", mode="4755")
    smoke.test_permissions_are_no_wider_than_debians(image)
    for path, mode in (("usr/bin/mine", "4755"), ("usr/bin/tool", "0777")):
        image.add(path, mode=mode)
        assert path in found_by(smoke.test_permissions_are_no_wider_than_debians, image)


@pytest.mark.parametrize("field", [{"uid": 501}, {"mtime": MTIME + 1}])
def test_traces_of_the_builders_machine_are_found(image: Image, field: dict[str, Any]) -> None:
    smoke.test_owners_and_times_are_fixed(image)
    image.add(f"{SITE}/x.py", **field)
    assert found_by(smoke.test_owners_and_times_are_fixed, image)


def test_packages_with_missing_or_changed_files_are_found(image: Image) -> None:
    image.add(f"{SITE}/x.py", b"one")
    texts = {f"{SITE}/x-1.dist-info/RECORD": record(("x.py", b"one"))}
    smoke.test_packages_are_complete(image, texts, SITE)
    image.add(f"{SITE}/x.py", b"two")
    assert "x.py has other bytes" in found_by(smoke.test_packages_are_complete, image, texts, SITE)
    del image.listed[f"{SITE}/x.py"]
    assert "x.py is missing" in found_by(smoke.test_packages_are_complete, image, texts, SITE)
    assert "no package" in found_by(smoke.test_packages_are_complete, image, {}, SITE)


def test_stale_bytecode_is_found(image: Image) -> None:
    image.add(f"{SITE}/x.py", b"12345")
    path = f"{SITE}/__pycache__/x.cpython-311.pyc"

    def compiled(size: int) -> dict[str, bytes]:
        return {path: b"\xa7\r\r\n" + struct.pack("<III", 0, MTIME, size)}

    smoke.test_no_bytecode_is_stale(image, compiled(5))
    assert path in found_by(smoke.test_no_bytecode_is_stale, image, compiled(4))
    del image.listed[f"{SITE}/x.py"]
    assert path in found_by(smoke.test_no_bytecode_is_stale, image, compiled(5))


@pytest.mark.parametrize("flags", [1, 3])
def test_bytecode_of_another_source_is_found(image: Image, flags: int) -> None:
    source, path = f"{SITE}/x.py", f"{SITE}/__pycache__/x.cpython-311.pyc"
    image.add(source, b"new")

    def compiled(text: bytes) -> dict[str, bytes]:
        identity = MAGIC_NUMBER + struct.pack("<I", flags) + source_hash(text)
        return {source: b"new", path: identity}

    smoke.test_no_bytecode_is_stale(image, compiled(b"new"))
    assert path in found_by(smoke.test_no_bytecode_is_stale, image, compiled(b"old"))


def test_secrets_are_found_by_name_in_variables_and_in_files_of_the_factory() -> None:
    found, path = smoke.test_it_contains_no_secrets, "usr/share/imagefactory/model.json"
    clean = Image()
    clean.document["config"]["Env"] += ["MAX_NUM_BATCHED_TOKENS=5", "HF_TOKEN="]
    found(clean, {path: b"https://host/x"}, [path])
    files = ("root/.netrc", "root/.docker/config.json", "root/.ssh/id_rsa", "app/.env", "src/.git/config")
    for name in files:
        image = Image()
        image.add(name)
        assert name in found_by(found, image, {}, [])
    for name in ("HF_TOKEN", "VLLM_API_KEY", "DB_PASSWORD"):
        image = Image()
        image.document["config"]["Env"].append(f"{name}=x")
        assert name in found_by(found, image, {}, [])
    key = "-----BEGIN RSA PRIVATE KEY-----"
    for text in (key, f"hf_{'a' * 34}", f"ghp_{'a' * 36}", "https://me:pass@host/x"):
        assert path in found_by(found, Image(), {path: f"x {text} y".encode()}, [path])


@pytest.fixture
def plan() -> Plan:
    return Plan.model_validate(
        {
            "target": "tiny", "model": "tiny", "version": "1", "arch": "cpu", "platform": "linux/amd64",
            "kernels": "upstream", "key": "0" * 64, "layers": (),
            "config": {
                "env": {}, "entrypoint": (), "command": (), "labels": {"org.opencontainers.image.licenses": "MIT"},
                "user": "", "working_dir": "", "exposed_ports": (), "stop_signal": "", "created": "",
            },
        }
    )  # fmt: skip


def test_packages_without_a_licence_are_found(image: Image, plan: Plan) -> None:
    folder = f"{SITE}/x-1.dist-info"
    texts = {f"{folder}/METADATA": b"Name: x\nLicense: UNKNOWN\n", f"{folder}/RECORD": record(("x.py", b""))}
    assert "x-1.dist-info" in found_by(smoke.test_licences_are_included, image, texts, plan)
    declared = {**texts, f"{folder}/METADATA": b"License-Expression: MIT\n"}
    smoke.test_licences_are_included(image, declared, plan)
    image.add(f"{folder}/licenses/LICENSE")
    smoke.test_licences_are_included(image, texts, plan)


def test_a_licence_that_is_said_elsewhere_has_its_text_in_the_image(image: Image, plan: Plan) -> None:
    folder = f"{SITE}/sentencepiece-1.dist-info"
    texts = {f"{folder}/METADATA": b"Name: sentencepiece\n", f"{folder}/RECORD": record(("x.py", b""))}
    assert "sentencepiece-1" in found_by(smoke.test_licences_are_included, image, texts, plan)
    image.add("usr/share/common-licenses/Apache-2.0")
    smoke.test_licences_are_included(image, texts, plan)


def test_debian_packages_without_copyright_are_found(image: Image, plan: Plan) -> None:
    image.add("var/lib/dpkg/info/libc6:amd64.list")
    assert "libc6" in found_by(smoke.test_licences_are_included, image, {}, plan)
    image.add("usr", kind="directory")
    for folder in ("usr/share", "usr/share/doc", "usr/share/doc/other"):
        image.add(folder, kind="directory")
    image.add("usr/share/doc/other/copyright")
    image.add("usr/share/doc/libc6", kind="symlink", target="other")
    smoke.test_licences_are_included(image, {}, plan)


def test_broken_and_circular_links_lead_to_no_file(image: Image) -> None:
    image.add("a", kind="symlink", target="b")
    image.add("b", kind="symlink", target="/a")
    assert resolved(image.files, "a") is None
    image.add("b", b"x")
    assert resolved(image.files, "a") == image.files["b"]


def test_a_wrong_label_of_mods_is_found(image: Image) -> None:
    smoke.test_mods_are_recorded(image, {}, [], SITE)
    image.document["config"]["Labels"]["imagefactory.mods"] = "marker"
    assert "the label says marker" in found_by(smoke.test_mods_are_recorded, image, {}, [], SITE)
