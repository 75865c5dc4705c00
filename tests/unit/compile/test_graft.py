"""A graft replaces libraries of the published wheel by ones that offer the same, and says which files are whose."""

import csv
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from installer.sources import WheelFile

from imagefactory.compile.graft import (
    grafted_version,
    make_graft,
    read_extension,
    repack,
    without_search_path,
)
from imagefactory.lock.wheelhouse.keep import GRAFT_RECORD, CompileInputs, read_graft, refuse_misfit
from imagefactory.store.digests import file_sha256, sha256_of
from tests.fixtures.extensions import NEEDED, OPERATORS, extension
from tests.fixtures.failures import raises
from tests.fixtures.platforms import PLATFORM, wheel_tag
from tests.fixtures.wheelhouse import INPUTS
from tests.fixtures.wheels import make_wheel

TAG = wheel_tag(tag="manylinux_2_41")
OTHER = "for_hopper(Tensor a) -> Tensor"
REASONS = {"for_hopper": "compiled for 9.0 only"}


class Bench:
    """A published wheel with two extensions, and a place for compiled ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published = {name: extension(name, operators=[*OPERATORS, OTHER]) for name in ("_C", "_moe_C")}
        files: dict[str, bytes | str] = {
            "vllm/__init__.py": '__version__ = "1.0"\n',
            "vllm/tool": "#!/bin/sh\n",
            "vllm/ä.txt": "text",
            **{f"vllm/{name}.abi3.so": data for name, data in self.published.items()},
        }
        self.wheel = make_wheel(
            folder / "published", "vllm", "1.0", files=files, tag=wheel_tag(tag="cp38-abi3-manylinux_2_28"),
            entry_points={"vllm": "vllm:main"}, executable=["vllm/tool"], requires=["torch==2.0"],
        )  # fmt: skip
        self.inputs = replace(
            INPUTS,
            kind="graft",
            platform=PLATFORM,
            sources={**INPUTS.sources, "published": f"wheel:{file_sha256(self.wheel)}"},
        )

    def graft(self, out: str = "out", **changes: Any) -> Path:
        """Graft a compiled `_C` into the wheel."""
        library = self.folder / "compiled" / changes.pop("file", "_C.abi3.so")
        library.parent.mkdir(exist_ok=True)
        options = {"operators": OPERATORS, "code": b"own", "search_path": "/opt/venv/torch/lib", **changes}
        library.write_bytes(extension("_C", **options))
        target = self.folder / out
        target.mkdir(exist_ok=True)
        return make_graft(
            self.wheel, self.wheel.name, [library], target, inputs=self.inputs, arch="gb10", platform_tag=TAG,
            mods={"m": "f" * 64}, other_chips=REASONS,
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def test_graft_is_a_valid_wheel_with_its_own_version_that_replaces_only_the_compiled_library(
    bench: Bench,
) -> None:
    wheel = bench.graft()
    key = bench.inputs.key[:8]
    assert wheel.name == f"vllm-1.0+graft.gb10.{key}-cp38-abi3-{TAG}.whl"
    assert grafted_version("1.0", "gb10", "0123456789") == "1.0+graft.gb10.1234567", "a normal version"
    info = f"vllm-1.0+graft.gb10.{key}.dist-info"
    before, after = contents(bench.wheel), contents(wheel)
    kept = {path.replace("vllm-1.0.dist-info", info) for path in before}
    assert kept | {f"{info}/{GRAFT_RECORD}"} == set(after)
    changed = {path for path in before if path in after and before[path] != after[path]}
    assert changed == {"vllm/_C.abi3.so"}
    compiled = extension("_C", operators=OPERATORS, code=b"own", search_path="/opt/venv/torch/lib")
    assert after["vllm/_C.abi3.so"] == without_search_path(compiled)
    refuse_misfit("vllm", "1.0", PLATFORM, wheel)
    with WheelFile.open(wheel) as source:
        source.validate_record()
        assert source.version == grafted_version("1.0", "gb10", bench.inputs.key)
        metadata = source.read_dist_info("METADATA")
        assert f"Version: {source.version}\n" in metadata
        assert "Requires-Dist: torch==2.0" in metadata
        assert source.read_dist_info("WHEEL").count("Tag:") == 1
        assert f"Tag: cp38-abi3-{TAG}" in source.read_dist_info("WHEEL")
    with ZipFile(wheel) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        names = archive.namelist()
    assert modes["vllm/tool"] == 0o100755
    assert modes["vllm/__init__.py"] == 0o100644
    assert names[-1].endswith("/RECORD")
    assert subprocess.run(["python3", "-m", "zipfile", "-t", wheel], check=False).returncode == 0


def test_graft_says_which_files_are_whose(bench: Bench) -> None:
    wheel = bench.graft()
    graft = read_graft(wheel, bench.inputs)
    assert (graft.file, graft.sha256) == (bench.wheel.name, file_sha256(bench.wheel))
    [file] = graft.replaced
    assert (file.path, file.published) == ("vllm/_C.abi3.so", sha256_of(bench.published["_C"]))
    assert file.sha256 == sha256_of(contents(wheel)["vllm/_C.abi3.so"])
    [record] = [data for path, data in contents(wheel).items() if path.endswith(GRAFT_RECORD)]
    said = json.loads(record)
    assert CompileInputs.from_json(said["inputs"]).key == said["key"] == bench.inputs.key
    assert said["mods"] == {"m": "f" * 64}
    assert said["operators_for_other_chips"] == REASONS


def test_same_inputs_give_the_same_bytes_whenever_and_wherever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench.graft().read_bytes()
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    umask = os.umask(0o077)
    try:
        other = bench.graft("elsewhere").read_bytes()
    finally:
        os.umask(umask)
    assert one == other


def test_search_path_of_the_compiling_machine_is_removed(bench: Bench) -> None:
    data = extension("_C", search_path="/opt/venv/lib")
    bare = without_search_path(data)
    assert len(bare) == len(data)
    assert bare != data
    assert without_search_path(bare) == bare
    assert read_extension(bare, "_C") == read_extension(data, "_C")
    [library] = [data for path, data in contents(bench.graft()).items() if path.endswith("/_C.abi3.so")]
    assert without_search_path(library) == library


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"operators": OPERATORS[:1]}, "it lacks the operator rms_norm(Tensor! out) -> ()"),
        ({"operators": [*OPERATORS, "new(Tensor a) -> ()"]}, "it adds the operator new(Tensor a) -> ()"),
        ({"operators": ["cutlass_mm(Tensor b) -> Tensor", OPERATORS[1]]}, "cutlass_mm(Tensor a)"),
        ({"operators": []}, "it lacks the operator cutlass_mm"),
        ({"needed": [*NEEDED, "libfoo.so.1"]}, "libfoo.so.1"),
        ({"needed": [NEEDED[0], "libcudart.so.12", NEEDED[2]]}, "it also needs libcudart.so.12"),
    ],
    ids=["lacks an operator", "adds one", "changes one", "none", "needs another library", "another CUDA"],
)
def test_library_that_offers_or_needs_something_else_is_refused(
    bench: Bench, changes: dict[str, Any], why: str
) -> None:
    with raises("graft-mismatch") as caught:
        bench.graft(**changes)
    assert why in caught.value.why
    assert list((bench.folder / "out").iterdir()) == []


def test_parts_of_glibc_may_differ_and_a_graft_may_need_fewer_libraries(bench: Bench) -> None:
    bench.graft(needed=[*NEEDED[:2], "libm.so.6", "ld-linux-aarch64.so.1", "libstdc++.so.6"])
    bench.graft(needed=NEEDED[:-1])


def test_module_of_another_name_and_what_is_no_library_are_refused(bench: Bench) -> None:
    with raises("graft-mismatch", match="cannot take the place") as caught:
        bench.graft(file="_moe_C.abi3.so")
    assert "PyInit__C instead of PyInit__moe_C" in caught.value.why
    with raises("bad-graft-base", match=r"has no _D\.abi3\.so"):
        bench.graft(file="_D.abi3.so")
    for data in (b"", b"\x7fELF", extension("_C")[:300], b"text" * 100):
        with raises("graft-mismatch", match="is not an extension"):
            read_extension(data, "_C.abi3.so")


def test_record_that_is_not_true_is_refused(bench: Bench, tmp_path: Path) -> None:
    wheel = bench.graft()
    with raises("wrong-wheel", match="does not say") as caught:
        read_graft(bench.wheel, bench.inputs)
    assert "no imagefactory.json" in caught.value.why
    with raises("wrong-wheel") as caught:
        read_graft(wheel, replace(bench.inputs, toolchain="sha256:other"))
    assert "about another compile" in caught.value.why
    changed = repack(wheel, tmp_path, platform_tag=TAG, replaced={"vllm/_C.abi3.so": b"changed"})
    with raises("wrong-wheel") as caught:
        read_graft(changed, bench.inputs)
    assert "vllm/_C.abi3.so is not the file" in caught.value.why


def test_repacked_wheel_keeps_everything_but_its_platform(bench: Bench, tmp_path: Path) -> None:
    plain = repack(bench.wheel, tmp_path, platform_tag=TAG)
    assert plain.name == f"vllm-1.0-cp38-abi3-{TAG}.whl"
    before, after = contents(bench.wheel), contents(plain)
    changed = {path for path in before if before[path] != after[path]}
    assert changed <= {"vllm-1.0.dist-info/WHEEL", "vllm-1.0.dist-info/RECORD"}
    rows = list(csv.reader(after["vllm-1.0.dist-info/RECORD"].decode().splitlines()))
    assert {row[0] for row in rows} == set(after)
