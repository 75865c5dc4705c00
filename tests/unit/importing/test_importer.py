"""Diffs become mods that hold on the versions they were seen on; what cannot says why and leaves nothing."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.importing.importer import Imported, Importer
from imagefactory.importing.scripts import Ran
from imagefactory.importing.sources import read_file, read_source
from imagefactory.mods.compatibility import check_mods
from imagefactory.mods.exact_edits import MOST_EDITS, blocks, exact_edits, propose
from imagefactory.project.project import Project
from imagefactory.store.digests import sha256_of
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.manifest import IMAGE_FILES
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.inv import Inv
from tests.fixtures.releases import Released
from tests.fixtures.servers import SimpleIndex

BODY = "".join(f"step_{number} = function({number})\n" for number in range(12))
OLD: dict[str, str | bytes] = {
    "vllm/__init__.py": "VERSION = 1\n",
    "vllm/x.py": BODY,
    "vllm/icon.png": b"\x89PNG\xff",
}
SHIFTED = {**OLD, "vllm/x.py": f"import os\n{BODY}"}
NEWER = {
    **OLD,
    "vllm/x.py": BODY.replace("step_5 = function(5)\n", "step_5 = function(5)\nstep_5 += extra_step\n"),
}
REWRITTEN = {**OLD, "vllm/x.py": "steps = [function(number) for number in range(12)]\n"}
OTHERS = {"flash-thing": {"flash_thing/__init__.py": "SLOW = True\n"}}
DIFF = """\
From: somebody, see https://github.com/vllm-project/vllm/pull/77
diff --git a/vllm/x.py b/vllm/x.py
--- a/vllm/x.py
+++ b/vllm/x.py
@@ -5,3 +5,4 @@ def something():
 step_4 = function(4)
 step_5 = function(5)
+step_5 += extra_step
 step_6 = function(6)
diff --git a/tests/test_x.py b/tests/test_x.py
--- a/tests/test_x.py
+++ b/tests/test_x.py
@@ -1,1 +1,1 @@
-one
+two
"""
GIT_X = "diff --git a/vllm/x.py b/vllm/x.py\n"


def edit(path: str, old: str, new: str) -> str:
    """Write the diff of a file of one line."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


FAST = edit("flash_thing/__init__.py", "SLOW = True", "SLOW = 0")
PARSER = '"""Parser."""\n@{}Manager.register_module("x")\nclass X: ...\n'


@pytest.fixture
def project(released: Released) -> Project:
    return released({"1.0": OLD, "2.0": SHIFTED, "3.0": REWRITTEN, "4.0": NEWER}, OTHERS)


def no_container(*_: object) -> Ran:
    raise AssertionError("diffs need no container")


def run(project: Project, source: Path | str, *versions: str, name: str = "") -> Imported:
    return Importer(project, no_container, lambda _: None, {}).run(read_source(str(source), name), versions)


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def outcomes(imported: Imported) -> dict[str, str]:
    return {attempt.version: attempt.outcome for attempt in imported.draft.attempts}


def test_a_diff_becomes_a_mod_that_knows_where_it_holds_and_where_it_is_upstream(
    tmp_path: Path, project: Project
) -> None:
    file = write(tmp_path, {"77.diff": DIFF}) / "77.diff"
    imported = run(project, file, name="extra-step")
    assert outcomes(imported) == {"1.0": "changes", "2.0": "changes", "3.0": "fails", "4.0": "nothing"}
    fresh = Project(project.root, project.store)
    assert {one.version: str(one) for one in check_mods(fresh)} == {
        "1.0": "applies",
        "2.0": "applies",
        "3.0": "not needed",
        "4.0": "upstream since 4.0",
    }
    mod = fresh.mods["extra-step"].manifest
    [variant] = mod.variants
    assert (variant.versions, mod.why) == (">=1.0,<3.0", "https://github.com/vllm-project/vllm/pull/77")
    [change] = variant.changes
    assert change.model_dump(exclude_none=True) == {
        "edit": "vllm/x.py",
        "anchor": "step_5 = function(5)\n",
        "after": "step_5 += extra_step\n",
    }
    text = imported.manifest.read_text("utf-8")
    assert "77.diff: sha256 " in text
    assert "files that images do not have are left out (tests/test_x.py" in text
    assert "Review before merging: summary, needed_when (which models get it), the checks, licence." in text


