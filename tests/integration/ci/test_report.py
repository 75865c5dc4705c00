"""Nights that stay red until they are well, with one issue for each target: a real registry, a stand-in for GitHub."""

from subprocess import CompletedProcess

from tests.fixtures.fake_github import REPOSITORY, TOKEN, FakeGitHub
from tests.fixtures.night_factory import NightFactory
from tests.fixtures.platforms import MACHINE

TARGET = f"tiny@1.0/cpu/{MACHINE}"
NOT_WELL = 10


def report(
    night_factory: NightFactory, github: FakeGitHub, *arguments: str, **env: str
) -> tuple[CompletedProcess[str], str]:
    """Run the command as the last job of a night does; return also what GitHub shows about the run."""
    summary = night_factory.factory.folder / "summary"
    summary.unlink(missing_ok=True)
    job = {
        "FACTORY_GITHUB_API": github.url,
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/.github/workflows/nightly.yml@refs/heads/main",
        "GITHUB_RUN_ID": str(night_factory.nights),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    done = night_factory.invoke("ci.report", *arguments, **{**job, **env})
    return done, summary.read_text("utf-8") if summary.exists() else ""


def test_a_target_that_failed_keeps_nights_red_and_one_issue_open_until_it_is_mended(
    night_factory: NightFactory, fake_github: FakeGitHub
) -> None:
    night_factory.night()
    night_factory.serve("tiny", 3000)
    night_factory.night(failing=["tiny"])
    done, summary = report(night_factory, fake_github, "--tried", TARGET)
    assert done.returncode == NOT_WELL, done.stderr
    assert "error[not-published]: 1 target cannot be published." in done.stderr
    assert f"{TARGET}: issue 1 opened" in done.stdout
    assert "the entrypoint is broken" in summary
    [issue] = fake_github.issues
    [work] = night_factory.plan(retry=True).works
    image = work.refused.image if work.refused else ""
    for part in ("the entrypoint is broken", f"{night_factory.repository.reference.name}@{image}", "actions/runs/2/"):
        assert part in issue["body"]

    assert night_factory.night().jobs["smoke"] == [], "the next night has nothing to do, and is not well"
    done, _ = report(night_factory, fake_github)
    assert done.returncode == NOT_WELL
    assert f"{TARGET}: issue 1 edited" in done.stdout
    assert "actions/runs/3/" in fake_github.issues[0]["body"]
    assert fake_github.comments == []

    fake_github.failures = [403]
    done, summary = report(night_factory, fake_github)
    assert done.returncode == NOT_WELL, "a GitHub that refuses must not hide the result"
    assert "error[not-published]" in done.stderr
    assert "error[github-failed]" in done.stderr
    assert TARGET in summary

    night_factory.serve("tiny", 4000)
    assert "tiny" in night_factory.night().moved
    done, summary = report(night_factory, fake_github, "--tried", TARGET)
    assert done.returncode == 0, done.stderr
    assert f"{TARGET}: issue 1 closed" in done.stdout
    assert (len(fake_github.issues), fake_github.issues[0]["state"]) == (1, "closed")
    assert report(night_factory, fake_github)[0].stdout.count("issue") == 0


def test_what_was_broken_or_never_pushed_is_reported_too_and_a_rollback_is_not(
    night_factory: NightFactory, fake_github: FakeGitHub
) -> None:
    night_factory.publish_nights(3000, 4000)
    night_factory.serve("other", 5000)
    night_factory.factory.write_mod("good night", anchor="    return 'farewell'\n")
    night_factory.record()
    other = f"other@1.0/cpu/{MACHINE}"
    # The plan had work for it, and the job that pushes died.
    done, _ = report(night_factory, fake_github, "--tried", other)
    assert done.returncode == NOT_WELL
    opened = {issue["title"]: issue["body"] for issue in fake_github.issues}
    assert "does not record every layer" in opened[f"{TARGET} is not published"]
    assert "was not pushed" in opened[f"{other} is not published"]
    assert "model other changed" in opened[f"{other} is not published"]
    done, _ = report(night_factory, fake_github, "--target", TARGET)
    assert done.stdout.count("issue ") == 1, "a run for some targets leaves the others alone"

    night_factory.factory.write_mod("hi")
    night_factory.record()
    night_factory.night()
    night_factory.rollback()
    assert [trouble.decided for trouble in night_factory.plan().held] == [True]
    done, _ = report(night_factory, fake_github)
    assert done.returncode == 0, done.stderr
    assert {issue["state"] for issue in fake_github.issues} == {"closed"}
    assert any("A rollback holds this image back" in text for _, text in fake_github.comments)


def test_without_a_token_commands_print_what_they_would_write(night_factory: NightFactory) -> None:
    night_factory.night(failing=["tiny"])
    done = night_factory.invoke("ci.report", GITHUB_REPOSITORY="", GITHUB_TOKEN="")
    assert done.returncode == NOT_WELL
    assert f"# {TARGET} is not published" in done.stdout
    done = night_factory.invoke("ci.record", GITHUB_REPOSITORY="", GITHUB_TOKEN="")
    assert done.returncode == 0, done.stderr
    assert "nothing is written" in done.stderr
    assert "README.md:\n\n# What was published" in done.stdout
