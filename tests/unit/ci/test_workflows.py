"""Workflows: our own rules that no checker has, and the steps that are not commands."""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.ci.jobs import RUNNERS
from imagefactory.project.matrix import load_matrix
from tasks import namespace
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.fake_github import TOKEN, commit_all, git

FOLDER = REPOSITORY / ".github" / "workflows"
MATRIX = REPOSITORY / "matrix.yaml"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))
SHELL = {
    *(("news.yml", "take the branch"), ("news.yml", "propose"), ("nightly.yml", "look them up")),
    *(("release.yml", "release"), ("nightly.yml", "start the workflow `site`"), ("*", "status")),
}
"""Steps that are a few lines of shell, which this file runs; all others are commands of the factory."""


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


def handed_on(name: str, ids: str) -> tuple[str, bool]:
    """Check that an id is the output of a single job; return it, and whether that job fails without an artifact."""
    needed = re.fullmatch(r"\${{ (needs\.(\w+)\.outputs\.(\w+)) }}", ids)
    assert needed, f"{name}: {ids}"
    job = read(name)["jobs"][needed[2]]
    assert "strategy" not in job, f"{name}: jobs of a matrix share their outputs, and one of them counts"
    by_id = {f"${{{{ steps.{step.get('id')}.outputs.artifact-id }}}}": step for step in job["steps"]}
    return needed[1], by_id[job["outputs"][needed[3]]]["with"].get("if-no-files-found") == "error"


def test_what_jobs_hand_on_is_taken_by_id() -> None:
    """Any job of a run can upload under any name, but no other job has its outputs."""
    known = {"checkout", "setup-python", "attest", "upload-artifact", "download-artifact"}
    pages = {"upload-pages-artifact", "deploy-pages"}  # by name, in a workflow where nothing else uploads
    for name, job, data in jobs():
        for step in data["steps"]:
            action = re.sub(r"^actions/([\w-]+)@[0-9a-f]{40}$", r"\1", step.get("uses", ""))
            allowed = known | pages if name == "site.yml" else known
            assert action in allowed | {"", "./.github/actions/set-up"}, f"{name}, {job}: what does it take?"
            assert not re.search(r"gh run download|actions/artifacts", step.get("run", "")), f"{name}, {job}"
            if action == "download-artifact":
                given = step["with"]
                assert set(given) == {"artifact-ids", "path"}, f"{name}, {job}"
                proposals = data.get("strategy", {}).get("matrix", {}).get("include", [])
                for ids in [one["files"] for one in proposals] or [given["artifact-ids"]]:
                    output, or_fails = handed_on(name, ids)
                    # Without an id, the action takes every artifact of the run.
                    condition = f"{data.get('if', '')} {step.get('if', '')}"
                    succeeded = "cancelled()" not in condition or "result == 'success'" in str(step.get("if", ""))
                    named = f"{output} != ''" in condition or "|| 'none'" in given["artifact-ids"]
                    assert named or (succeeded and or_fails), f"{name}, {job}"


def test_a_called_workflow_gets_from_the_plan_what_its_jobs_act_on() -> None:
    """So a test job that lies in what it hands on reaches no image but its own."""
    test, attach = (read("test.yml")["jobs"][job]["steps"] for job in ("test", "attach"))
    targets = {step["env"]["TARGETS"] for step in (*test, *attach) if "env" in step}
    assert targets == {"${{ inputs.targets }}"}
    for kind in ("smoke", "gpu"):
        call = read("nightly.yml")["jobs"][kind]
        assert call["strategy"]["matrix"] == {"include": f"${{{{ fromJSON(needs.plan.outputs.{kind}) }}}}"}
        assert call["with"]["targets"] == "${{ matrix.targets }}"


def test_an_action_has_one_pin_everywhere() -> None:
    texts = [path.read_text("utf-8") for path in (REPOSITORY / ".github").rglob("*.yml")]
    pins = {pin for text in texts for pin in re.findall(r"uses: (actions/[\w-]+)[\w/]*@([0-9a-f]{40})", text)}
    assert len(pins) == len({action for action, _ in pins})


def test_every_step_is_a_command_that_exists() -> None:
    known = set(namespace.task_names) | {alias for task in namespace.task_names.values() for alias in task}
    for name, job, data in jobs():
        for step in data["steps"]:
            line = str(step.get("run", "./inv test")).strip()
            if re.fullmatch(r"sudo --preserve-env \.ci/run( --all)?", line) or SHELL & {
                (name, step.get("name")),
                ("*", job),
            }:
                continue
            found = re.fullmatch(r"\./inv (\S+).*", line)
            assert found, f"{name}, {job}: {line!r} is no command of the factory"
            assert found[1] in known, f"{name}, {job}: there is no command {found[1]}"


