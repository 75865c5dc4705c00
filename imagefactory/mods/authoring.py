"""Writes mods: a scaffold, the text of mod.yaml, a diff, and files to mount over an image."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from imagefactory.errors import ModError
from imagefactory.mods.choose import find_mod
from imagefactory.mods.compatibility import refuse_unknown_version, variants_for
from imagefactory.mods.source_files import Trees
from imagefactory.oci.format import VENV
from imagefactory.project.project import Project
from imagefactory.project.server_versions import server_name, version_title
from imagefactory.store.atomic import write_text
from images.shipped.mods.manifest import IMAGE_FILES, MANIFEST, Manifest, Variant
from images.shipped.mods.requirements import why_not

NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"
NO_REASON = "https://example.invalid/name-the-issue"
"""The `why` of a mod until somebody names the issue or pull request."""
TEMPLATE = """\
# yaml-language-server: $schema=../../docs/schemas/mod.schema.json
name: {name}
summary: One line on what gets better, and for whom
why: {why}
licence: Apache-2.0
distribution: vllm
needed_when:
  - {{model: "no-model-yet"}}

not_needed:
  - versions: "!={version}"
    reason: Why the other versions do not need it; a version that does gets a variant of its own

variants:
  - versions: "=={version}"
    changes:
      - edit: vllm/version.py
        anchor: |
          import warnings
        after: |
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
    mountable: bool
    """Whether the file can be mounted over the one in an image."""


def scaffold(project: Project, name: str) -> Path:
    """Create the folder of a new mod, with a working mod.yaml to fill in."""
    folder = new_folder(project, name)
    text = TEMPLATE.format(name=name, version=project.matrix.defaults.vllm, why=NO_REASON)
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


def changes(project: Project, name: str, vllm: str) -> list[FileChange]:
    """List what a mod changes in a version, in both stages."""
    mod = find_mod(project.mods, name)
    refuse_unknown_version(project.matrix, vllm)
    version = project.matrix.versions[vllm].version
    variants = variants_for(mod, version) if mod.manifest.of_server == server_name(vllm) else []
    if not variants:
        raise ModError(
            "not-applicable",
            f"The mod {name} does nothing in {version_title(vllm)}.",
            where=mod.where("variants"),
            why=f"{why_not(mod, version)}.",
            fix="`./inv mods.check` shows where it applies.",
        )
    trees = Trees(project)
    found: list[FileChange] = []
    for variant in variants:
        read = trees.tree(mod, variant, vllm).read
        mountable = variant.stage == "installed" and variant.source is None
        texts: dict[str, str] = {}
        for applied in trees.apply(mod, variant, vllm):
            if applied.mod is mod:
                found += [
                    FileChange(path, texts.get(path, read(path)), text, mountable)
                    for path, text in applied.files.items()
                ]
            texts |= applied.files
    return found


def unified_diff(found: list[FileChange]) -> str:
    lines: list[str] = []
    for change in found:
        lines += difflib.unified_diff(
            (change.before or "").splitlines(keepends=True),
            change.after.splitlines(keepends=True),
            fromfile=f"a/{change.path}" if change.before is not None else "/dev/null",
            tofile=f"b/{change.path}",
        )
    return "".join(lines)


def export(found: list[FileChange], folder: Path, python: str) -> list[str]:
    """Write the changed files; return the `docker run` options that mount them over an image without the mod."""
    mountable = [change for change in found if change.mountable]
    if not mountable:
        raise ModError(
            "not-applicable",
            "The mod changes nothing that can be mounted over an image.",
            where=", ".join(change.path for change in found),
            why="It changes sources before they are compiled, or a package that it adds.",
            fix="Build an image with the mod.",
        )
    options: list[str] = []
    for change in mountable:
        file = folder / change.path.lstrip("/")
        write_text(file, change.after)
        in_image = change.path.startswith(IMAGE_FILES)
        inside = change.path if in_image else f"/{VENV}/lib/python{python}/site-packages/{change.path}"
        options.append(f"-v {file.absolute()}:{inside}:ro")
        if inside.endswith(".py") and not in_image:
            # Python runs the image's bytecode of the file without looking at its source.
            above, _, name = inside.rpartition("/")
            tag = f"cpython-{python.replace('.', '')}"
            options.append(f"-v /dev/null:{above}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc:ro")
    return options


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and indents lists as people do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)  # noqa: FBT003


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifest_text(manifest: Manifest, comments: Sequence[str]) -> str:
    """Return the text of a new mod.yaml."""
    schema = TEMPLATE.partition("\n")[0]
    return "\n".join([schema, *(f"# {line}" for line in comments), _dump(_plain(manifest))])


def _plain(model: Manifest | Variant) -> object:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _dump(data: object) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
