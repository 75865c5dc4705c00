"""What the factory writes to GitHub: issues about mods and targets, and commits."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from imagefactory.ci.issues import LABELS, LONGEST, MOST_NEW, Finding, Reporter
from imagefactory.ci.jobs import Need, Night, Trouble, Work
from imagefactory.ci.report_mods import mod_findings
from imagefactory.ci.report_targets import over, target_findings, unwell
from imagefactory.mods.compatibility import ModResult
from imagefactory.project.cells import Cell
from imagefactory.publish.github import RECORDS, GitHub
from imagefactory.store.http import Retry
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import REPOSITORY as GITHUB
from tests.fixtures.fake_github import TOKEN, FakeGitHub
from tests.fixtures.servers import Answer, scripted

BROKEN = ModResult("greeting", "nightly", "conflict", "An anchor occurs 0 times | in a.py (mods/greeting/mod.yaml:7)")
HOLDS = ModResult("greeting", "nightly", "applies", ">=0 (installed)")
UPSTREAM = ModResult("greeting", "nightly", "conflict", "The checks of the mod greeting hold without it. (…)")


MONDAY, TUESDAY = date(2026, 11, 2), date(2026, 11, 3)
FAILED = Trouble(
    "tiny@1.0/cpu/arm64", "It may not be published yet.", "smoke serve: failed (@all <b>)", "Mend it.", "sha256:12"
)


def outcomes(github: FakeGitHub, *results: ModResult) -> list[str]:
    reporter = Reporter(github.client(), "mod", MONDAY)
    return [outcome for _, outcome, _ in reporter.report(mod_findings(results), lambda _: "It holds again.")]


def told(github: FakeGitHub, findings: Sequence[Finding], day: date = MONDAY, **closing: str) -> dict[str, str]:
    """Report targets as the night of a day does; return what was done to the issue of each."""
    reporter = Reporter(github.client(), "target", day, f"https://forge.example/runs/{day.day}")
    return {subject: outcome for subject, outcome, _ in reporter.report(findings, lambda name: closing.get(name, ""))}


def test_a_broken_mod_is_reported_once_with_the_evidence_and_new_evidence_updates_the_issue(
    fake_github: FakeGitHub,
) -> None:
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    [issue] = fake_github.issues
    assert issue["title"] == "The mod greeting does not hold on nightly"
    assert "An anchor occurs 0 times \\| in a.py (mods/greeting/mod.yaml:7)" in issue["body"]
    assert issue["labels"] == [{"name": LABELS["mod"]}]
    assert fake_github.comments == []
    assert outcomes(fake_github, UPSTREAM) == ["updated"]
    assert fake_github.issues[0]["title"] == "The mod greeting seems to be upstream on nightly"
    assert len(fake_github.comments) == 1


def test_a_mod_that_holds_closes_its_issue_and_one_that_somebody_closed_stays_so_until_the_finding_changes(
    fake_github: FakeGitHub,
) -> None:
    outcomes(fake_github, BROKEN)
    assert outcomes(fake_github, HOLDS) == ["closed"]
    assert outcomes(fake_github, HOLDS) == []
    assert fake_github.issues[0]["state"] == "closed"
    assert outcomes(fake_github, BROKEN) == ["reopened"]
    assert fake_github.issues[0]["state"] == "open"
    fake_github.issues[0]["state"] = "closed"
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    assert fake_github.issues[0]["state"] == "closed"
    assert outcomes(fake_github, UPSTREAM) == ["reopened"]


def test_an_issue_is_found_among_hundreds_and_a_copy_of_it_left_alone(fake_github: FakeGitHub) -> None:
    noise = {"state": "open", "labels": [{"name": LABELS["mod"]}], "body": "about something else"}
    fake_github.issues += [{"number": number, **noise} for number in range(1, 131)]
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    fake_github.issues[-1]["labels"] = [{"name": "question"}]  # somebody copied the text
    assert outcomes(fake_github, BROKEN) == ["opened"]


def test_an_issue_is_edited_each_night_and_only_a_failure_that_changed_makes_a_noise(fake_github: FakeGitHub) -> None:
    findings = target_findings("registry.example/a", [FAILED])
    assert told(fake_github, findings) == {FAILED.target: "opened"}
    [issue] = fake_github.issues
    assert "\n    smoke serve: failed (@all <b>)\n" in issue["body"], "an indented line is no markup and no mention"
    for said in ("registry.example/a@sha256:12", "Mend it.", "since 2026-11-02", "runs/2)"):
        assert said in issue["body"]
    assert told(fake_github, findings, TUESDAY) == {FAILED.target: "edited"}
    assert "since 2026-11-02; seen last in [this run](https://forge.example/runs/3)" in fake_github.issues[0]["body"]
    assert fake_github.comments == []
    other = target_findings("registry.example/a", [replace(FAILED, image="sha256:34")])
    assert told(fake_github, other, TUESDAY) == {FAILED.target: "updated"}
    assert len(fake_github.comments) == 1
    assert "since 2026-11-02" in fake_github.issues[0]["body"]
    assert told(fake_github, [], TUESDAY) == {}, "nobody knows that it is over"
    assert told(fake_github, [], TUESDAY, **{FAILED.target: "It is published."}) == {FAILED.target: "closed"}
    assert fake_github.comments[-1] == (1, "It is published. ([run](https://forge.example/runs/3))")
    assert told(fake_github, other, TUESDAY) == {FAILED.target: "reopened"}
    assert "since 2026-11-03" in fake_github.issues[0]["body"], "it was well in between"
    assert outcomes(fake_github, HOLDS) == [], "kinds do not touch each other's issues"


def test_a_repository_without_the_label_gets_it_before_the_first_issue(fake_github: FakeGitHub) -> None:
    fake_github.labels.clear()
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]


def test_a_mistake_that_concerns_every_target_opens_a_bounded_number_of_issues(fake_github: FakeGitHub) -> None:
    findings = target_findings("r", [replace(FAILED, target=f"m{number}", why="x" * 100_000) for number in range(50)])
    assert len(told(fake_github, findings)) == MOST_NEW
    assert len(told(fake_github, findings)) == MOST_NEW * 2
    assert len(fake_github.issues) == MOST_NEW * 2
    assert max(len(issue["body"]) for issue in fake_github.issues) < LONGEST + 1000


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (("image", "smoke", "promote"), "tiny@1.0/cpu was not pushed."),
        (("smoke", "promote"), "tiny@1.0/cpu was pushed, but its tests left no record."),
        (("promote",), "It may not be published yet."),
    ],
)
def test_what_a_night_tried_and_did_not_publish_is_not_well_and_what_it_did_not_try_is(
    needs: tuple[Need, ...], expected: str
) -> None:
    work = Work(Cell("tiny", "1.0", "cpu", "linux/arm64"), "key", needs, "never published", refused=FAILED)
    night = Night("r", works=(work,))
    assert [trouble.what for trouble in unwell(night, [work.target])] == [expected]
    assert unwell(night, []) == [], "it did not fit into the run, or another run has it"
    assert over(night, {work.target}, {work.target})(work.target) == "", "its issue stays until it is published"


def test_what_somebody_decided_is_well_and_its_issue_is_closed() -> None:
    broken, decided = replace(FAILED, target="broken"), replace(FAILED, target="decided", decided=True)
    night = Night("r", broken=(broken,), held=(FAILED, decided))
    assert unwell(night, []) == [broken, FAILED]
    why = over(night, {"decided", "published"}, {"decided", "published", "elsewhere"})
    assert "rollback" in why("decided")
    assert "published" in why("published")
    assert "any more" in why("gone")
    assert why("elsewhere") == "", "this night did not look at it"


def test_a_mod_that_really_breaks_on_a_checkout_is_reported_by_the_command(
    factory_checkout: Checkout, fake_github: FakeGitHub, tmp_path: Path
) -> None:
    source = tmp_path / "vllm"
    source.mkdir()
    where = {"GITHUB_REPOSITORY": GITHUB, "GITHUB_TOKEN": TOKEN, "FACTORY_GITHUB_API": fake_github.url}
    arguments = ("mods.check", "--report", "--source", str(source), "--name", "preserve-sm121a")
    for outcome in ("opened", "unchanged"):
        done = factory_checkout.invoke(*arguments, env=where)
        assert done.returncode == 0, done.stderr
        assert f"preserve-sm121a: issue 1 {outcome}" in done.stdout
    assert "file missing" in fake_github.issues[0]["body"]


def test_reads_are_retried_and_writes_are_not(fake_github: FakeGitHub) -> None:
    fake_github.failures = [502, 503]
    assert fake_github.client().get("")["default_branch"] == "main"
    fake_github.failures = [502]
    with raises("github-failed", match="refused") as caught:
        fake_github.client().post("issues", {"title": "x", "body": "y"})
    assert "as the test wants it" in caught.value.why
    assert fake_github.issues == []


def test_a_wrong_token_a_silent_server_and_a_missing_repository_are_explained(
    fake_github: FakeGitHub,
) -> None:
    with raises("github-failed") as caught:
        GitHub(f"repos/{GITHUB}", "wrong", fake_github.url).get("")
    assert "permissions" in caught.value.fix
    with raises("github-failed", match="does not answer"):
        GitHub(f"repos/{GITHUB}", TOKEN, "http://127.0.0.1:9", retry=Retry(pause=0.001)).get("")
    with raises("not-on-github") as missing:
        GitHub.from_environment({})
    assert "GITHUB_REPOSITORY and GITHUB_TOKEN" in missing.value.why
    assert GitHub.find({"GITHUB_TOKEN": TOKEN}) is None, "at home, commands print"
    with raises("not-on-github"):  # a workflow that forgot its token is told
        GitHub.find({"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": GITHUB})
    assert TOKEN not in repr(fake_github.client())


def test_an_answer_that_is_no_json_is_refused_and_nobody_waits_as_long_as_github_pleases() -> None:
    with scripted(lambda _: Answer(b"<html>")) as server, raises("github-failed", match="does not answer"):
        GitHub(f"repos/{GITHUB}", TOKEN, server.url).get("issues")
    with scripted(lambda _: Answer(b"{}", 429, {"Retry-After": "3600"})) as server:
        with raises("github-failed", match="refused"):
            GitHub(f"repos/{GITHUB}", TOKEN, server.url).get("issues")
        assert len(server.log) == 1


def test_a_branch_starts_empty_grows_and_is_not_written_without_changes(fake_github: FakeGitHub) -> None:
    github = fake_github.client()
    first = github.commit(RECORDS, {"locks/a.toml": "a", "README.md": "page"}, "one")
    assert github.commit(RECORDS, {"README.md": "page"}, "again") is None
    second = github.commit(RECORDS, {"README.md": "another page"}, "two")
    assert fake_github.files(RECORDS) == {"README.md": "another page", "locks/a.toml": "a"}
    assert first is not None
    assert fake_github.commits[str(second)]["parents"] == [first]


def test_a_proposal_is_one_commit_on_the_default_branch_in_one_pull_request(fake_github: FakeGitHub) -> None:
    github = fake_github.client()
    main = github.commit("main", {"README.md": "page"}, "one")
    assert github.propose("compiled", {"README.md": "page"}, "Lock", "- tiny") is None
    for content in ("first", "second"):
        made = github.propose("compiled", {"locks/a.toml": content}, "Lock", "- tiny")
        assert fake_github.commits[str(made)]["parents"] == [main]
        assert fake_github.files("compiled") == {"README.md": "page", "locks/a.toml": content}
    assert github.propose("compiled", {"locks/a.toml": "second"}, "Lock", "- tiny") is None
    [pull] = fake_github.pulls
    assert (pull["head"], pull["base"], pull["body"]) == ("compiled", "main", "- tiny")


def test_the_issue_form_asks_for_the_digest_and_the_check() -> None:
    broken = (REPOSITORY / ".github/ISSUE_TEMPLATE/broken-image.yml").read_text("utf-8")
    assert "RepoDigests" in broken
    assert "IMAGE check" in broken
