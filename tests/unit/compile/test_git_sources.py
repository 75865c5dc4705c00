"""Sources of a compile: folders of the user, their digests, and fetching the rest with git."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.compile.git_sources import (
    CompileSource,
    check_folder,
    choose_sources,
    fetch,
    head_of,
    place,
    read_replacements,
    resolve,
    tree_digest,
)
from imagefactory.compile.settings import SourceSettings, load_settings
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


def cutlass(folder: Path) -> Path:
    return tree(folder, {"include/cutlass/cutlass.h": "#pragma once\n", "CMakeLists.txt": "project(x)\n"})


def test_replacement_is_read_as_name_and_folder() -> None:
    assert read_replacements(["cutlass=/a=b"]) == {"cutlass": Path("/a=b")}
    for text in ("cutlass", "cutlass="):
        with raises("wrong-source", match="names no folder"):
            read_replacements([text])


def test_folder_of_another_project_is_refused(tmp_path: Path) -> None:
    with raises("wrong-source", match="The folder is not cutlass") as caught:
        check_folder("cutlass", tmp_path, "include/cutlass/cutlass.h")
    assert "include/cutlass/cutlass.h" in caught.value.why
    with raises("wrong-source", match="The folder is not cutlass") as caught:
        check_folder("cutlass", tmp_path / "nowhere", "x")
    assert "no such folder" in caught.value.why


def test_digest_of_a_tree_depends_on_all_of_its_content_and_nothing_else(tmp_path: Path) -> None:
    one, two = cutlass(tmp_path / "one"), cutlass(tmp_path / "two")
    os.utime(two / "CMakeLists.txt", (1, 1))
    tree(two, {".git/HEAD": "ref", "python/__pycache__/x.pyc": "bytecode"})
    assert tree_digest(one) == tree_digest(two)
    digests = {tree_digest(two)}
    for change in (
        lambda: (two / "CMakeLists.txt").write_text("project(y)\n"),
        (two / "new.h").touch,
        lambda: (two / "CMakeLists.txt").chmod(0o755),
        lambda: (two / "include" / "link").symlink_to("cutlass"),
    ):
        change()
        digests.add(tree_digest(two))
    assert len(digests) == 5


def test_sources_have_files_or_a_commit_and_targets_leave_out_what_they_do_not_need(tmp_path: Path) -> None:
    replaced = {"cutlass": cutlass(tmp_path)}
    everything, left_out = choose_sources(SETTINGS, "0.32.0", NEW, replaced, ())
    assert (len(everything), left_out) == (10, [])
    some, left_out = choose_sources(SETTINGS, "0.32.0", NEW, replaced, ("_qutlass_C",))
    assert [source.name for source in some] == ["cutlass", "qutlass"]
    assert some[0].digest == tree_digest(tmp_path)
    assert some[1].digest == "IST-DASLab/qutlass@e74319e3405ce6d71965732880f5dc1f52371f64"
    assert some[1].place == "/factory/src/qutlass"
    assert "vllm_flash_attn" in left_out
    assert len(left_out) == 8
    assert choose_sources(SETTINGS, "0.32.0", NEW, replaced, ("_qutlass_C/*.cu.o",)) == (some, left_out)


def test_copy_has_no_history_and_no_bytecode(tmp_path: Path) -> None:
    folder = tree(cutlass(tmp_path / "from"), {".git/HEAD": "ref", "a/__pycache__/x.pyc": ""})
    place(CompileSource("cutlass", "tree:x", folder), tmp_path / "to", Store(tmp_path / "store"))
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["CMakeLists.txt", "a", "include"]


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
    return CompileSource("cutlass", digest, None, settings)


def test_commit_or_tag_is_fetched_once(tmp_path: Path, host: Host) -> None:
    commit = host.repository("o/cutlass", {"a.h": "x", "part/a.h": "y"})
    store = Store(tmp_path / "store")
    for name in (commit, "v1"):
        folder = fetch(fetched(f"o/cutlass@{name}"), store)
        assert (folder / "a.h").read_text() == "x"
    shutil.rmtree(host.root)
    assert fetch(fetched(f"o/cutlass@{commit}"), store).is_dir()
    assert fetch(fetched("o/cutlass@v1", folder="part"), store).name == "part"


def test_unreachable_source_is_an_error_with_a_workaround(tmp_path: Path, host: Host) -> None:
    host.repository("o/cutlass", {"a.h": "x"})
    store = Store(tmp_path / "store")
    for digest in (f"o/cutlass@{'0' * 40}", "o/nothing@v1"):
        with raises("source-unreachable", match="cannot be fetched") as caught:
            fetch(fetched(digest), store)
        assert "--source cutlass=DIR" in caught.value.fix
    assert not list(store.root.glob("sources/*/*"))
    host.repository("o/other", {"b.h": "x"})
    with raises("wrong-source", match="is not cutlass"):
        fetch(fetched("o/other@v1"), store)


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
    assert resolve(CompileSource("vllm", "o/vllm@main", None)).digest == f"o/vllm@{commit}"
    with raises("source-unreachable", match="o/vllm has no nowhere"):
        resolve(CompileSource("vllm", "o/vllm@nowhere", None))


def test_a_host_and_a_ref_run_no_program(tmp_path: Path, host: Host) -> None:
    commit = host.repository("o/cutlass", {"a.h": "x"})
    marker, program = tmp_path / "marker", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    for ref in (f"--upload-pack={program}", f"--exec={program}"):
        with raises("source-unreachable", match="cannot be fetched"):
            fetch(fetched(f"o/cutlass@{ref}"), Store(tmp_path / "store"))
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
        fetch(fetched(f"o/cutlass@{commit}"), Store(tmp_path / "store"))
    assert not marker.exists()
