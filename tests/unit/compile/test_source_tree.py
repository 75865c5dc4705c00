"""The source tree of a compile: written atomically, with mods applied and unneeded parts left out."""

import io
import tarfile
from pathlib import Path

import pytest

from imagefactory.compile.source_tree import LEFT_OUT, change, prepare, unpack_sdist
from imagefactory.compile.toolchain import CompileProject
from imagefactory.mods.choose import source_mods
from tests.fixtures.failures import raises

CMAKE = """\
set(CUDA_SUPPORTED_ARCHS "7.5;8.0;8.6;8.7;8.9;9.0;10.0;10.7;11.0;12.0")
set(CUDA_SUPPORTED_ARCHS "7.5;8.0;8.6;8.7;8.9;9.0;10.0;11.0;12.0")
"""


def sdist(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"vllm-1/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def vllm(folder: Path) -> Path:
    parts = {f"cmake/external_projects/{name}.cmake": "include(X)\n" for name in ("qutlass", "flashmla")}
    files = {"CMakeLists.txt": CMAKE, "cmake/utils.cmake": "function(cuda_archs_loose_intersection A)\n"}
    unpack_sdist(sdist(folder.parent / "vllm.tar.gz", files | parts), folder)
    return folder


def test_sdist_is_unpacked_without_its_top_folder_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert (vllm(tmp_path / "vllm") / "CMakeLists.txt").read_text() == CMAKE
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with raises("damaged-file", match="cannot be unpacked"):
        unpack_sdist(tmp_path / "x.tar.gz", tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../../out", tarfile.REGTYPE, ""),
        ("/out", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "../../out"),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.LNKTYPE, "vllm-1/../../out"),
    ],
)
def test_sdist_cannot_write_outside_of_its_folder(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(f"vllm-1/{name}")
        member.type, member.linkname = kind, target
        tar.addfile(member)
    with raises("damaged-file", match="cannot be unpacked"):
        unpack_sdist(tmp_path / "x.tar.gz", tmp_path / "sources" / "x")
    assert not (tmp_path / "sources" / "out").exists()


def test_mod_changes_the_sources_unless_it_is_left_out(tmp_path: Path, project: CompileProject) -> None:
    with_it, without = vllm(tmp_path / "a"), vllm(tmp_path / "b")
    mods = {mod.name: (mod, variant) for mod, variant in source_mods(project, "0.32.0", "gb10", ())}
    fewer = source_mods(project, "0.32.0", "gb10", ["preserve-sm121a"])
    assert [mod.name for mod, _ in fewer] == [name for name in mods if name != "preserve-sm121a"]
    change(with_it, [mods["preserve-sm121a"]], ())
    change(without, (), ())
    assert (with_it / "CMakeLists.txt").read_text() == CMAKE.replace('12.0")', '12.0;12.1")')
    assert (without / "CMakeLists.txt").read_text() == CMAKE
    (without / "CMakeLists.txt").write_text("nothing of the kind\n")
    with raises("anchor-misfit"):
        change(without, [mods["preserve-sm121a"]], ())
    assert list(mods) == ["fa3-on-hopper", "native-fa2", "no-older-kernels", "preserve-sm121a"]
    of_hopper = [mod.name for mod, _ in source_mods(project, "0.32.0", "h100", ())]
    assert of_hopper == ["native-fa2", "no-older-kernels"]


def test_left_out_parts_are_empty(tmp_path: Path) -> None:
    tree = vllm(tmp_path / "vllm")
    change(tree, (), ["flashmla"])
    parts = tree / "cmake" / "external_projects"
    assert (parts / "flashmla.cmake").read_text() == LEFT_OUT
    assert (parts / "qutlass.cmake").read_text() == "include(X)\n"


def test_tree_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    tree = tmp_path / "src"

    def fail(target: Path) -> None:
        (target / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tree, fail)
    assert list(tmp_path.iterdir()) == []
    assert prepare(tree, lambda target: (target / "whole").touch())
    assert [path.name for path in tree.iterdir()] == ["whole"]
    assert not prepare(tree, lambda _: pytest.fail("it must not be filled again"))
