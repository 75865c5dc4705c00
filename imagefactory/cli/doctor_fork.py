"""Asks GitHub and the registry which steps of docs/fork.md a repository still lacks.

https://docs.github.com/en/rest. The rows are those settings that a program can read; the page says how each is made.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import quote

from imagefactory.cli.doctor import Diagnosis, Result, printed_by
from imagefactory.errors import FactoryError
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.matrix import PLACEHOLDER
from imagefactory.project.project import Project
from imagefactory.publish.github import Document, GitHub, api_address
from imagefactory.publish.tags import CATALOG
from imagefactory.store.http import Retry

PAGE: Final = "docs/fork.md"
NIGHT: Final = "nightly.yml"
_RETRY: Final = Retry(attempts=2)
_SWITCHES: Final = {"FACTORY_PAGES": "yes", "FACTORY_GPU": "yes", "FACTORY_SCAN": "no", "FACTORY_PRUNE": "no"}
"""Repository variables that workflows read, each with the one value that means something."""
_REFUSALS: Final = ("access-denied", "credentials-refused")
_ADMINISTRATOR: Final = "Use the token of an administrator of the repository, for packages with `read:packages`."


@dataclass(frozen=True)
class _Fork:
    """A repository on GitHub, with what was asked about it."""

    name: str
    github: GitHub
    home: Document
    workflow_files: Sequence[str]
    reference: Reference

    @cached_property
    def variables(self) -> dict[str, str]:
        rows = self.github.get("actions/variables?per_page=30")["variables"]
        return {row["name"]: row["value"] for row in rows}

    @cached_property
    def permissions(self) -> Document:
        found: Document = self.github.get("actions/permissions")
        return found

    @property
    def branch(self) -> str:
        return str(self.home["default_branch"])

    def repository(self) -> Result:
        if self.home.get("private"):
            return "warning", f"{self.name} is private", "It pays for minutes of Actions."
        return "ok", f"{self.name}, public, default branch {self.branch}", ""

    def actions(self) -> Result:
        if self.permissions["enabled"]:
            return "ok", "enabled", ""
        return "failed", "disabled", "Allow them in Settings, Actions, General."

    def workflows(self) -> Result:
        rows = self.github.get("actions/workflows?per_page=100")["workflows"]
        states = {row["path"].rpartition("/")[2]: row["state"] for row in rows}
        found = {name: states.get(name, "unknown to GitHub") for name in self.workflow_files}
        off = {name: state for name, state in found.items() if state != "active"}
        if not off:
            return "ok", f"{len(self.workflow_files)} active", ""
        detail = ", ".join(f"{name} is {state}" for name, state in off.items())
        return "failed" if NIGHT in off else "warning", detail, "Enable each in the tab Actions."

    def issues(self) -> Result:
        if self.home.get("has_issues"):
            return "ok", "enabled", ""
        return "warning", "disabled, as in every new fork", "Enable them in Settings, General: nights report there."

    def token(self) -> Result:
        rights = self.github.get("actions/permissions/workflow")
        wrong = []
        if rights["default_workflow_permissions"] != "read":
            wrong.append("writes by default")
        if not rights["can_approve_pull_request_reviews"]:
            wrong.append("may not open pull requests")
        if not wrong:
            return "ok", "reads by default, may open pull requests", ""
        return "warning", f"a job's token {' and '.join(wrong)}", "Change it in Settings, Actions, General."

    def pinned(self) -> Result:
        if self.permissions.get("sha_pinning_required"):
            return "ok", "only actions pinned by commit run", ""
        return "warning", "actions need no pin", "Require full commit SHAs in Settings, Actions, General."

    def environments(self) -> Result:
        rows = {row["name"]: row for row in self.github.get("environments?per_page=100")["environments"]}
        wanted = ["publish", "rollback", "release", *(["gpu"] if self.variables.get("FACTORY_GPU") == "yes" else [])]
        wrong = {name: fault for name in wanted if (fault := self._fault(name, rows.get(name)))}
        if not wrong:
            return "ok", ", ".join(wanted), ""
        detail = "; ".join(f"{name} {fault}" for name, fault in wrong.items())
        return "warning", detail, "Create or restrict them in Settings, Environments."

    def _fault(self, name: str, row: Document | None) -> str:
        if row is None:
            return "does not exist"
        if not row.get("deployment_branch_policy"):
            return "is open to every branch"
        if name != "publish" and "required_reviewers" not in {rule["type"] for rule in row["protection_rules"]}:
            return "has no required reviewers"
        wanted, allowed = "tag v*" if name == "release" else f"branch {self.branch}", {"protected branches"}
        if row["deployment_branch_policy"].get("custom_branch_policies"):
            rules = self.github.get(f"environments/{name}/deployment-branch-policies")["branch_policies"]
            allowed = {f"{rule.get('type', 'branch')} {rule['name']}" for rule in rules}
        elif name != "release":
            return ""  # the default branch is one of the protected ones, or `default branch` says so
        return "" if allowed == {wanted} else f"is for {', '.join(sorted(allowed)) or 'nothing'}, not {wanted}"

    def protection(self) -> Result:
        classic = self.github.get(f"branches/{quote(self.branch, safe='')}")
        checks = (classic.get("protection") or {}).get("required_status_checks") or {}
        required = {*checks.get("contexts", [])}
        # Rulesets are the newer way; the older request does not show them.
        for rule in self.github.get(f"rules/branches/{quote(self.branch, safe='')}"):
            if rule["type"] == "required_status_checks":
                required |= {check["context"] for check in rule["parameters"]["required_status_checks"]}
        if "status" in required:
            return "ok", f"{self.branch} requires the check `status`", ""
        return "warning", f"{self.branch} does not require the check `status`", "Protect it in Settings, Rules."

    def switches(self) -> Result:
        given = {name: value for name, value in self.variables.items() if name.startswith("FACTORY_")}
        unread = [f"{name}={value}" for name, value in given.items() if value != _SWITCHES.get(name, value)]
        if unread:
            remedy = "FACTORY_PAGES and FACTORY_GPU take `yes`, others `no`."
            return "warning", f"{', '.join(unread)} means nothing", remedy
        return "ok", ", ".join(sorted(f"{name}={value}" for name, value in given.items())) or "none set", ""

    def pages(self) -> Result:
        if self.variables.get("FACTORY_PAGES") != "yes":
            return "ok", "not wanted: FACTORY_PAGES is not `yes`", ""
        pages = self.github.get("pages", optional=True)
        if pages and pages.get("build_type") == "workflow":
            return "ok", str(pages.get("html_url")), ""
        return "failed", "not deployed by Actions", "Choose GitHub Actions as the source in Settings, Pages."

    def runner(self) -> Result:
        if self.variables.get("FACTORY_GPU") != "yes":
            return "ok", "not wanted: FACTORY_GPU is not `yes`", ""
        runners = self.github.get("actions/runners?per_page=100")["runners"]
        online = [row["name"] for row in runners if row["status"] == "online"]
        if online:
            return "ok", ", ".join(online), ""
        return "warning", "none is online", "Start one: a job without a runner waits for a day, and fails."

    def night(self) -> Result:
        path = f"actions/workflows/{NIGHT}/runs?status=completed&branch={quote(self.branch)}&per_page=1"
        runs = (self.github.get(path, optional=True) or {}).get("workflow_runs")
        if not runs:
            return "failed", "none has run to its end", "Start the first one by hand."
        last = runs[0]
        detail = f"{last['conclusion']}, {last['created_at'][:10]}, {last['html_url']}"
        if last["conclusion"] == "success":
            return "ok", detail, ""
        return "failed", detail, "Read the run's summary and the open issues."

    def package(self) -> Result:
        owner, _, package = self.reference.repository.partition("/")
        if self.reference.registry != "ghcr.io":
            return "ok", f"{self.reference.name} is not GitHub's", ""
        for kind in ("orgs", "users"):  # an owner is one of them; only the right folder exists
            folder = f"{kind}/{owner}/packages/container/{quote(package, safe='')}"
            row = GitHub(folder, self.github.token, self.github.api, _RETRY).get("", optional=True)
            if row is None:
                continue
            linked = (row.get("repository") or {}).get("full_name", "no repository")
            if linked.lower() == self.name.lower():
                return "ok", f"{self.reference.name}, {row['visibility']}, linked to {linked}", ""
            return "failed", f"{self.reference.name} is linked to {linked}", "Connect it to this one in its settings."
        return "failed", f"{self.reference.name} does not exist", "The first night with `first` creates it."


Row = tuple[str, str, int, Callable[[_Fork], Result]]
ROWS: Final[tuple[Row, ...]] = (
    ("repository", "everything", 1, _Fork.repository),
    ("Actions", "every workflow", 2, _Fork.actions),
    ("workflows", "schedules", 2, _Fork.workflows),
    ("issues", "nightly, mods", 3, _Fork.issues),
    ("token of jobs", "news, nightly", 3, _Fork.token),
    ("pinned actions", "your trust in them", 3, _Fork.pinned),
    ("environments", "nightly, rollback, release", 4, _Fork.environments),
    ("default branch", "merges", 5, _Fork.protection),
    ("variables", "nightly", 8, _Fork.switches),
    ("last night", "tags", 6, _Fork.night),
    ("package", "nightly", 6, _Fork.package),
    ("site", "readers", 9, _Fork.pages),
    ("GPU runner", "the level gpu", 10, _Fork.runner),
)


def examine_fork(project: Project) -> Iterator[Diagnosis]:
    """Compare the settings of the checkout's repository on GitHub with docs/fork.md, and pull without a login."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", project.matrix.effective_source)
    if found is None or found[1].startswith(f"{PLACEHOLDER}/"):
        detail = f"{project.matrix.effective_source} is no repository of yours on GitHub"
        yield _diagnosis("repository", "everything", 1, ("failed", detail, "Fork it, and clone the fork."))
        return
    token = os.environ.get("GITHUB_TOKEN") or printed_by("gh", "auth", "token")
    if token:
        yield from _settings(found[1], GitHub(f"repos/{found[1]}", token, api_address(), _RETRY), project)
    else:
        detail = f"not asked without a token: {', '.join(subject for subject, *_ in ROWS)}"
        remedy = "Set GITHUB_TOKEN, or log in with `gh auth login`."
        yield Diagnosis("settings", "everything", "warning", detail, remedy)
    yield _diagnosis("pull without login", "users", 7, _pull(_images(project)))


