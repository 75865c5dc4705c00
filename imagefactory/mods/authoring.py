"""Writes mods: a scaffold, the text of mod.yaml, and a diff."""

import difflib
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from imagefactory.errors import FactoryError, ModError, UsageError
from imagefactory.mods.choose import NO_MODEL, find_mod, reached
from imagefactory.mods.compatibility import refuse_unknown_version, releases, variants_for
from imagefactory.mods.source_files import Trees
from imagefactory.project.project import Project
from imagefactory.project.server_versions import VLLM, server_name, version_title
from imagefactory.store.atomic import write_text
from imagefactory.store.paths import read_text
from images.shipped.mods.manifest import MANIFEST, Manifest

NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"
NO_REASON = "https://example.invalid/name-the-issue"  # a mod's `why` until somebody names the issue
TEMPLATE = """\
# yaml-language-server: $schema=../../docs/schemas/mod.schema.json
name: {name}
summary: One line on what gets better, and for whom
why: {why}
licence: Apache-2.0
distribution: vllm
needed_when:
  - {{model: "{model}"}}

not_needed:
  - versions: "!={version}"
    reason: Why the other versions do not need it; a version that does gets a variant of its own

variants:
  - versions: "=={version}"
    changes:
      - edit: vllm/version.py
        anchor: |2              # the 2 keeps the indentation beyond this key's
              import warnings
        after: |2
              # A comment that shows what an edit looks like: put your change here.
    checks:
      - {{file: vllm/version.py, contains: A comment}}
"""


@dataclass(frozen=True)
class FileChange:
    """One file before and after a mod; `before` is None if the mod adds the file."""

    path: str
    before: str | None
    after: str


def scaffold(project: Project, name: str, like: str = "") -> Path:
    """Write a new mod: an example to fill in, or a copy of another one."""
    folder = new_folder(project, name)
    if like:
        find_mod(project.mods, like, "the --like option")
        shutil.copytree(project.root / "mods" / like, folder)
        text = read_text(folder / MANIFEST)
        write_text(folder / MANIFEST, re.sub(r"^name:.*$", f"name: {name}", text, count=1, flags=re.MULTILINE))
        return folder / MANIFEST
    version = project.matrix.defaults.vllm
    text = TEMPLATE.format(name=name, version=version, why=NO_REASON, model=NO_MODEL)
    write_text(folder / MANIFEST, text)
    return folder / MANIFEST


def new_folder(project: Project, name: str) -> Path:
    """Return where a new mod belongs; refuse a name that is taken, or none for a mod."""
    if not re.fullmatch(NAME, name):
        raise ModError(
            "bad-mod",
            f"{name!r} is not a valid name for a mod.",
            where="mods/",
            why="It becomes a folder and a label: use lower-case letters and digits, with `-`, `_`, `.` between them.",
            fix="Choose a name such as my-mod.",
        )
    folder = project.root / "mods" / name
    if folder.exists():
        raise ModError(
            "bad-mod",
            f"The mod {name} already exists.",
            where=folder,
            why="A new mod needs a name of its own.",
            fix="Choose another name, or edit the existing mod.",
        )
    return folder


def unfinished(project: Project, names: Sequence[str]) -> Iterator[str]:
    getting = reached(project.matrix, project.mods)
    for name in names or project.mods:
        if name not in getting:
            yield f"{name}: no image gets it; `needed_when` in mod.yaml says which models do"
        if project.mods[name].manifest.why == NO_REASON:
            yield f"{name}: `why` in mod.yaml has to name the issue or pull request"


def source_lines(project: Project, path: str, vllm: str, pattern: str = "") -> Iterator[str]:
    """Yield the lines of a file that a mod can change, numbered; of a folder, the names of its files.

    With a pattern, only lines that match are yielded; in a folder, those of all its files.
    """
    refuse_unknown_version(project.matrix, vllm)
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            "bad-option",
            f"{pattern!r} is not a regular expression.",
            where="the --grep option",
            why=f"{error}.".capitalize(),
            fix="Put a backslash before characters such as ( and [ to mean them literally.",
        ) from None
    release = Trees(project).release(server_name(vllm), vllm)
    names, folder = release.names, f"{path.rstrip('/')}/"
    below = sorted(name for name in names if name.startswith(folder))
    text = release.read(path) if path in names else None
    if text is None and not below and server_name(vllm) == VLLM:
        # What is compiled is in the sdist alone.
        text = Trees(project).release(VLLM, vllm, "source").read(path)
    if text is None and not below:
        raise UsageError(
            "unknown-name",
            f"{version_title(vllm)} has no file {path}.",
            where="the path on the command line",
            why="It is neither in the locked wheel nor in the sources.",
            fix=_elsewhere(project, path, vllm)
            or f"Nearest: {', '.join(_nearest(path, names)) or 'none; name a folder, such as vllm, to list it'}.",
        )
    if text is not None:
        yield from _numbered(text, expression)
    elif pattern:
        for name, content in release.texts(below):
            yield from (f"{name}:{line.lstrip()}" for line in _numbered(content, expression))
    else:
        yield from below


def _elsewhere(project: Project, path: str, vllm: str) -> str:
    """Say which other version has a file, or a folder."""
    for name in reversed([name for name in releases(project.matrix) if name != vllm]):
        with suppress(FactoryError):  # one that is not locked, or on no index, cannot be searched
            names = Trees(project).release(server_name(name), name).names
            if path in names or any(other.startswith(f"{path.rstrip('/')}/") for other in names):
                return f"{version_title(name)} has it: add `--vllm {name}`."
    return ""


def _numbered(text: str, expression: re.Pattern[str]) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if expression.search(line):
            yield f"{number:5}: {line}".rstrip()


def _nearest(path: str, names: Collection[str]) -> list[str]:
    """Return the paths like one that does not exist: files of the same name, else of a similar path."""
    name = path.rpartition("/")[2]
    same = [candidate for candidate in names if candidate.rpartition("/")[2] == name]
    return difflib.get_close_matches(path, same or names, 5, cutoff=0 if same else 0.6)


def changes(project: Project, name: str, vllm: str) -> list[FileChange]:
    mod = find_mod(project.mods, name)
    refuse_unknown_version(project.matrix, vllm)
    version = project.matrix.versions[vllm].version
    variants = variants_for(mod, version) if mod.manifest.of_server == server_name(vllm) else []
    if not variants:
        raise ModError(
            "not-applicable",
            f"The mod {name} does nothing in {version_title(vllm)}.",
            where=mod.where("variants"),
            why=f"{mod.why_not(version)}.",
            fix="`./inv mods.check` shows where it applies.",
        )
    trees = Trees(project)
    changed: list[FileChange] = []
    for variant in variants:
        read = trees.tree(mod, variant, vllm).read
        applied = trees.apply(mod, variant, vllm)
        changed += [FileChange(path, read(path), text) for path, text in applied.files.items()]
    return changed


def unified_diff(changed: list[FileChange]) -> str:
    lines: list[str] = []
    for change in changed:
        lines += difflib.unified_diff(
            (change.before or "").splitlines(keepends=True),
            change.after.splitlines(keepends=True),
            fromfile=f"a/{change.path}" if change.before is not None else "/dev/null",
            tofile=f"b/{change.path}",
        )
    return "".join(lines)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and indents lists as people do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)  # noqa: FBT003


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifest_text(manifest: Manifest, comments: Sequence[str]) -> str:
    schema = TEMPLATE.partition("\n")[0]
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
    return "\n".join([schema, *(f"# {printable(line)}" for line in comments), text])


def printable(text: str) -> str:
    """Escape what ends a line or steers a terminal: names of files may have any character."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
