"""Workflows: what the checkers find, and our own rules that no checker has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.commands.repository import CHECKS
from imagefactory.matrix.matrix import load_matrix
from imagefactory.publish.automation.jobs import RUNNERS
from tasks import namespace
from tests.fixtures.checkouts import REPOSITORY

FOLDER = REPOSITORY / ".github" / "workflows"
MATRIX = REPOSITORY / "matrix.yaml"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))
SCRIPTS = Path(sysconfig.get_path("scripts"))
WIRING = [line for line in CHECKS if line.startswith(("check-jsonschema", "zizmor"))]
[ZIZMOR] = [line for line in WIRING if line.startswith("zizmor")]

BAD = """\
name: bad
on:
  pull_request_target:
permissions: write-all
jobs:
  build:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
        with:
          ref: ${{ github.event.pull_request.head.sha }}
      - run: echo "${{ github.event.pull_request.title }}"
"""


def read(name: str) -> dict[str, Any]:
    # YAML takes the key `on` for a truth value.
    text = re.sub(r"^on:", "'on':", (FOLDER / name).read_text("utf-8"), flags=re.MULTILINE)
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in NAMES:
        for job, data in read(name)["jobs"].items():
            if "uses" not in data:  # a job that calls another workflow has no steps of its own
                yield name, job, data


def steps(data: dict[str, Any]) -> str:
    return "\n".join(str(step.get("run", "")) for step in data["steps"])


def check(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one of the checks of `./inv test` in a folder."""
    program, rest = line.split(maxsplit=1)
    return subprocess.run(
        ["bash", "-c", f"{shlex.quote(str(SCRIPTS / program))} {rest}"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("line", WIRING)
def test_the_committed_workflows_pass_the_checks(line: str) -> None:
    done = check(line, REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / ".github", tmp_path / ".github")
    return tmp_path / ".github" / "workflows"


def test_a_bad_workflow_is_found(spoiled: Path) -> None:
    (spoiled / "bad.yml").write_text(BAD)
    done = check(ZIZMOR, spoiled.parents[1])
    assert done.returncode != 0
    for rule in ("unpinned-uses", "template-injection", "excessive-permissions", "dangerous-triggers"):
        assert rule in done.stdout, done.stdout
    timeout = next(line for line in WIRING if "require-timeout" in line)
    assert check(timeout, spoiled.parents[1]).returncode != 0


@pytest.mark.parametrize(
    ("line", "old", "new", "rule"),
    [
        (ZIZMOR, "@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7", "unpinned-uses"),
        (ZIZMOR, "          persist-credentials: false\n", "          fetch-depth: 1\n", "artipacked"),
        (ZIZMOR, "permissions: {}\n", "permissions: write-all\n", "excessive-permissions"),
        (ZIZMOR, '"$TARGETS" --records', '"${{ inputs.targets }}" --records', "template-injection"),
        (WIRING[0], "    timeout-minutes: 20\n", "    time-out: 20\n", "time-out"),
    ],
)
def test_a_spoiled_nightly_is_found(spoiled: Path, line: str, old: str, new: str, rule: str) -> None:
    file = spoiled / "nightly.yml"
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")
    done = check(line, spoiled.parents[1])
    assert done.returncode != 0
    assert rule in done.stdout, done.stdout


def test_every_documented_workflow_exists() -> None:
    assert {"nightly", "pull-request", "main", "release", "rollback", "lock-refresh", "rebuild"} <= {
        name.removesuffix(".yml") for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_action_is_pinned_by_commit_with_its_version_beside_it(name: str) -> None:
    used = re.findall(r"uses: (\S+)(.*)", (FOLDER / name).read_text("utf-8"))
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_an_action_has_one_pin_everywhere() -> None:
    texts = [path.read_text("utf-8") for path in (REPOSITORY / ".github").rglob("*.yml")]
    pins = {pin for text in texts for pin in re.findall(r"uses: (actions/[\w-]+)[\w/]*@([0-9a-f]{40})", text)}
    assert len(pins) == len({action for action, _ in pins})


def test_every_step_is_a_command_that_exists() -> None:
    known = set(namespace.task_names) | {alias for task in namespace.task_names.values() for alias in task}
    for name, job, data in jobs():
        for line in filter(None, (line.strip() for line in steps(data).splitlines())):
            if line.startswith("sudo --preserve-env .ci/run"):
                continue
            found = re.match(r"\./inv (\S+)", line)
            assert found, f"{name}, {job}: {line!r} is no command of the factory"
            assert found[1] in known, f"{name}, {job}: there is no command {found[1]}"


def test_jobs_that_run_contributed_content_may_write_nothing() -> None:
    runs = re.compile(r"\./inv (compile|smoke|ci\.smoke|build|test|rebuilds\.check)\b|\.ci/run")
    for name, job, data in jobs():
        if runs.search(steps(data)):
            assert set(data["permissions"].values()) <= {"read"}, f"{name}, {job}"


def test_jobs_that_may_write_packages_only_move_bytes() -> None:
    allowed = {"wheels.push", "ci.push", "ci.promote", "ci.room", "ci.take-locks", "rollback", "history"}
    allowed |= {"rebuilds.attest"}
    found = 0
    for name, job, data in jobs():
        if data["permissions"].get("packages") == "write":
            found += 1
            assert set(re.findall(r"\./inv (\S+)", steps(data))) <= allowed, f"{name}, {job}"
    assert found == 5


def test_pull_requests_may_only_read() -> None:
    workflow = read("pull-request.yml")
    assert set(workflow["on"]) == {"pull_request"}
    text = (FOLDER / "pull-request.yml").read_text("utf-8")
    assert re.findall(r"secrets\.|github\.token|actions/cache", text) == []
    for data in workflow["jobs"].values():
        assert data["permissions"] == {"contents": "read"}
        assert "self-hosted" not in str(data["runs-on"])


def test_no_event_of_a_stranger_starts_a_job_with_rights() -> None:
    for name in NAMES:
        assert not {"pull_request_target", "issue_comment", "workflow_run"} & set(read(name)["on"]), name


def test_a_self_hosted_machine_needs_a_protected_environment() -> None:
    [(name, gpu)] = [(name, data) for name, _, data in jobs() if "self-hosted" in str(data["runs-on"])]
    assert name == "nightly.yml"
    assert gpu["environment"] == "gpu"
    assert set(read(name)["on"]) == {"schedule", "workflow_dispatch"}


def test_jobs_that_publish_are_never_cancelled() -> None:
    for name in NAMES:
        workflow = read(name)
        publishes = [job for job in workflow["jobs"].values() if "write" in job["permissions"].values()]
        groups = [workflow["concurrency"], *(job["concurrency"] for job in publishes if "concurrency" in job)]
        for group in groups if publishes else ():
            assert group["cancel-in-progress"] is False, name
    nightly = read("nightly.yml")["jobs"]["promote"]["concurrency"]
    assert (
        nightly
        == read("rollback.yml")["concurrency"]
        == {"group": "publish", "cancel-in-progress": False, "queue": "max"}
    )


def test_a_failed_matrix_job_does_not_stop_the_others() -> None:
    for name, job, data in jobs():
        if "strategy" in data:
            assert data["strategy"]["fail-fast"] is False, f"{name}, {job}"


def test_the_status_job_needs_all_others() -> None:
    for name in ("nightly.yml", "pull-request.yml"):
        found = read(name)["jobs"]
        assert set(found["status"]["needs"]) == set(found) - {"status"}, name


def ancestors(found: dict[str, Any], job: str) -> set[str]:
    """Return the jobs that a job needs, directly or not."""
    direct = found[job].get("needs", [])
    names = {direct} if isinstance(direct, str) else set(direct)
    return names | {name for own in names for name in ancestors(found, own)}


def test_nothing_is_written_by_a_nightly_of_another_branch() -> None:
    found = read("nightly.yml")["jobs"]
    guard = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
    assert found["plan"]["if"].split() == [
        "${{",
        "github.event_name",
        "==",
        "'schedule'",
        "||",
        *guard.split(),
        "}}",
    ]
    for job, data in found.items():
        if "write" in data["permissions"].values():
            assert "plan" in ancestors(found, job), job
            # With `always()` or `!cancelled()`, a job would run although `plan` was skipped.
            assert "cancelled()" not in data["if"] or "needs.plan.result == 'success'" in data["if"], job
            assert "always()" not in data["if"], job


def test_digests_are_handed_from_the_image_job_to_those_that_need_them() -> None:
    found = read("nightly.yml")["jobs"]
    uploads = {
        step["with"]["name"]: step["with"]["path"]
        for step in found["image"]["steps"]
        if "upload" in str(step)
    }
    assert uploads == {"pushed-${{ matrix.id }}": "build/pushed"}
    for job in ("smoke", "gpu", "promote", "record"):
        taken = [step["with"] for step in found[job]["steps"] if "download-artifact" in step.get("uses", "")]
        # Not merged: a file of one artifact must not replace that of another.
        assert {"pattern": "pushed-*", "path": "build/pushed"} in taken, job
        assert "image" in ancestors(found, job), job


@pytest.mark.parametrize(
    ("workflow", "base"),
    [
        ("pull-request.yml", "${{ github.event.pull_request.base.sha }}"),
        ("main.yml", "${{ github.event.before }}"),
    ],
)
def test_changed_records_are_rebuilt_on_both_kinds_of_machines(workflow: str, base: str) -> None:
    records = read(workflow)["jobs"]["records"]
    assert [step["env"]["BASE"] for step in records["steps"] if "env" in step] == [base]
    assert records["steps"][0]["with"]["fetch-depth"] == 0
    assert set(records["strategy"]["matrix"]["runner"]) == set(RUNNERS.values())
    assert "ci.check-records --base" in steps(records)


def test_a_nightly_without_work_ends_after_the_plan() -> None:
    for job, data in read("nightly.yml")["jobs"].items():
        assert job == "plan" or "needs.plan.outputs" in data["if"] or "promote.result" in data["if"], job


def test_schedules_are_off_the_full_hour() -> None:
    crons = [entry["cron"] for name in NAMES for entry in read(name)["on"].get("schedule") or ()]
    assert len(crons) == 4
    assert all(5 < int(cron.split()[0]) < 55 for cron in crons)


def test_whoever_rebuilds_has_no_identity_and_whoever_signs_builds_nothing() -> None:
    found = read("rebuild.yml")["jobs"]
    assert set(found["rebuild"]["permissions"].values()) == {"read"}
    assert re.findall(r"\./inv (\S+)", steps(found["attest"])) == ["rebuilds.attest"]
    assert "id-token" not in found["rebuild"]["permissions"]


def test_only_workflows_that_may_sign_have_an_identity() -> None:
    """Trust nobody by default who cannot sign, and give nobody else an identity, except to rebuild."""
    signing = {name for name, _, data in jobs() if "id-token" in data["permissions"]}
    trusted = {signer.partition("@")[0].rpartition("/")[2] for signer in load_matrix(MATRIX).signers}
    assert signing == trusted | {"rebuild.yml", "site.yml"}


def test_site_is_deployed_by_a_job_that_runs_nothing_of_the_repository() -> None:
    found = read("site.yml")["jobs"]
    assert found["make"]["permissions"] == {"contents": "read", "packages": "read"}
    assert found["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert [step["uses"].partition("@")[0] for step in found["deploy"]["steps"]] == ["actions/deploy-pages"]
    assert [name for name, _, data in jobs() if "pages" in data["permissions"]] == ["site.yml"]
    called = read("nightly.yml")["jobs"]["site"]
    assert called["permissions"] == found["make"]["permissions"] | found["deploy"]["permissions"]
    assert "record" in called["needs"]


def test_a_compile_stops_before_github_kills_the_job() -> None:
    compile_ = read("nightly.yml")["jobs"]["compile"]
    [step] = [step for step in compile_["steps"] if step.get("name") == "compile"]
    assert step["timeout-minutes"] + 30 <= compile_["timeout-minutes"] < 360
