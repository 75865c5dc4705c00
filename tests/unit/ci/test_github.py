"""What the factory writes to GitHub: issues about mods, and commits."""

from pathlib import Path

from imagefactory.ci.report_mods import LABEL, report
from imagefactory.mods.compatibility import ModResult
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


def outcomes(github: FakeGitHub, *results: ModResult) -> list[str]:
    return [outcome for _, outcome, _ in report(github.client(), results, all_mods=["greeting"])]


def test_a_broken_mod_is_reported_once_with_the_evidence_and_new_evidence_updates_the_issue(
    fake_github: FakeGitHub,
) -> None:
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    [issue] = fake_github.issues
    assert issue["title"] == "The mod greeting does not hold on nightly"
    assert "An anchor occurs 0 times \\| in a.py (mods/greeting/mod.yaml:7)" in issue["body"]
    assert issue["labels"] == [{"name": LABEL}]
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
    noise = {"state": "open", "labels": [{"name": LABEL}], "body": "about something else"}
    fake_github.issues += [{"number": number, **noise} for number in range(1, 131)]
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    fake_github.issues[-1]["labels"] = [{"name": "question"}]  # somebody copied the text
    assert outcomes(fake_github, BROKEN) == ["opened"]


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
