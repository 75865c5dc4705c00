"""What moved on the model hub since models were pinned, file by file; and the change that pins it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from imagefactory.assemble.assemble import record_models
from imagefactory.assemble.layer_records import drop_unneeded
from imagefactory.ci.run_summary import cell as escaped
from imagefactory.ci.run_summary import folded, table
from imagefactory.errors import NetworkError
from imagefactory.lock.hub import HubFile, HubRevision, ask_for_all
from imagefactory.lock.making import pin_models
from imagefactory.project.project import Project
from imagefactory.store.progress import Say, count, size

OTHER: Final = "other"
_KINDS: Final = {
    "weights": ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf", "*.pt", "*.pth"),
    "code": ("*.py",),  # with `trust_remote_code` it runs
    "chat template": ("*.jinja", "chat_template.json"),
    "tokenizer": ("tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "special_tokens_map.json", "*.model"),
    "configuration": ("*.json", "*.yaml", "*.yml"),
}
"""What a file of a model is for, by its name; the first that fits. No server reads the others."""
_SHOWN = 12  # files of a model
_LONGEST_PATH = 120
_LONGEST = 50_000  # characters; GitHub takes 65,536 in the text of a pull request


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    fitting = (kind for kind, patterns in _KINDS.items() if any(fnmatchcase(name, pattern) for pattern in patterns))
    return next(fitting, OTHER)


@dataclass(frozen=True)
class Moved:
    """A repository that is at another commit than the one that is pinned."""

    models: tuple[str, ...]  # those of the matrix that need it
    now: HubRevision
    pinned: str | None
    """The commit in the lock; None if there is none yet."""
    then: HubRevision | NetworkError | None = None
    """The files at that commit, or why the hub does not list them."""

    @property
    def changed(self) -> dict[str, tuple[HubFile | None, HubFile | None]]:
        """The files that differ, before and now, in the order of their kinds."""
        then = self.then.files if isinstance(self.then, HubRevision) else {}
        now, order = self.now.files, [*_KINDS, OTHER]
        paths = sorted(then.keys() | now.keys(), key=lambda path: (order.index(kind_of(path)), path))
        return {path: (then.get(path), now.get(path)) for path in paths if then.get(path) != now.get(path)}

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(map(kind_of, self.changed)))

    @property
    def matters(self) -> bool:
        """Whether a server may notice; a new page about a model is no reason for new images."""
        return not isinstance(self.then, HubRevision) or not {*self.kinds} <= {OTHER}

    @property
    def summary(self) -> str:
        if isinstance(self.then, HubRevision):
            return f"{', '.join(self.kinds)}: {count(len(self.changed), 'file')}"
        about = f"not known. {escaped(self.then.why)}" if self.then else "pinned for the first time:"
        return (
            f"{about} {count(len(self.now.files), 'file')}, {size(sum(file.size for file in self.now.files.values()))}"
        )

    def details(self) -> list[str]:
        if not isinstance(self.then, HubRevision):
            return []
        rows = [(_code(path), kind_of(path), *map(_described, sides)) for path, sides in self.changed.items()]
        more = [f"and {len(rows) - _SHOWN} more", ""] if len(rows) > _SHOWN else []
        return folded(
            f"{self.now.repo}: {self.summary}", [*table("file | what it is | before | now", rows[:_SHOWN]), *more]
        )


def _code(path: str) -> str:
    return f"`{escaped(path[:_LONGEST_PATH])}`"


def _described(file: HubFile | None) -> str:
    return f"{size(file.size)} `{escaped(file.hash[:12])}`" if file else "-"


@dataclass(frozen=True)
class ModelNews:
    """What the hub has of the models in the matrix."""

    moved: tuple[Moved, ...]
    refused: Mapping[str, tuple[str | None, NetworkError]]
    """What the hub does not show: the commit that stays pinned, and why."""
    asked: int

    @property
    def taken(self) -> list[Moved]:
        return [moved for moved in self.moved if moved.matters]

    def markdown(self) -> str:
        rows = [
            (", ".join(moved.models), moved.now.repo, _short(moved.pinned), _short(moved.now.commit), moved.summary)
            for moved in self.taken
        ]
        left = [
            f"{moved.now.repo} stays at {_short(moved.pinned)}: no server reads what changed"
            f" ({', '.join(map(_code, [*moved.changed][:_SHOWN])) or 'no file did'})."
            for moved in self.moved
            if not moved.matters
        ]
        refused = [
            f"{repo} {f'stays at {_short(pinned)}' if pinned else 'is not pinned'}: {escaped(error.why)}"
            for repo, (pinned, error) in self.refused.items()
        ]
        same = self.asked - len(self.moved) - len(self.refused)
        lines = [f"Repositories on the model hub: {self.asked}; as pinned: {same}.", ""]
        lines += table("models | repository | pinned | now | changed", rows)
        for title, entries in (("Needs a decision", refused), ("Left alone", left)):
            lines += [f"## {title}", "", *(f"- {entry}" for entry in entries), ""] if entries else []
        return "\n".join([*lines, *_within_bounds("\n".join(lines), self.taken)])


def _within_bounds(text: str, moved: list[Moved]) -> Iterator[str]:
    length = len(text)
    for number, entry in enumerate(moved):
        details = entry.details()
        length += sum(len(line) + 1 for line in details)
        if length > _LONGEST:
            yield f"Not listed: the files of {len(moved) - number} more, since GitHub takes no longer text."
            return
        yield from details


def _short(commit: str | None) -> str:
    return f"`{commit[:12]}`" if commit else "-"


def look_at_models(project: Project, say: Say) -> ModelNews:
    """Ask the hub for every model of the matrix, and for the files at the pinned commit of those that moved."""
    needed: dict[str, list[str]] = {}
    for name, model in project.matrix.models.items():
        for repo in model.repositories:
            needed.setdefault(repo, []).append(name)
    say(f"Asking the model hub for {count(len(needed), 'revision')}")
    answers = dict(zip(needed, ask_for_all((repo, "main") for repo in needed), strict=True))
    pins = {repo: project.model_lock.commit_of(repo) for repo in needed}
    refused = {repo: (pins[repo], answer) for repo, answer in answers.items() if isinstance(answer, NetworkError)}
    now = {
        repo: answer
        for repo, answer in answers.items()
        if not isinstance(answer, NetworkError) and answer.commit != pins[repo]
    }
    earlier = [(repo, commit) for repo in now if (commit := pins[repo])]
    then = dict(zip((repo for repo, _ in earlier), ask_for_all(earlier), strict=True))
    moved = (Moved(tuple(needed[repo]), revision, pins[repo], then.get(repo)) for repo, revision in now.items())
    return ModelNews(tuple(moved), refused, len(needed))


def take_models(project: Project, news: ModelNews) -> None:
    """Pin what moved, and record the layers that this changes, so that the next night has images of it."""
    revisions = [moved.now for moved in news.taken]
    pin_models(project, revisions)
    now = Project(project.root, project.store)  # a project reads each of its files once
    record_models(now, {revision.repo for revision in revisions})
    drop_unneeded(now)