def _images(project: Project) -> Reference:
    return Reference.parse(project.matrix.effective_registry)


def _settings(name: str, github: GitHub, project: Project) -> Iterator[Diagnosis]:
    files = sorted(path.name for path in (project.root / ".github" / "workflows").glob("*.yml"))
    try:
        fork = _Fork(name, github, github.get(""), files, _images(project))
    except FactoryError as error:  # a wrong name or token, or no network: then nothing else is answered either
        yield _diagnosis("repository", "everything", 1, ("failed", f"{error.what} {error.why}", error.fix))
        return
    for subject, needed_by, step, look in ROWS:
        yield _diagnosis(subject, needed_by, step, _look(fork, look))


def _diagnosis(subject: str, needed_by: str, step: int, result: Result) -> Diagnosis:
    health, detail, remedy = result
    return Diagnosis(subject, needed_by, health, detail, remedy and f"{PAGE}, step {step}: {remedy}")


def _look(fork: _Fork, look: Callable[[_Fork], Result]) -> Result:
    try:
        return look(fork)
    except FactoryError as error:
        return "warning", f"not known. {error.why}", _ADMINISTRATOR
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return "warning", f"not known. GitHub's answer is not as documented: {error!r}", _ADMINISTRATOR


def _pull(reference: Reference) -> Result:
    with Repository.open(reference, retry=_RETRY) as repository:
        repository.credentials = None
        try:
            catalog = repository.resolve(CATALOG)
        except FactoryError as error:
            if error.name in _REFUSALS:
                return "failed", f"{reference.name} is private, or does not exist", "Make the package public."
            return "warning", f"not known. {error.why}", error.fix
    if catalog is None:
        return "failed", f"{reference.name} has published nothing yet", "Wait for the first night."
    return "ok", f"{reference.name}:{CATALOG}", ""
