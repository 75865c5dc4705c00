"""A graft is compiled like an inspection of the same targets, and kept as a wheel."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.compile.request import Request, requests_of
from imagefactory.compile.toolchain import CompileProject
from imagefactory.lock.wheelhouse.keep import all_kept, read_graft
from imagefactory.project.locks.files import LockedSource
from imagefactory.store.digests import file_sha256
from tests.fixtures.extensions import extension
from tests.fixtures.failures import raises
from tests.fixtures.fake_compiler import FITTING, FOREIGN, FakeCompiler, compile_it, source
from tests.fixtures.fatbins import container
from tests.fixtures.platforms import wheel_tag
from tests.fixtures.wheels import make_wheel


@pytest.fixture
def graft(project: CompileProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request for a graft of two extensions, and the published wheel in the store."""
    names = ("_C_stable_libtorch", "_qutlass_C")
    files: dict[str, bytes | str] = {f"vllm/{name}.abi3.so": extension(name, code=container("sm_80")) for name in names}
    tag = wheel_tag(tag="cp38-abi3-manylinux_2_28")
    wheel = make_wheel(tmp_path / "published", "vllm", "0.28.0", files=files, tag=tag)
    published = LockedSource(
        name="vllm", version="0.28.0", file=wheel.name, sha256=file_sha256(wheel), size=wheel.stat().st_size
    )
    stored = project.store.download(published.sha256)
    stored.parent.mkdir(parents=True)
    shutil.copy(wheel, stored)
    monkeypatch.setattr("imagefactory.compile.job.published_wheel", lambda *_: published)
    markers = {"cutlass": "include/cutlass/cutlass.h", "qutlass": "qutlass/csrc/bindings.cpp"}
    sources = [source(tmp_path, name, marker) for name, marker in {"vllm": "vllm/envs.py", **markers}.items()]
    (tmp_path / "vllm" / "cmake" / "external_projects").mkdir(parents=True)
    only, mods = ",".join(names), list(project.mods)
    [request] = requests_of(project, vllm="0.28.0-graft", arch="gb10", only=only, sources=sources, without_mods=mods)
    return request


def libraries(out: Path, names: Sequence[str], chip: str = FITTING) -> int:
    for name in names:
        library = extension(name, code=container(chip), search_path="/opt/venv")
        (out / f"{name}.abi3.so").write_bytes(library)
    return 0


def test_grafted_wheel_is_kept_and_shares_the_objects_of_an_inspection(project: CompileProject, graft: Request) -> None:
    compiler = FakeCompiler(lambda _, out: libraries(out, [*graft.targets, "_C_stable_libtorch_other"]))
    inspected = compile_it(project, replace(graft, inspects=True), compiler)
    made = compile_it(project, graft, compiler)
    assert compile_it(project, graft, compiler).log is None
    assert inspected.wheel is None
    assert made.wheel is not None
    start = f"vllm-0.28.0+graft.gb10.{made.inputs.key[:8]}-cp38-abi3-manylinux_2_41_"
    assert made.wheel.filename.startswith(start)
    asked = [(run["command"], run["environment"], run["key"]) for run in compiler.asked]
    assert len(asked) == 2
    assert asked[0] == asked[1], "the container cannot tell a graft from an inspection"
    inputs = made.inputs
    assert (inputs.kind, inputs.version) == ("graft", "0.28.0")
    assert inputs.system == {"python": "3.13", "glibc": "2.41", "cuda": "13.0"}
    recorded = read_graft(made.wheel.path, inputs)
    assert [file.path for file in recorded.replaced] == [f"vllm/{name}.abi3.so" for name in graft.targets]


@pytest.mark.parametrize(
    ("count", "chip", "kind", "why"),
    [
        (2, FOREIGN, "audit-failed", "would not run"),
        (2, "sm_100f", "graft-mismatch", "only sm_100f"),
        (1, FITTING, "compile-failed", "_qutlass_C"),
    ],
)
def test_graft_that_lacks_a_library_or_code_for_the_gpu_is_not_kept(
    project: CompileProject, graft: Request, count: int, chip: str, *, kind: str, why: str
) -> None:
    with raises(kind) as caught:
        compile_it(project, graft, FakeCompiler(lambda _, out: libraries(out, graft.targets[:count], chip)))
    assert why in f"{caught.value.what} {caught.value.why}"
    assert list(all_kept(project.store)) == []
