"""Keeps one GitHub issue for each finding: opens it, edits it as long as the finding lasts, and closes it afterwards.

A comment in the issue's text names its subject, a checksum of the finding and the day of the first report. So nothing
is reported twice, and only a finding that changed makes a noise.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

from imagefactory.publish.github import Document, GitHub, understood
from imagefactory.store.digests import checksum

Kind = Literal["mod", "target", "release"]
LABELS: Final[Mapping[Kind, str]] = {"mod": "mod-status", "target": "target-status", "release": "release-status"}
"""Only people with access to the repository set labels, so a stranger's issue is never mistaken for one of these."""
MOST_NEW: Final = 20
"""Issues that one run opens; the next one opens more. A mistake can concern every target, and GitHub limits writes."""
LONGEST: Final = 60_000
"""Characters of a text; GitHub takes 65,536."""
_SETTLED: Final = "0" * 12
"""The state in an issue that was closed here; no finding has this checksum."""
_MARK = re.compile(r"<!-- imagefactory (mod|target|release)=(\S+) state=([0-9a-f]{12})(?: since=([0-9-]{10}))? -->")
Outcome = Literal["opened", "updated", "reopened", "edited", "closed", "unchanged"]
Reported = tuple[str, Outcome, int]
"""A subject, what was done to its issue, and the number of the issue."""


@dataclass(frozen=True)
class Finding:
    """Something that a maintainer has to look at."""

    subject: str
    """A mod, a target or a release; a word without blanks."""
    title: str
    text: str
    """Markdown; what others wrote in it is escaped."""
    evidence: Sequence[str]
    """What makes it another finding if it differs."""

    @property
    def state(self) -> str:
        return checksum([*self.evidence])[:12]


@dataclass(frozen=True)
class Reporter:
    """Reports findings of one kind to the issues of a repository."""

    github: GitHub
    kind: Kind
    today: date
    run: str = ""
    """The address of the run that found them."""

    def report(self, findings: Sequence[Finding], over: Callable[[str], str]) -> Iterator[Reported]:
        """Open, edit and close issues to match what was found, and say what was done to each.

        An issue that somebody closed stays closed until its finding changes. For a subject with an open issue but
        without a finding, `over` says why the issue can be closed; or nothing, if it cannot.
        """
        issues, new = self._issues(), 0

        def known(finding: Finding) -> bool:
            issue = issues.get(finding.subject)
            return issue is not None and _state(issue) == finding.state

        # What changed comes first: GitHub may refuse the last of many writes.
        for finding in sorted(findings, key=known):
            issue = issues.pop(finding.subject, None)
            new += issue is None
            if issue is not None or new <= MOST_NEW:
                yield self._tell(finding, issue)
        for subject, issue in issues.items():
            if issue["state"] == "open" and (why := over(subject)):
                yield self._close(subject, issue, why)

    @understood()
    def _tell(self, finding: Finding, issue: Document | None) -> Reported:
        if issue is None:
            label = LABELS[self.kind]
            # GitHub may leave out a label that does not exist, and without it the next run would not find the issue.
            if self.github.get(f"labels/{label}", optional=True) is None:
                self.github.post("labels", {"name": label})
            document = {"title": finding.title, "body": self._body(finding, str(self.today)), "labels": [label]}
            return finding.subject, "opened", int(self.github.post("issues", document)["number"])
        number, state, mark = int(issue["number"]), _state(issue), _MARK.search(issue["body"])
        since = mark[4] if mark and state != _SETTLED else None
        body = self._body(finding, since or str(self.today))
        if state == finding.state:
            if issue["state"] != "open" or issue["body"] == body:
                return finding.subject, "unchanged", number
            self.github.patch(f"issues/{number}", {"title": finding.title, "body": body})
            return finding.subject, "edited", number
        self.github.patch(f"issues/{number}", {"title": finding.title, "body": body, "state": "open"})
        self.github.post(f"issues/{number}/comments", {"body": "The finding has changed; see above."})
        return finding.subject, "updated" if issue["state"] == "open" else "reopened", number

    @understood()
    def _close(self, subject: str, issue: Document, why: str) -> Reported:
        number = int(issue["number"])
        seen = f" ([run]({self.run}))" if self.run else ""
        self.github.post(f"issues/{number}/comments", {"body": f"{why}{seen}"})
        # The checksum goes too: if the same problem comes back, it is reported again.
        body = _MARK.sub(self._mark(subject, _SETTLED, str(self.today)), issue["body"])
        self.github.patch(f"issues/{number}", {"body": body, "state": "closed", "state_reason": "completed"})
        return subject, "closed", number

    def _body(self, finding: Finding, since: str) -> str:
        seen = f"; seen last in [this run]({self.run})" if self.run else ""
        mark = self._mark(finding.subject, finding.state, since)
        return f"{mark}\n{finding.text[:LONGEST]}\n\nReported since {since}{seen}.\n"

    def _mark(self, subject: str, state: str, since: str) -> str:
        return f"<!-- imagefactory {self.kind}={subject} state={state} since={since} -->"

    @understood()
    def _issues(self) -> dict[str, Document]:
        """Find the issues of this kind by subject; of several about one, prefer an open one, then the newest."""
        listed = self.github.pages(f"issues?labels={LABELS[self.kind]}&state=all")
        # The preferred one last: of several about one subject, the dictionary keeps the last.
        issues = sorted(listed, key=lambda issue: (issue["state"] == "open", int(issue["number"])))
        # GitHub lists pull requests as issues, too.
        marked = [(_MARK.search(issue.get("body") or ""), issue) for issue in issues if "pull_request" not in issue]
        return {mark[2]: issue for mark, issue in marked if mark and mark[1] == self.kind}


def _state(issue: Document) -> str:
    mark = _MARK.search(issue["body"])
    return mark[3] if mark else ""
