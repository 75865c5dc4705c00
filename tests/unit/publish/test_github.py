"""What the factory writes to GitHub: issues about mods, commits, pull requests and releases."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from imagefactory.errors.ci import (
    GitHubAnswerError,
    GitHubBusyError,
    GitHubError,
    NotOnGitHubError,
    ReleaseError,
    RunFailedError,
)
from imagefactory.mods.compatibility import ModResult
from imagefactory.publish.automation.commits import (
    RECORDS,
    changed_files,
    commit,
    propose,
    read_files,
    take_locks,
)
from imagefactory.publish.automation.github import GitHub
from imagefactory.publish.automation.releases import publish_release, release_notes
from imagefactory.publish.automation.report_mods import LABEL, report
from imagefactory.store.retry import Retry
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.fake_github import REPOSITORY as GITHUB
from tests.fixtures.fake_github import TOKEN, FakeGitHub, commit_all
from tests.fixtures.servers import Answer, scripted

BROKEN = ModResult(
    "greeting", "nightly", "conflict", "An anchor occurs 0 times | in a.py (mods/greeting/mod.yaml:7)"
)
HOLDS = ModResult("greeting", "nightly", "applies", ">=0 (installed)")
UPSTREAM = ModResult("greeting", "nightly", "conflict", "The checks of the mod greeting hold without it. (…)")


def outcomes(github: FakeGitHub, *results: ModResult) -> list[str]:
    return [outcome for _, outcome, _ in report(github.client(), results, known=["greeting"])]


def test_a_broken_mod_is_reported_once_with_the_evidence(fake_github: FakeGitHub) -> None:
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    [issue] = fake_github.issues
    assert issue["title"] == "The mod greeting does not hold on nightly"
    assert "An anchor occurs 0 times \\| in a.py (mods/greeting/mod.yaml:7)" in issue["body"]
    assert issue["labels"] == [{"name": LABEL}]
    assert fake_github.comments == []


def test_an_issue_says_what_an_update_would_come_to(fake_github: FakeGitHub) -> None:
    advice = {"greeting": "`invoke mods.update greeting --vllm nightly` rebases it from 0.32.0 exactly."}
    report(fake_github.client(), [BROKEN], known=["greeting"], advice=advice)
    [issue] = fake_github.issues
    assert f"\n{advice['greeting']}\n" in issue["body"]


def test_new_evidence_updates_the_issue(fake_github: FakeGitHub) -> None:
    outcomes(fake_github, BROKEN)
    assert outcomes(fake_github, UPSTREAM) == ["updated"]
    [issue] = fake_github.issues
    assert issue["title"] == "The mod greeting seems to be upstream on nightly"
    assert len(fake_github.comments) == 1


def test_a_mod_that_holds_again_closes_its_issue_and_the_same_fault_opens_it_again(
    fake_github: FakeGitHub,
) -> None:
    outcomes(fake_github, BROKEN)
    assert outcomes(fake_github, HOLDS) == ["closed"]
    assert outcomes(fake_github, HOLDS) == []
    assert fake_github.issues[0]["state"] == "closed"
    assert outcomes(fake_github, BROKEN) == ["reopened"]
    assert fake_github.issues[0]["state"] == "open"


def test_an_issue_that_somebody_closed_stays_closed_until_the_finding_changes(
    fake_github: FakeGitHub,
) -> None:
    outcomes(fake_github, BROKEN)
    fake_github.issues[0]["state"] = "closed"
    assert outcomes(fake_github, BROKEN) == ["unchanged"]
    assert fake_github.issues[0]["state"] == "closed"
    assert outcomes(fake_github, UPSTREAM) == ["reopened"]


def test_an_issue_is_found_among_hundreds(fake_github: FakeGitHub) -> None:
    noise = {"state": "open", "labels": [{"name": LABEL}], "body": "about something else"}
    fake_github.issues += [{"number": number, **noise} for number in range(1, 131)]
    assert outcomes(fake_github, BROKEN) == ["opened"]
    assert outcomes(fake_github, BROKEN) == ["unchanged"]


def test_a_copy_of_an_issue_is_left_alone(fake_github: FakeGitHub) -> None:
    outcomes(fake_github, BROKEN)
    fake_github.issues[0]["labels"] = [{"name": "question"}]  # somebody copied the text
    assert outcomes(fake_github, BROKEN) == ["opened"]


def test_a_mod_that_really_breaks_on_a_checkout_is_reported_by_the_command(
    factory_checkout: Checkout, fake_github: FakeGitHub, tmp_path: Path
) -> None:
    source = tmp_path / "vllm"
    source.mkdir()
    where = {"GITHUB_REPOSITORY": GITHUB, "GITHUB_TOKEN": TOKEN, "FACTORY_GITHUB_API": fake_github.url}
    arguments = ("ci.report-mods", "--source", str(source), "--name", "preserve-sm121a")
    for outcome in ("opened", "unchanged"):
        done = factory_checkout.invoke(*arguments, env=where)
        assert done.returncode == 0, done.stderr
        assert f"preserve-sm121a: issue 1 {outcome}" in done.stdout
    assert "file missing" in fake_github.issues[0]["body"]


def test_reads_are_retried_and_writes_are_not(fake_github: FakeGitHub) -> None:
    fake_github.failures = [502, 503]
    assert fake_github.client().get("")["default_branch"] == "main"
    fake_github.failures = [502]
    with pytest.raises(GitHubError, match="refused") as caught:
        fake_github.client().post("issues", {"title": "x", "body": "y"})
    assert "as the test wants it" in caught.value.why
    assert fake_github.issues == []


def test_a_wrong_token_a_silent_server_and_a_missing_repository_are_explained(
    fake_github: FakeGitHub,
) -> None:
    with pytest.raises(GitHubError) as caught:
        GitHub(GITHUB, "wrong", fake_github.url).get("")
    assert "permissions" in caught.value.fix
    with pytest.raises(GitHubError, match="does not answer"):
        GitHub(GITHUB, TOKEN, "http://127.0.0.1:9", retry=Retry(pause=0.001)).get("")
    with pytest.raises(NotOnGitHubError) as missing:
        GitHub.from_environment({})
    assert "GITHUB_REPOSITORY and GITHUB_TOKEN" in missing.value.why
    assert TOKEN not in repr(fake_github.client())


@pytest.mark.parametrize(
    "body", [b"<html>", b"[" * 100_000, b'{"message": "' + b"x" * 2000 + b'"}'], ids=["HTML", "deep", "large"]
)
def test_answers_that_github_would_not_send_are_refused(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr("imagefactory.publish.automation.github._MOST_BYTES", 1000 if b"x" in body else 10**6)
    for status in (200, 404):
        with scripted(partial(lambda status, _: Answer(body, status), status)) as server:
            with pytest.raises(GitHubAnswerError if status == 200 or b"x" in body else GitHubError) as caught:
                GitHub(GITHUB, TOKEN, server.url, retry=Retry(pause=0.001)).get("issues")
            assert len(server.log) == 1, "another attempt would not help"
            assert len(caught.value.why) < 400


def test_lists_without_end_and_lists_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.publish.automation.github._MOST_PAGES", 3)
    for body, asked in {b"[" + b"{}," * 99 + b"{}]": 3, b'{"a": 1}': 1}.items():
        with scripted(partial(lambda body, _: Answer(body), body)) as server:
            with pytest.raises(GitHubAnswerError):
                list(GitHub(GITHUB, TOKEN, server.url).pages("issues"))
            assert len(server.log) == asked


def test_nobody_waits_as_long_as_github_pleases() -> None:
    with scripted(lambda _: Answer(b"{}", 429, {"Retry-After": "3600"})) as server:
        with pytest.raises(GitHubBusyError, match="much later") as caught:
            GitHub(GITHUB, TOKEN, server.url).get("issues")
        assert len(server.log) == 1
    assert "3,600 s" in caught.value.why


def test_a_branch_starts_empty_grows_and_is_not_written_without_changes(fake_github: FakeGitHub) -> None:
    github = fake_github.client()
    first = commit(github, RECORDS, {"locks/a.toml": "a", "README.md": "page"}, "one")
    assert commit(github, RECORDS, {"README.md": "page"}, "again") is None
    second = commit(github, RECORDS, {"README.md": "another page", "locks/a.toml": None}, "two")
    assert fake_github.files(RECORDS) == {"README.md": "another page"}
    assert first is not None
    assert fake_github.commits[str(second)]["parents"] == [first]


def test_locks_are_copied_only_where_a_checkout_has_none(fake_github: FakeGitHub, tmp_path: Path) -> None:
    github = fake_github.client()
    assert take_locks(github, tmp_path) == ("", [])
    fake_github.start_branch(
        RECORDS, {"locks/nightly/a.toml": "new", "locks/0.1/b.toml": "new", "README.md": "x"}
    )
    (tmp_path / "locks/0.1").mkdir(parents=True)
    (tmp_path / "locks/0.1/b.toml").write_text("reviewed")
    sha, written = take_locks(github, tmp_path)
    assert (sha, written) == (fake_github.branches[RECORDS], ["locks/nightly/a.toml"])
    assert (tmp_path / "locks/0.1/b.toml").read_text() == "reviewed"
    # A job uses the commit that the plan was made with, whatever came later.
    fake_github.start_branch(RECORDS, {"locks/nightly/a.toml": "newer"})
    assert read_files(github, sha, "locks")["locks/nightly/a.toml"] == "new"


def test_a_path_that_leaves_the_locks_is_refused(fake_github: FakeGitHub, tmp_path: Path) -> None:
    fake_github.start_branch(RECORDS, {"locks/../inv": "#!/bin/sh"})
    with pytest.raises(RunFailedError):
        take_locks(fake_github.client(), tmp_path)
    assert not (tmp_path / "inv").exists()


def test_a_pull_request_is_opened_once_and_kept_up_to_date(fake_github: FakeGitHub) -> None:
    fake_github.start_branch("main", {"matrix.yaml": "old", "kept": "x"})
    github = fake_github.client()

    def again(text: str, body: str = "why") -> str:
        done = propose(github, "lock-refresh", {"matrix.yaml": text}, title="Refresh", body=body)
        return done[1] if done else "nothing"

    assert [again("new"), again("new"), again("newer")] == ["opened", "unchanged", "updated"]
    assert again("newer", "other words") == "updated"
    [pull] = fake_github.pulls
    assert (pull["base"], pull["body"]) == ("main", "other words")
    assert fake_github.files("lock-refresh") == {"matrix.yaml": "newer", "kept": "x"}
    # One commit on top of main, however often it was written.
    head = fake_github.commits[fake_github.branches["lock-refresh"]]
    assert head["parents"] == [fake_github.branches["main"]]


def test_without_a_change_nothing_is_proposed(fake_github: FakeGitHub) -> None:
    fake_github.start_branch("main", {"matrix.yaml": "old"})
    assert propose(fake_github.client(), "b", {"matrix.yaml": "old"}, title="t", body="b") is None
    assert fake_github.pulls == []


def test_changed_new_and_removed_files_are_found(tmp_path: Path) -> None:
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text(name)
    commit_all(tmp_path)
    (tmp_path / "changed").write_text("other")
    (tmp_path / "gone").unlink()
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder/new").write_text("new")
    assert changed_files(tmp_path) == {"a folder/new": "new", "changed": "other", "gone": None}


@pytest.fixture
def released(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    changelog = "## [Unreleased]\n\n## [0.2.0] - 2026-11-01\n\n- more\n\n## [0.1.0]\n\n- first\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    return tmp_path


def test_a_release_is_published_once_with_its_changelog_entry(
    released: Path, fake_github: FakeGitHub
) -> None:
    notes = release_notes(released, "v0.2.0")
    assert notes == "- more\n"
    addresses = {publish_release(fake_github.client(), "v0.2.0", notes) for _ in range(2)}
    assert len(addresses) == 1
    assert fake_github.writes == ["POST releases"]


def test_a_tag_of_another_version_and_a_missing_changelog_entry_are_refused(released: Path) -> None:
    with pytest.raises(ReleaseError, match="not the version"):
        release_notes(released, "v0.3.0")
    (released / "CHANGELOG.md").write_text("## [Unreleased]\n\n- more\n")
    with pytest.raises(ReleaseError, match="has no entry"):
        release_notes(released, "v0.2.0")


def test_the_issue_form_asks_for_the_digest_and_the_check() -> None:
    broken = (REPOSITORY / ".github/ISSUE_TEMPLATE/broken-image.yml").read_text("utf-8")
    assert "RepoDigests" in broken
    assert "IMAGE check" in broken