def test_the_command_shows_what_came_of_each_version_and_names_the_file(
    tmp_path: Path,
    project: Project,
    simple_index: SimpleIndex,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inv = Inv(Checkout(project.root), monkeypatch, capsys)
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    monkeypatch.setenv("FACTORY_CACHE", str(project.store.root))
    write(tmp_path, {"77.diff": DIFF, "nothing.diff": DIFF.replace(" step_4", " step_four")})
    why = "https://git.example/pull/1"
    done = inv("mods.import", str(tmp_path / "77.diff"), "--name=extra", f"--why={why}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["1.0", "changes"], ["2.0", "changes"]]
    assert lines[-1] == "mods/extra/mod.yaml"
    written = (project.root / "mods/extra/mod.yaml").read_text("utf-8")
    assert f"why: {why}\n" in written
    assert f"#   77.diff: sha256 {sha256_of(DIFF.encode())}" in written
    message = inv.fails("not-importable", "mods.import", str(tmp_path / "nothing.diff"))
    assert "nothing.diff does not fit" in message


def test_a_stack_is_applied_in_order_and_what_is_there_already_is_passed_over(tmp_path: Path, project: Project) -> None:
    second = DIFF[DIFF.index("diff --git") : DIFF.index("diff --git a/tests")]
    second = second.replace("@@ -5,3 +5,4 @@", "@@ -6,3 +6,4 @@").replace(" step_4 = function(4)\n", "")
    second = second.replace("+step_5 +=", " step_5 +=").replace(" step_6", "+step_5 -= something\n step_6")
    folder = write(tmp_path / "stack", {"01-one.patch": DIFF, "02-two.patch": second})
    imported = run(project, folder)
    assert outcomes(imported) == {"1.0": "changes", "2.0": "changes", "3.0": "fails", "4.0": "changes"}
    assert "01-one.patch is in 4.0 already" in imported.manifest.read_text("utf-8")
    backwards = write(tmp_path / "wrong", {"01.patch": second, "02.patch": DIFF})
    with raises("not-importable", match="wrong cannot become a mod"):
        run(project, backwards)


def test_a_source_has_the_origin_of_its_repository_and_git_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "repo", {"x.diff": DIFF})

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        command = ["git", "-C", str(folder), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("remote", "add", "origin", "git@github.com:some/where.git")
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")
    git("worktree", "add", "-q", str(tmp_path / "second"))

    def shown(place: Path = folder) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program ran"))
            return read_source(str(place / "x.diff")).shown

    for pack in (False, True):
        git("pack-refs", "--all") if pack else None
        assert shown() == shown(tmp_path / "second") == f"x.diff of some/where at {head}"
    assert read_source(str(folder / "x.diff")).link == f"https://github.com/some/where/tree/{head}/x.diff"
    for text in (f"ref: {'x' * 5000}", "ref: ../../../../etc/passwd", "ref: a\0b", "nonsense"):
        (folder / ".git" / "HEAD").write_text(text)
        assert shown() == "x.diff"


@pytest.mark.parametrize(
    ("name", "text", "flag"),
    [
        ("Chat Template.jinja", "{{ messages }}\n", "chat_template"),
        ("reason.py", PARSER.format("ReasoningParser"), "reasoning_parser_plugin"),
        ("tools.py", PARSER.format("ToolParser"), "tool_parser_plugin"),
    ],
)
def test_a_file_that_a_script_leaves_is_added_with_the_flag_that_uses_it(
    tmp_path: Path, project: Project, name: str, text: str, flag: str
) -> None:
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    diff = f"--- /dev/null\n+++ b/workspace/{name}\n@@ -0,0 +1,{lines.count(chr(10))} @@\n{lines}"
    source = read_source(str(write(tmp_path / "script", {"run.sh": "x"})))
    importer = Importer(project, lambda *_: Ran(0, diff=diff.encode()), lambda _: None, {})
    imported = importer.run(source)
    mod = Project(project.root, project.store).mods[imported.draft.manifest.name]
    assert mod.manifest.settings.flags == {flag: f"{IMAGE_FILES}{name}"}
    assert set(outcomes(imported).values()) == {"changes"}
    [variant] = mod.manifest.variants
    [applied] = apply_mods([(mod, variant)], lambda _: None)
    assert applied.files == {f"{IMAGE_FILES}{name}": text}


@pytest.mark.parametrize(
    ("diff", "why"),
    [
        (DIFF.replace(" step_4 = function(4)\n", " step_4 = fnction(4)\n"), "matches no single place"),
        (f"{GIT_X}similarity index 100%\nrename from vllm/x.py\nrename to vllm/y.py\n", "only the text of a file"),
        (f"{GIT_X}deleted file mode 100644\n--- a/vllm/x.py\n+++ /dev/null\n", "only the text of a file"),
        (f"{GIT_X}old mode 100644\nnew mode 100755\n", "cannot change vllm/x.py: line 2 of"),
        (DIFF[: DIFF.index(" step_6")], "the hunk is cut off"),
        (edit("csrc/kernel.cu", "x", "y"), "changes what is compiled: csrc/kernel.cu"),
        (DIFF.replace("+step_5 += extra_step", "+step_5 += extra step ("), "breaks vllm/x.py"),
        ("--- /dev/null\n+++ b/vllm/evil.pth\n@@ -0,0 +1 @@\n+import os\n", "run whenever Python starts"),
        ("--- /dev/null\n+++ b/vllm/../../etc/passwd\n@@ -0,0 +1 @@\n+root\n", "is outside the distribution"),
        (FAST + edit("vllm/__init__.py", "VERSION = 1", "VERSION = 2"), "it changes several distributions"),
    ],
)
def test_what_no_mod_can_do_says_why_and_leaves_nothing(tmp_path: Path, project: Project, diff: str, why: str) -> None:
    file = write(tmp_path, {"wrong.diff": diff}) / "wrong.diff"
    with raises("not-importable") as caught:
        run(project, file, "1.0")
    assert why in str(caught.value.why)
    assert list((project.root / "mods").iterdir()) == []


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"README.md": "nothing"}, "It has no run.sh, and no .patch or .diff file"),
        ({"run.sh": "x", **{f"{number}": "x" for number in range(501)}}, "more than 500 files or 16 MiB"),
    ],
)
def test_a_folder_that_is_no_mod_is_refused(tmp_path: Path, files: dict[str, str | bytes], why: str) -> None:
    with raises("bad-import-source") as caught:
        read_source(str(write(tmp_path / "folder", files)))
    assert why in str(caught.value.why)