class Runner:
    """A checkout where a step of shell runs as on GitHub, with a `gh` that only writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkout, self.origin = folder, folder / "checkout", folder / "origin.git"

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def answer(self, condition: str, command: str) -> None:
        """Let `gh` do something if its arguments begin like this."""
        with (self.folder / "bin/gh").open("a") as gh:
            gh.write(f'case "$*" in "{condition}"*) {command};; esac\n')

    def propose(self) -> Path:
        """Hand on the files of the checkout, as the job that refreshes them does."""
        proposal = self.folder / "proposal"
        shutil.copytree(self.checkout / "locks", proposal / "locks")
        for name in ("matrix.yaml", "proposal.md"):
            (proposal / name).write_text(f"{name}\n")
        return proposal

    def run(self, step: dict[str, Any], **env: str) -> tuple[int, str]:
        own = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.folder)}
        environment = {**os.environ, **own, "GITHUB_OUTPUT": str(self.folder / "output"), **env}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, cwd=self.checkout, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Make a clone of a repository with one commit."""
    made = Runner(tmp_path)
    work = tmp_path / "work"
    for folder in (work / "locks/0.1", tmp_path / "bin"):
        folder.mkdir(parents=True)
    (work / "locks/0.1/b.toml").write_text("reviewed")
    (work / "matrix.yaml").write_text("matrix.yaml\n")
    (work / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    changelog = "## [Unreleased]\n\n## [0.2.0] - 2026-11-01\n\n- more\n\n## [0.1.0]\n\n- first\n"
    (work / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    commit_all(work)
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(made.origin))
    git(tmp_path, "clone", "--quiet", made.origin.as_uri(), str(made.checkout))
    (tmp_path / "bin/gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>"{tmp_path}/calls"\n')
    (tmp_path / "bin/gh").chmod(0o755)
    return made


def step_of(name: str, job: str, number: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = read(name)["jobs"][job]["steps"][number]
    return found


def test_the_scanner_reads_one_file_and_writes_to_a_pipe(runner: Runner) -> None:
    [step] = [step for step in read("nightly.yml")["jobs"]["scan"]["steps"] if step.get("name") == "look them up"]
    (runner.folder / "bin/docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (runner.folder / "bin/docker").chmod(0o755)
    assert set(step["env"]) == {"GRYPE"}
    assert re.fullmatch(r"anchore/grype:v[\d.]+@sha256:[0-9a-f]{64}", step["env"]["GRYPE"])
    assert runner.run(step, **step["env"]) == (0, "")
    words = (runner.checkout / "scan.json").read_text().split("\n")
    listed = f"{runner.checkout}/packages.cdx.json:/packages.cdx.json:ro"
    assert words[:5] == ["run", "--rm", "--volume", listed, step["env"]["GRYPE"]]


def test_the_night_starts_the_site_in_a_run_of_its_own(runner: Runner) -> None:
    job = read("nightly.yml")["jobs"]["site"]
    assert job["permissions"] == {"actions": "write"}
    assert runner.run(step_of("nightly.yml", "site")) == (0, "")
    assert runner.calls == ["workflow run site.yml"]
    assert "record" in job["needs"]


@pytest.mark.parametrize("failed", ["true", "false"])
@pytest.mark.parametrize("workflow", ["nightly.yml", "pull-request.yml"])
def test_the_status_is_bad_if_a_job_failed(runner: Runner, workflow: str, failed: str) -> None:
    step = step_of(workflow, "status")
    counted = re.findall(r"contains\(needs.\*.result, '(\w+)'\)", step["env"]["FAILED"])
    assert counted == ["failure", "cancelled"]
    assert runner.run(step, FAILED=failed)[0] == (failed == "true")


def test_every_night_reports_what_is_not_well_after_the_promotion() -> None:
    found = read("nightly.yml")["jobs"]
    assert found["report"]["if"] == "${{ !cancelled() && needs.plan.result == 'success' }}"
    assert {"image", "smoke", "gpu", "promote"} <= set(found["report"]["needs"])
    assert found["status"]["if"] == "${{ always() && needs.plan.result != 'skipped' }}"


def test_jobs_that_may_write_issues_only_report() -> None:
    writing = [(job, data) for _, job, data in jobs() if data["permissions"].get("issues") == "write"]
    assert {job for job, _ in writing} == {"report"}
    for _, data in writing:
        assert set(re.findall(r"\./inv (\S+)", steps(data))) <= {"ci.report", "mods.check"}


def test_a_release_is_made_once_with_its_changelog_entry_for_the_tag_of_its_version(runner: Runner) -> None:
    step = step_of("release.yml", "release")
    assert runner.run(step, TAG="v0.2.0") == (0, "")
    assert runner.calls == ["release view v0.2.0"], "it exists"
    runner.answer("release view", "exit 1")
    assert runner.run(step, TAG="v0.2.0") == (0, "")
    *_, made = " ".join(runner.calls).partition("release create ")
    assert made.split() == ["v0.2.0", "--verify-tag", "--title", "0.2.0", "--notes", "-", "more"]
    before = runner.calls
    code, said = runner.run(step, TAG="v0.3.0")
    assert (code, "has version 0.2.0" in said) == (1, True)
    (runner.checkout / "CHANGELOG.md").write_text("## [Unreleased]\n\n- more\n")
    code, said = runner.run(step, TAG="v0.2.0")
    assert (code, "no entry for 0.2.0" in said) == (1, True)
    assert runner.calls == before


@pytest.mark.parametrize("branch", ["news", "models"])
def test_a_pull_request_is_opened_once_and_kept_up_to_date(runner: Runner, branch: str) -> None:
    step, proposal = step_of("news.yml", "propose"), runner.propose()
    proposals = read("news.yml")["jobs"]["propose"]["strategy"]["matrix"]["include"]
    env = {"BRANCH": branch, "TITLE": {one["branch"]: one["title"] for one in proposals}[branch]}
    assert runner.run(step, **env) == (0, "")
    assert runner.calls == [], "nothing changed"
    (proposal / "locks/0.1/b.toml").write_text("newer")
    (proposal / "locks/new.toml").write_text("new")
    assert runner.run(step, **env) == (0, "")
    assert [call.split()[:4] for call in runner.calls] == [
        ["pr", verb, "--head", branch] for verb in ("list", "create")
    ]
    changed = git(runner.origin, "diff", "--name-only", "main", branch).splitlines()
    assert changed == ["locks/0.1/b.toml", "locks/new.toml"]
    runner.answer("pr list", "echo 7")
    git(runner.checkout, "reset", "--quiet", "--hard", "origin/main")
    (proposal / "locks/0.1/b.toml").write_text("newest")
    assert runner.run(step, **env)[0] == 0
    assert runner.calls[-1].startswith("pr edit 7 --body-file")
    assert git(runner.origin, "rev-list", "--count", f"main..{branch}") == "1"


@pytest.mark.parametrize(
    "path",
    [
        *("inv", ".github/workflows/x.yml", "locks/x.py", "locks/.git/x.toml", "locks/a b.toml"),
        *("locks/a\n.toml", "link", "mods/m/run.sh", "mods/m/n/mod.yaml", "docs/schemas/x.md", "images/x.py"),
    ],
)
def test_only_data_and_pages_are_proposed(runner: Runner, path: str) -> None:
    proposal = runner.propose()
    if path == "link":
        (proposal / "locks/0.1/c.toml").symlink_to("/etc/passwd")
    else:
        (proposal / path).parent.mkdir(parents=True, exist_ok=True)
        (proposal / path).write_text("x")
    code, said = runner.run(step_of("news.yml", "propose"), BRANCH="news")
    assert (code, "nothing that is proposed" in said) == (1, True)
    assert runner.calls == []
    assert git(runner.origin, "branch", "--list", "news") == ""


TROJAN = """\
#!/bin/sh
# Does what a package could that was locked and run a moment ago: it waits for whoever has a token.
git rev-parse --git-dir >/dev/null
for hook in pre-commit pre-push; do
    printf '#!/bin/sh\\necho "$GH_TOKEN" >>"{marker}"\\n' >.git/hooks/$hook
    chmod +x .git/hooks/$hook
done
echo "${{GH_TOKEN:-}}${{GITHUB_TOKEN:-}}" >>"{marker}"
echo trojaned >locks/0.1/b.toml
touch proposal.md refused.json "$RUNNER_TEMP/body.md"
git branch news
"""


def test_a_trojan_that_was_just_locked_sees_no_token(runner: Runner) -> None:
    marker, workflow = runner.folder / "marker", read("news.yml")
    kept = runner.folder / "artifacts"
    for job, data in workflow["jobs"].items():
        shutil.rmtree(runner.checkout)
        git(runner.folder, "clone", "--quiet", runner.origin.as_uri(), str(runner.checkout))
        inv = runner.checkout / "inv"
        # What the other jobs run was reviewed.
        inv.write_text(TROJAN.format(marker=marker) if job == "prepare" else "#!/bin/sh\ngit branch models\n")
        inv.chmod(0o755)
        for step in data["steps"]:
            if "upload-artifact" in step.get("uses", ""):
                named = (runner.checkout.glob(pattern) for pattern in step["with"]["path"].split())
                for path in itertools.chain.from_iterable(named):
                    name = path.relative_to(runner.checkout)
                    place = kept / step["with"]["name"] / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy = shutil.copytree if (runner.checkout / name).is_dir() else shutil.copy
                    copy(runner.checkout / name, place)
            elif "download-artifact" in step.get("uses", ""):
                folder = step["with"]["path"].replace("${{ runner.temp }}", str(runner.folder))
                proposal = "proposal-news" if "matrix.files" in step["with"]["artifact-ids"] else "refused"
                shutil.copytree(kept / proposal, folder)
            elif "run" in step:
                token = {name: TOKEN for name, value in step.get("env", {}).items() if "token" in str(value)}
                code, said = runner.run(step, UPGRADE="all", BRANCH="news", TITLE="news", **token)
                assert code == 0, f"{job}: {said}"
    assert TOKEN not in marker.read_text(), "the trojan ran, and had a token"
    assert git(runner.origin, "show", "news:locks/0.1/b.toml") == "trojaned"


def test_no_job_with_a_token_changes_what_it_runs() -> None:
    """Whatever changes the environment's locks has no token, and hands on files to a job that runs none of them."""
    changes = re.compile(r"\./inv (news .*--upgrade|lock\b.*--environment)")
    changing = [(name, job, data) for name, job, data in jobs() if changes.search(steps(data))]
    assert changing
    for name, job, data in changing:
        assert set(data["permissions"].values()) <= {"read"}, f"{name}, {job}"
        assert not re.search(r"github\.token|secrets\.", str(data)), f"{name}, {job}"
        for other, after in read(name)["jobs"].items():
            if other != job and "write" in after["permissions"].values():
                runs = re.findall(r"\./inv (\S+)", steps(after))
                assert runs in ([], ["ci.report"]), f"{name}, {other}"
                assert runs or "uses': './" not in str(after), f"{name}, {other}"
                for step in after["steps"]:
                    if "download-artifact" in step.get("uses", ""):  # what was prepared stays outside of what runs
                        assert step["with"]["path"].startswith("${{ runner.temp }}/"), f"{name}, {other}"


def test_every_job_follows_the_rules() -> None:
    contributed = re.compile(r"\./inv (compile|smoke|ci\.smoke|build|test)\b|\.ci/run")
    for name, job, data in jobs():
        assert data.get("strategy", {"fail-fast": False})["fail-fast"] is False, f"{name}, {job} stops others"
        if contributed.search(steps(data)):
            assert set(data["permissions"].values()) <= {"read"}, f"{name}, {job} runs contributed content"
        for step in data["steps"]:
            if "actions/checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, f"{name}, {job} keeps credentials"
    for name in ("nightly.yml", "pull-request.yml"):
        found = read(name)["jobs"]
        assert set(found["status"]["needs"]) == set(found) - {"status"}, name


def test_the_night_lists_what_it_would_prune_and_deletes_no_more_than_a_bound() -> None:
    listing, deleting = (step_of("nightly.yml", "prune", number)["run"] for number in (-2, -1))
    assert deleting == f"{listing} --delete --most 5000"
    assert "--keep" not in listing, "published releases stay"


def test_jobs_that_may_write_packages_only_move_bytes() -> None:
    allowed = {"wheels.push", "push", "ci.attach", "promote", "rollback", "history", "prune"}
    writing = [(job, data) for _, job, data in jobs() if data["permissions"].get("packages") == "write"]
    assert len(writing) == 6
    for job, data in writing:
        assert set(re.findall(r"\./inv (\S+)", steps(data))) <= allowed, job


def test_pull_requests_may_only_read_and_strangers_start_no_job_with_rights() -> None:
    for name in NAMES:
        assert not {"pull_request_target", "issue_comment", "workflow_run"} & set(read(name)["on"]), name
    workflow = read("pull-request.yml")
    assert set(workflow["on"]) == {"pull_request"}
    text = (FOLDER / "pull-request.yml").read_text("utf-8")
    assert re.findall(r"secrets\.|github\.token|actions/cache", text) == []
    for data in workflow["jobs"].values():
        assert data["permissions"] in ({}, {"contents": "read"})
        assert "self-hosted" not in str(data["runs-on"])
    # A self-hosted machine needs a protected environment.
    [(name, test)] = [(name, data) for name, _, data in jobs() if "self-hosted" in str(data["runs-on"])]
    assert set(read(name)["on"]) == {"workflow_call"}
    assert test["runs-on"].startswith('${{ inputs.gpu && fromJSON(format(\'["self-hosted",')
    assert test["environment"] == "${{ inputs.gpu && 'gpu' || '' }}"
    callers = {other for other in NAMES if f"uses: ./.github/workflows/{name}" in (FOLDER / other).read_text("utf-8")}
    assert callers == {"nightly.yml"}
    assert set(read("nightly.yml")["on"]) == {"schedule", "workflow_dispatch"}


def test_jobs_that_publish_are_never_cancelled() -> None:
    for name in NAMES:
        workflow = read(name)
        publishes = [job for job in workflow["jobs"].values() if "write" in job["permissions"].values()]
        groups = [workflow["concurrency"], *(job["concurrency"] for job in publishes if "concurrency" in job)]
        for group in groups if publishes else ():
            assert group["cancel-in-progress"] is False, name
    queue = {"group": "publish", "cancel-in-progress": False, "queue": "max"}
    assert read("nightly.yml")["jobs"]["promote"]["concurrency"] == queue
    assert read("rollback.yml")["concurrency"] == queue


def ancestors(found: dict[str, Any], job: str) -> set[str]:
    """Return the jobs that a job needs, directly or not."""
    direct = found[job].get("needs", [])
    names = {direct} if isinstance(direct, str) else set(direct)
    return names | {name for own in names for name in ancestors(found, own)}


def test_nothing_is_written_by_a_nightly_of_another_branch() -> None:
    found = read("nightly.yml")["jobs"]
    guard = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
    assert " ".join(found["plan"]["if"].split()) == f"${{{{ github.event_name == 'schedule' || {guard} }}}}"
    for job, data in found.items():
        if job not in {"plan", "scan", "report", "status"}:  # a night without work has only these
            assert "needs.plan.outputs" in data["if"] or "promote.result" in data["if"], job
        if "write" in data["permissions"].values():
            assert "plan" in ancestors(found, job), job
            # With `always()` or `!cancelled()`, a job would run although `plan` was skipped.
            assert "cancelled()" not in data["if"] or "needs.plan.result == 'success'" in data["if"], job
            assert "always()" not in data["if"], job


def test_changed_records_are_rebuilt_on_both_kinds_of_machines() -> None:
    for workflow, base in (("pull-request.yml", "pull_request.base.sha"), ("main.yml", "before")):
        records = read(workflow)["jobs"]["records"]
        bases = [step["env"]["BASE"] for step in records["steps"] if "env" in step]
        assert bases == [f"${{{{ github.event.{base} }}}}"]
        assert records["steps"][0]["with"]["fetch-depth"] == 0
        assert set(records["strategy"]["matrix"]["runner"]) == set(RUNNERS.values())
        assert "ci.changes --rebuild --base" in steps(records)


def test_only_workflows_that_may_sign_have_an_identity() -> None:
    signing = {name for name, _, data in jobs() if "id-token" in data["permissions"]}
    trusted = {signer.partition("@")[0].rpartition("/")[2] for signer in load_matrix(MATRIX).signers}
    assert signing == trusted | {"site.yml"}


def test_site_is_deployed_by_a_job_that_runs_nothing_of_the_repository() -> None:
    found = read("site.yml")["jobs"]
    assert found["make"]["permissions"] == {"contents": "read", "packages": "read"}
    assert found["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert [step["uses"].partition("@")[0] for step in found["deploy"]["steps"]] == ["actions/deploy-pages"]
    assert [name for name, _, data in jobs() if "pages" in data["permissions"]] == ["site.yml"]
    assert set(found) == {"make", "deploy"}, "any other job could replace the pages"
    assert set(read("site.yml")["on"]) == {"workflow_dispatch"}, "called, it would be in a run with others"
