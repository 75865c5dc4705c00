"""Reports mods that no longer fit vLLM's main branch: one GitHub issue per mod, with the evidence.

A comment in the issue's text names the mod and a checksum of the finding, so that nothing is reported twice.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from imagefactory.ci.run_summary import cell, table
from imagefactory.mods.compatibility import ModResult
from imagefactory.publish.github import Document, GitHub
from imagefactory.store.digests import checksum

LABEL: Final = "mod-status"
"""Only people with access to the repository set labels, so a stranger's issue is never mistaken for one of these."""
_SETTLED: Final = "0" * 12
"""The state in a closed issue; no finding has this checksum."""
_MARK = re.compile(r"<!-- imagefactory mod=(\S+) state=([0-9a-f]{12}) -->")
ReportOutcome = Literal["opened", "updated", "reopened", "closed", "unchanged"]
UPSTREAM: Final = "hold without it"
"""What the check reports for a mod whose change is already in the sources."""


@dataclass(frozen=True)
class ModFinding:
    """A mod that is broken, or upstream, on some versions."""

    mod: str
    kind: Literal["broken", "upstream"]
    results: tuple[ModResult, ...]

    @property
    def title(self) -> str:
        verdict = "seems to be upstream" if self.kind == "upstream" else "does not hold"
        return f"The mod {self.mod} {verdict} on {', '.join(result.version for result in self.results)}"

    @property
    def state(self) -> str:
        evidence = sorted([result.version, result.status, result.detail] for result in self.results)
        return checksum([self.kind, *evidence])[:12]

    def body(self, commit: str = "") -> str:
        if self.kind == "upstream":
            what = f"The unmodified sources pass the checks of `mods/{self.mod}`: the change seems to be upstream."
            step = "Set `upstreamed_in` in its mod.yaml: the plan then drops the mod by itself."
        else:
            what = (
                f"`mods/{self.mod}` can no longer be applied. Images of these versions are not built with it until "
                "that is fixed; published ones stay as they are."
            )
            step = "Add a variant for the version, or declare it `not_needed` with the reason."
        rows = [(result.version, result.status, cell(result.detail)) for result in self.results]
        lines = [_mark(self.mod, self.state), what, "", *table("vLLM | found | evidence", rows)]
        lines += [f"Checked on vllm-project/vllm at `{commit}`.", ""] if commit else []
        again = f"To reproduce, with a checkout of vLLM in DIR: `./inv mods.check --name {self.mod} --source DIR`."
        return "\n".join([*lines, step, again, ""])


Reported = tuple[str, ReportOutcome, int]
"""A mod, what was done to its issue, and the number of the issue."""


def findings(results: Iterable[ModResult]) -> list[ModFinding]:
    """Turn check results into findings; a mod that is upstream on any version is reported as upstream."""
    wrong: dict[str, list[ModResult]] = {}
    for result in results:
        if not result.holds:
            wrong.setdefault(result.mod, []).append(result)
    upstream = {mod for mod, failures in wrong.items() if any(UPSTREAM in result.detail for result in failures)}
    return [
        ModFinding(mod, "upstream" if mod in upstream else "broken", tuple(failures)) for mod, failures in wrong.items()
    ]


def report(
    github: GitHub, results: Sequence[ModResult], *, commit: str = "", all_mods: Iterable[str] = ()
) -> list[Reported]:
    """Open, update or close issues to match what was found.

    An issue that somebody closed stays closed until the finding changes. An open issue about a mod that holds again, or
    is not among `all_mods` any more, is closed.
    """
    by_mod = {finding.mod: finding for finding in findings(results)}
    issues = _issues(github)
    reported = [_tell(github, finding, issues.get(mod), finding.body(commit)) for mod, finding in by_mod.items()]
    # A mod that was not checked this time keeps its issue.
    unchecked = set(all_mods) - {result.mod for result in results}
    for mod, issue in issues.items():
        if issue["state"] == "open" and mod not in unchecked and mod not in by_mod:
            reported.append(_close(github, mod, issue, commit))
    return reported


def _tell(github: GitHub, finding: ModFinding, issue: Document | None, body: str) -> Reported:
    if issue is None:
        created = github.post("issues", {"title": finding.title, "body": body, "labels": [LABEL]})
        return finding.mod, "opened", int(created["number"])
    number, mark = int(issue["number"]), _MARK.search(issue["body"] or "")
    if mark and mark[2] == finding.state:
        return finding.mod, "unchanged", number
    github.patch(f"issues/{number}", {"title": finding.title, "body": body, "state": "open"})
    github.post(f"issues/{number}/comments", {"body": "The finding has changed; see above."})
    return finding.mod, "updated" if issue["state"] == "open" else "reopened", number


def _close(github: GitHub, mod: str, issue: Document, commit: str) -> Reported:
    number = int(issue["number"])
    where = f" (vllm-project/vllm at `{commit}`)" if commit else ""
    github.post(f"issues/{number}/comments", {"body": f"The mod holds again, or no longer exists{where}."})
    # The checksum goes too: if the same problem comes back, it is reported again.
    body = _MARK.sub(_mark(mod, _SETTLED), issue["body"])
    github.patch(f"issues/{number}", {"body": body, "state": "closed", "state_reason": "completed"})
    return mod, "closed", number


def _issues(github: GitHub) -> dict[str, Document]:
    """Find the issues about mods; of several about one mod, prefer an open one, then the newest."""
    listed = github.pages(f"issues?labels={LABEL}&state=all")
    # The preferred one last: of several about one mod, the dictionary keeps the last.
    issues = sorted(listed, key=lambda issue: (issue["state"] == "open", issue["number"]))
    # GitHub lists pull requests as issues, too.
    marked = [(_MARK.search(issue.get("body") or ""), issue) for issue in issues if "pull_request" not in issue]
    return {mark[1]: issue for mark, issue in marked if mark}


def _mark(mod: str, state: str) -> str:
    return f"<!-- imagefactory mod={mod} state={state} -->"