def test_links_binaries_and_broken_diffs_are_refused(tmp_path: Path, project: Project) -> None:
    folder = write(tmp_path / "folder", {"run.sh": "x"})
    (folder / "link").symlink_to("/etc/passwd")
    with raises("bad-import-source") as caught:
        read_source("https://forge.example/pull/1.diff")
    assert caught.value.fix == "Download it first: `curl -LO https://forge.example/pull/1.diff`."
    with raises("bad-import-source", match="cannot be read"):
        read_source(str(folder))
    with raises("bad-import-source", match="cannot be read"):
        read_source(str(write(tmp_path, {"image.png": b"\x89\xff"}) / "image.png"))
    with raises("bad-import-source", match="cannot be read"):
        read_source(str(tmp_path / "missing"))
    with raises("bad-import-source", match="is not a diff"):
        run(project, write(tmp_path, {"empty.diff": "nothing here\n"}) / "empty.diff")


def test_another_distribution_can_be_changed_and_a_taken_name_is_refused(tmp_path: Path, project: Project) -> None:
    imported = run(project, write(tmp_path, {"fast.patch": FAST}) / "fast.patch")
    assert imported.draft.manifest.distribution == "flash-thing"
    file = write(tmp_path, {"77.diff": DIFF}) / "77.diff"
    run(project, file)
    with raises("bad-mod", match="already exists"):
        run(project, file)


