"""Sources of a compile: folders of the user, fetching the rest with git, and the tree with mods and without parts."""

import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.compile.compiling import fill
from imagefactory.compile.settings import SourceSettings, load_settings
from imagefactory.compile.source_tree import (
    LEFT_OUT,
    CompileSource,
    change,
    choose_sources,
    fetch_source,
    head_of,
    prepare,
    resolve,
    unpack_sdist,
)
from imagefactory.compile.toolchain import CompileProject
from imagefactory.mods.choose import source_mods
from imagefactory.project.server_versions import ServerVersion
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

SETTINGS = load_settings(REPOSITORY)
NEW = ServerVersion(release="0.32.0")


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def test_sources_have_a_commit_and_targets_leave_out_what_they_do_not_need() -> None:
    everything, left_out = choose_sources(SETTINGS, "0.32.0", NEW, ())
    assert (len(everything), left_out) == (10, [])
    some, left_out = choose_sources(SETTINGS, "0.32.0", NEW, ("_qutlass_C",))
    assert [source.name for source in some] == ["cutlass", "qutlass"]
    assert some[1].digest == "IST-DASLab/qutlass@e74319e3405ce6d71965732880f5dc1f52371f64"
    assert some[1].place == "/factory/src/qutlass"
    assert "vllm_flash_attn" in left_out
    assert len(left_out) == 8


@dataclass
class Host:
    """A git host in a folder."""

    root: Path

    def git(self, name: str, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        command = ["git", "-C", str(self.root / name), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def repository(self, name: str, files: dict[str, str]) -> str:
        tree(self.root / name, files)
        self.git(name, "init", "--quiet", "--initial-branch=main")
        self.git(name, "config", "uploadpack.allowAnySHA1InWant", "true")
        self.git(name, "add", ".")
        self.git(name, "commit", "--quiet", "-m", "one")
        self.git(name, "tag", "v1")
        return self.git(name, "rev-parse", "HEAD")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("FACTORY_GIT_HOST", f"file://{tmp_path}/host/")
    return Host(tmp_path / "host")


def fetched(digest: str, **more: object) -> CompileSource:
    settings = SourceSettings.model_validate({"git": "o/cutlass", "variable": "X", "marker": "a.h", "refs": {}, **more})
    return CompileSource("cutlass", digest, settings)


def test_commit_or_tag_is_fetched_once(tmp_path: Path, host: Host) -> None:
    commit = host.repository("o/cutlass", {"a.h": "x", "part/a.h": "y"})
    store = Store(tmp_path / "store")
    for name in (commit, "v1"):
        folder = fetch_source(fetched(f"o/cutlass@{name}"), store)
        assert (folder / "a.h").read_text() == "x"
    shutil.rmtree(host.root)
    assert fetch_source(fetched(f"o/cutlass@{commit}"), store).is_dir()
    assert fetch_source(fetched("o/cutlass@v1", folder="part"), store).name == "part"


def test_tree_has_the_project_and_its_dependencies_without_their_history(
    project: CompileProject, host: Host, tmp_path: Path
) -> None:
    host.repository("o/vllm", {"vllm/envs.py": "", "cmake/external_projects/x.cmake": "include(X)\n"})
    commit = host.repository("o/cutlass", {"a.h": "x"})
    cutlass = fetched(f"o/cutlass@{commit}")
    job: Any = SimpleNamespace(
        request=SimpleNamespace(what="vllm"),
        main=CompileSource("vllm", "o/vllm@v1"),
        dependencies=(cutlass,),
        left_out=("x",),
        mods=(),
        carried_from=None,
    )
    fill(project, job, tmp_path / "tree")
    found = {path.relative_to(tmp_path / "tree").as_posix() for path in (tmp_path / "tree").rglob("*.*")}
    assert found == {"vllm/vllm/envs.py", "vllm/cmake/external_projects/x.cmake", "cutlass/a.h"}


def test_unreachable_source_is_an_error_with_a_workaround(tmp_path: Path, host: Host) -> None:
    host.repository("o/cutlass", {"a.h": "x"})
    store = Store(tmp_path / "store")
    for digest in (f"o/cutlass@{'0' * 40}", "o/nothing@v1"):
        with raises("source-unreachable", match="cannot be fetched") as caught:
            fetch_source(fetched(digest), store)
        assert "FACTORY_GIT_HOST" in caught.value.fix
    assert not list(store.root.glob("sources/*/*"))
    host.repository("o/other", {"b.h": "x"})
    with raises("wrong-source", match="o/other is not cutlass"):
        fetch_source(fetched("o/other@v1"), store)


def test_ref_is_resolved_exactly_and_not_by_its_last_part_and_pinned_to_its_commit(host: Host) -> None:
    commit = host.repository("o/vllm", {"vllm/envs.py": ""})
    host.git("o/vllm", "checkout", "--quiet", "-b", "fork/main")
    host.git("o/vllm", "commit", "--quiet", "--allow-empty", "-m", "two")
    host.git("o/vllm", "tag", "-a", "-m", "annotated", "v2", commit)
    host.git("o/vllm", "update-ref", "refs/pull/7/head", commit)
    for ref in ("main", "v1", "v2", "refs/pull/7/head"):
        assert head_of("o/vllm", ref) == commit
    assert head_of("o/vllm", "HEAD") == head_of("o/vllm", "fork/main") != commit
    assert head_of("o/vllm", "nowhere") is None
    assert resolve(CompileSource("vllm", "o/vllm@main")).digest == f"o/vllm@{commit}"
    with raises("source-unreachable", match="o/vllm has no nowhere"):
        resolve(CompileSource("vllm", "o/vllm@nowhere"))


def test_a_host_and_a_ref_run_no_program(tmp_path: Path, host: Host) -> None:
    commit = host.repository("o/cutlass", {"a.h": "x"})
    marker, program = tmp_path / "marker", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    for ref in (f"--upload-pack={program}", f"--exec={program}"):
        with raises("source-unreachable", match="cannot be fetched"):
            fetch_source(fetched(f"o/cutlass@{ref}"), Store(tmp_path / "store"))
        assert head_of("o/cutlass", ref) is None
    blob = host.git("o/cutlass", "rev-parse", "HEAD:a.h")
    (host.root / "o/cutlass/.git/objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://git.example/x",
        "core.sshCommand": str(program),
    }.items():
        host.git("o/cutlass", "config", name, value)
    with raises("source-unreachable", match="cannot be fetched"):
        fetch_source(fetched(f"o/cutlass@{commit}"), Store(tmp_path / "store"))
    assert not marker.exists()


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
