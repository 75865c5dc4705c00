"""Tests `./inv doctor --fork`: what GitHub says about a repository, and the step of docs/fork.md that mends it."""

import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest

from imagefactory.cli import doctor_fork
from imagefactory.cli.doctor import Diagnosis
from imagefactory.cli.doctor_fork import ROWS, examine_fork
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.fake_github import TOKEN, Data, git, serving_json
from tests.fixtures.inv import Inv
from tests.fixtures.servers import Answer, Asked, scripted

NAME = "acme/factory"
DENIED = Answer(b"{}", HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Basic realm="r"'})
Look = Callable[..., dict[str, Diagnosis]]
POLICIES = "environments/{}/deployment-branch-policies"


def environment(name: str, *, reviewed: bool = True, policy: Data | None = None) -> Data:
    rules = [{"type": "branch_policy"}, *([{"type": "required_reviewers"}] if reviewed else [])]
    custom = {"protected_branches": False, "custom_branch_policies": True}
    return {"name": name, "protection_rules": rules, "deployment_branch_policy": policy or custom}


def policies(kind: str, name: str) -> Data:
    return {"branch_policies": [{"type": kind, "name": name}]}


PROTECTED = {"protected_branches": True, "custom_branch_policies": False}
NIGHT_RUN = {"conclusion": "success", "created_at": "2026-11-18T02:23:00Z", "html_url": "https://git.example/runs/7"}
WELL: Data = {
    "": {"default_branch": "main", "private": False, "has_issues": True},
    "actions/permissions": {"enabled": True, "sha_pinning_required": True},
    "actions/permissions/workflow": {"default_workflow_permissions": "read", "can_approve_pull_request_reviews": True},
    "actions/workflows": {"workflows": [{"path": ".github/workflows/nightly.yml", "state": "active"}]},
    "actions/variables": {"variables": []},
    "environments": {
        "environments": [environment("publish", reviewed=False), environment("rollback"), environment("release")]
    },
    POLICIES.format("publish"): policies("branch", "main"),
    POLICIES.format("rollback"): policies("branch", "main"),
    POLICIES.format("release"): policies("tag", "v*"),
    "branches/main": {"protected": True, "protection": {"required_status_checks": {"contexts": ["status"]}}},
    "rules/branches/main": [],
    "actions/workflows/nightly.yml/runs": {"workflow_runs": [NIGHT_RUN]},
    "package": {"visibility": "public", "repository": {"full_name": NAME}},
}


def variables(**values: str) -> Data:
    return {"actions/variables": {"variables": [{"name": name, "value": value} for name, value in values.items()]}}


@pytest.fixture
def fork(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Make a checkout that was cloned from a repository on GitHub, and whose images may be pulled by anybody."""
    text = locked_checkout.matrix.read_text("utf-8")
    for key, value in {"registry": "ghcr.io/OWNER/spark-vllm", "source": "https://github.com/OWNER/factory"}.items():
        text = re.sub(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
    locked_checkout.matrix.write_text(text, "utf-8")
    git(locked_checkout.root, "init", "--quiet")
    git(locked_checkout.root, "remote", "add", "origin", f"https://github.com/{NAME}.git")
    workflow = locked_checkout.root / ".github" / "workflows" / "nightly.yml"
    workflow.parent.mkdir(parents=True)
    workflow.touch()
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setattr(doctor_fork, "_pull", lambda _: ("ok", "as the test wants it", ""))
    return locked_checkout


@pytest.fixture
def look(fork: Checkout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """Ask a GitHub where everything is as docs/fork.md wants it, but for what a test says."""
    answers: Data = {}

    def respond(_method: str, path: str, _data: Data) -> tuple[int, Any]:
        path = path.partition("?")[0].removeprefix(f"/repos/{NAME}").strip("/")
        path = "package" if path == "users/acme/packages/container/spark-vllm" else path
        answer = answers.get(path, (404, {"message": "Not Found"}))
        return answer if isinstance(answer, tuple) else (200, answer)

    def examine_all(different: Data | None = None) -> dict[str, Diagnosis]:
        answers.clear()
        answers.update(WELL | (different or {}))
        found = list(examine_fork(Project(fork.root)))
        for row in found:
            assert row.detail
            assert (row.remedy == "") == (row.health == "ok"), row
            assert row.health == "ok" or re.match(r"docs/fork\.md, step \d+: \w", row.remedy)
        return {row.subject: row for row in found}

    with serving_json(respond) as url:
        monkeypatch.setenv("GITHUB_API_URL", url)
        yield examine_all


def test_a_fork_that_lacks_nothing_passes_and_every_row_is_shown(look: Look) -> None:
    found = look()
    assert [*found] == [*(subject for subject, *_ in ROWS), "pull without login"]
    assert {row.subject: row.detail for row in found.values() if row.health != "ok"} == {}
    assert found["repository"].detail == f"{NAME}, public, default branch main"


def workflow(state: str) -> Data:
    return {"actions/workflows": {"workflows": [{"path": ".github/workflows/nightly.yml", "state": state}]}}


def night(**different: str) -> Data:
    return {"actions/workflows/nightly.yml/runs": {"workflow_runs": [NIGHT_RUN | different]}}


def environments(*rows: Data) -> Data:
    kept = [environment("publish", reviewed=False), environment("rollback"), environment("release")]
    named = {row["name"]: row for row in [*kept, *rows]}
    return {"environments": {"environments": [*named.values()]}}


RULESET = [{"type": "required_status_checks", "parameters": {"required_status_checks": [{"context": "status"}]}}]


@pytest.mark.parametrize(
    ("subject", "health", "different", "detail"),
    [
        ("repository", "warning", {"": WELL[""] | {"private": True}}, "is private"),
        ("issues", "warning", {"": WELL[""] | {"has_issues": False}}, "disabled"),
        ("Actions", "failed", {"actions/permissions": {"enabled": False}}, "disabled"),
        ("pinned actions", "warning", {"actions/permissions": {"enabled": True}}, "need no pin"),
        ("workflows", "failed", workflow("disabled_fork"), r"nightly\.yml is disabled_fork"),
        ("workflows", "failed", workflow("disabled_inactivity"), r"nightly\.yml is disabled_inactivity"),
        ("workflows", "failed", workflow("disabled_manually"), r"nightly\.yml is disabled_manually"),
        ("workflows", "failed", {"actions/workflows": {"workflows": []}}, r"nightly\.yml is unknown to GitHub"),
        (
            "token of jobs",
            "warning",
            {"actions/permissions/workflow": {
                "default_workflow_permissions": "write", "can_approve_pull_request_reviews": False,
            }},
            "writes by default and may not open pull requests",
        ),
        (
            "environments",
            "warning",
            {"environments": {"environments": []}},
            "publish does not exist; rollback does not exist; release does not exist",
        ),
        (
            "environments",
            "warning",
            environments(environment("publish") | {"deployment_branch_policy": None}),
            "^publish is open to every branch$",
        ),
        (
            "environments",
            "warning",
            environments(environment("rollback", reviewed=False)),
            "^rollback has no required reviewers$",
        ),
        (
            "environments",
            "warning",
            {POLICIES.format("release"): policies("branch", "v*")},
            r"^release is for branch v\*, not tag v\*$",
        ),
        (
            "environments",
            "warning",
            {POLICIES.format("publish"): {"branch_policies": []}},
            "^publish is for nothing, not branch main$",
        ),
        (
            "environments",
            "warning",
            environments(environment("release", policy=PROTECTED)),
            "release is for protected branches, not tag",
        ),
        ("environments", "ok", environments(environment("publish", reviewed=False, policy=PROTECTED)), "publish"),
        ("environments", "warning", variables(FACTORY_GPU="yes"), "^gpu does not exist$"),
        ("default branch", "warning", {"branches/main": {"protected": False}}, "does not require the check `status`"),
        ("default branch", "ok", {"branches/main": {}, "rules/branches/main": RULESET}, "requires the check"),
        ("variables", "ok", variables(FACTORY_SCAN="no", OTHER="x"), "^FACTORY_SCAN=no$"),
        ("variables", "warning", variables(FACTORY_PAGES="true"), "FACTORY_PAGES=true means nothing"),
        ("site", "failed", variables(FACTORY_PAGES="yes"), "not deployed by Actions"),
        ("site", "failed", variables(FACTORY_PAGES="yes") | {"pages": {"build_type": "legacy"}}, "not deployed"),
        (
            "site",
            "ok",
            variables(FACTORY_PAGES="yes") | {"pages": {"build_type": "workflow", "html_url": "https://a.example"}},
            "https://a.example",
        ),
        ("GPU runner", "warning", variables(FACTORY_GPU="yes") | {"actions/runners": {"runners": []}}, "none is"),
        (
            "GPU runner",
            "ok",
            variables(FACTORY_GPU="yes") | {"actions/runners": {"runners": [{"name": "spark", "status": "online"}]}},
            "^spark$",
        ),
        ("last night", "failed", night(conclusion="failure"), "^failure, 2026-11-18, https://git.example/runs/7$"),
        ("last night", "failed", {"actions/workflows/nightly.yml/runs": {"workflow_runs": []}}, "none has run"),
        ("package", "failed", {"package": (404, {})}, "ghcr.io/acme/spark-vllm does not exist"),
        ("package", "failed", {"package": {"visibility": "private"}}, "linked to no repository"),
        # What a token may not read is no fault of the fork.
        ("Actions", "warning", {"actions/permissions": (403, {"message": "no"})}, "not known. It answered 403"),
        ("environments", "warning", {"environments": (404, {"message": "no"})}, "not known. It answered 404"),
        ("package", "warning", {"package": (403, {"message": "read:packages"})}, "not known. It answered 403"),
        ("default branch", "warning", {"branches/main": []}, "not as documented"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_step(
    look: Look, subject: str, health: str, different: Data, detail: str
) -> None:
    row = look(different)[subject]
    assert row.health == health
    assert re.search(detail, row.detail), row.detail


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_repository_that_github_does_not_show_is_the_only_row_of_its_settings(look: Look, status: int) -> None:
    found = look({"": (status, {"message": "no"})})
    assert [*found] == ["repository", "pull without login"]
    assert found["repository"].health == "failed"
    assert f"It answered {status}" in found["repository"].detail


def test_github_that_does_not_answer_is_said_once(fork: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    first, *_ = found = list(examine_fork(Project(fork.root)))
    assert [row.subject for row in found] == ["repository", "pull without login"]
    assert (first.health, first.detail.startswith("GitHub does not answer.")) == ("failed", True)


def test_without_a_token_the_rows_that_need_one_are_listed(fork: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_TOKEN")
    monkeypatch.setattr(doctor_fork, "printed_by", lambda *_: "")
    settings, pull = examine_fork(Project(fork.root))
    assert (settings.health, settings.remedy) == ("warning", "Set GITHUB_TOKEN, or log in with `gh auth login`.")
    assert settings.detail == f"not asked without a token: {', '.join(subject for subject, *_ in ROWS)}"
    assert pull.health == "ok"


def test_a_clone_of_nothing_on_github_is_refused_and_the_command_fails(own_inv: Inv) -> None:
    done = own_inv.checkout.invoke("doctor", "--fork")
    assert done.returncode == 1
    assert "no repository of yours on GitHub" in done.stdout
    assert "docs/fork.md, step 1: Fork it, and clone the fork." in done.stdout


@pytest.mark.parametrize(
    ("answer", "health", "detail"),
    [
        (Answer(b"", HTTPStatus.OK, {"Docker-Content-Digest": f"sha256:{'a' * 64}"}), "ok", ":catalog"),
        (Answer(b"{}", HTTPStatus.NOT_FOUND), "failed", "has published nothing yet"),
        (DENIED, "failed", "is private, or does not exist"),
        (Answer(b"{}", HTTPStatus.SERVICE_UNAVAILABLE), "warning", "not known"),
    ],
)
def test_the_package_is_pulled_without_the_login_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, health: str, detail: str
) -> None:
    asked: list[Asked] = []

    def respond(request: Asked) -> Answer:
        asked.append(request)
        return answer

    with scripted(respond) as server:
        name = f"{server.url.removeprefix('http://')}/acme/spark-vllm"
        login = Credentials("me", "secret", "the test")
        monkeypatch.setattr("imagefactory.oci.registry.connection.find_credentials", lambda _: login)
        row = doctor_fork._pull(Reference.parse(name))
    assert row[0] == health
    assert detail in row[1]
    assert not any("authorization" in request.headers for request in asked)


def test_every_step_that_a_row_names_and_every_variable_is_on_the_page() -> None:
    text = (REPOSITORY / doctor_fork.PAGE).read_text("utf-8")
    steps = {int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)}
    assert {step for _, _, step, _ in ROWS} | {7} <= steps
    assert steps == {*range(1, len(steps) + 1)}
    assert [name for name in doctor_fork._SWITCHES if name not in text] == []