def test_versions_that_were_not_tried_are_not_claimed(tmp_path: Path, project: Project) -> None:
    file = write(tmp_path, {"77.diff": DIFF}) / "77.diff"
    imported = run(project, file, "2.0")
    manifest = imported.draft.manifest
    assert [variant.versions for variant in manifest.variants] == [">=2.0,<3.0"]
    assert [entry.versions for entry in manifest.not_needed] == ["<2.0", ">=3.0"]
    assert {entry.reason for entry in manifest.not_needed} == {"it was not tried there when it was imported"}


def test_names_of_files_and_what_a_diff_says_stay_in_one_line_of_comments(tmp_path: Path, project: Project) -> None:
    name = "a\nsettings:\n  env: {VLLM_MOE_X: '1'}\r\u2028\x1b[31m#.patch"
    imported = run(project, write(tmp_path / "folder", {name: DIFF}), "1.0", name="escaped")
    text = imported.manifest.read_text("utf-8")
    assert r"#   a\nsettings:\n  env: {VLLM_MOE_X: '1'}\r\u2028\x1b[31m#.patch: sha256 " in text
    assert Project(project.root, project.store).mods["escaped"].manifest.settings.env == {}
    said: list[str] = []
    hostile = DIFF.replace("step_5 = function(5)", "\x1b]0;title\x07")
    for file, kind in (("\x1b[31m.diff", "not-importable"), ("\x1b[32m\x07.diff", "bad-import-source")):
        path = write(tmp_path, {file: hostile if kind == "not-importable" else "\x1b"}) / file
        with raises(kind) as caught:
            Importer(project, no_container, said.append, {}).run(read_source(str(path), "new"))
        said.append(f"{caught.value.what} {caught.value.where} {caught.value.why}")
    assert all(line.isprintable() for line in said)


@pytest.mark.parametrize("why", ["ftp://x", "https://x\ny", "x"])
def test_a_reason_that_is_no_link_is_refused_before_anything_is_tried(
    tmp_path: Path, project: Project, why: str
) -> None:
    source = read_source(str(write(tmp_path, {"77.diff": DIFF}) / "77.diff"))
    with raises("bad-option", match="--why cannot be"):
        Importer(project, no_container, lambda _: None, {}).run(source, why=why)


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.diff"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/tty")):
        with raises("bad-import-source", match="cannot be read"):
            read_source(str(path))
    for path in (pipe, Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with raises("bad-import-source", match="cannot be read"):
            read_file(path)
    (tmp_path / "run.sh").write_text("x")
    with raises("bad-import-source", match="no file at all"):
        read_source(str(tmp_path))
    for text in ("/", "x" * 5000, "~nobody-at-all/x", "a\0b"):
        with pytest.raises(FactoryError):
            read_source(text)


def test_large_and_repetitive_sources_take_seconds_at_most(tmp_path: Path, project: Project) -> None:
    start = time.process_time()
    words = write(tmp_path, {"words.diff": DIFF + "import " * 60_000}) / "words.diff"
    run(project, words, "1.0", name="words")
    blank = "\n" * 20_000
    for text in (blank, blank + BODY + blank, "".join(f"{number % 7}\n" for number in range(20_000))):
        assert len(exact_edits("x", BODY, text)) <= MOST_EDITS
        assert len(blocks(list(blank), list(text))) < len(text)
        propose("x.py", BODY, text)
    many = "".join(f"@@ -{n} +{n} @@\n-x\n+y\n" for n in range(1, 300))
    with raises("bad-import-source", match="too large for a mod"):
        run(project, write(tmp_path, {"many.diff": edit("vllm/x.py", "x", "y") + many}) / "many.diff")
    assert time.process_time() - start < 10
