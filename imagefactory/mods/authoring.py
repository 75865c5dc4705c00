"""Tools for mod authors: scaffold a mod, show its diff, and export files to mount over an image."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors.mods import ModManifestError, ModNotApplicableError
from imagefactory.locks.project import Project
from imagefactory.mods.compatibility import named_mod, named_versions
from imagefactory.mods.trees import Trees
from imagefactory.oci.format import VENV
from imagefactory.store.atomic import write_text
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.manifest import IMAGE_FILES, MANIFEST, STAGES, Variant
from images.shipped.mods.requirements import why_not, with_requirements

NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"
TEMPLATE = """\
# yaml-language-server: $schema=../../docs/schemas/mod.schema.json
name: {name}
summary: Say in one line what gets better, for whom
why: https://github.com/vllm-project/vllm/issues/1
licence: Apache-2.0
distribution: vllm
needed_when:
  - {{model: "no-model-yet"}}

not_needed:
  - versions: "!={version}"
    reason: Say why the other versions do without it; a version that needs it gets a variant

variants:
  - versions: "=={version}"
    changes:
      - edit: vllm/version.py
        anchor: |
          import warnings
        after: |
          # A comment, to show how an edit looks: replace this by your change.
    checks:
      - {{file: vllm/version.py, contains: A comment}}
"""


@dataclass(frozen=True)
class FileChange:
    """One file before and after a mod; `before` is None if the mod adds the file."""

    path: str
    before: str | None
    after: str
    mountable: bool = True
    """Whether the file can be mounted over the one in an image."""


def scaffold(project: Project, name: str) -> Path:
    """Create the folder of a new mod, with a working mod.yaml to fill in."""
    if not re.fullmatch(NAME, name):
        raise ModManifestError(
            f"{name!r} is not a valid name for a mod.",
            where="mods/",
            why="It becomes a folder and a label: use lower-case letters and digits, with `-`, `_`, `.` between them.",
            fix="Choose a name such as my-mod.",
        )
    folder = project.root / "mods" / name
    if folder.exists():
        raise ModManifestError(
            f"The mod {name} already exists.",
            where=folder,
            why="A new mod needs a name of its own.",
            fix="Choose another name, or edit the existing mod.",
        )
    write_text(folder / MANIFEST, TEMPLATE.format(name=name, version=project.matrix.defaults.vllm))
    return folder / MANIFEST


def changes(project: Project, name: str, vllm: str) -> list[FileChange]:
    """List the changes that a mod makes to the files of a version, in both stages."""
    mod = named_mod(project, name)
    [vllm] = named_versions(project, [vllm])
    version = project.matrix.vllm[vllm].version
    variants = [variant for stage in STAGES if (variant := mod.variant(version, stage)) is not None]
    if not variants:
        raise ModNotApplicableError(
            f"The mod {name} does nothing in vLLM {vllm}.",
            where=mod.where("variants"),
            why=f"{why_not(mod, version)}.",
            fix="`invoke mods.check` shows where it applies.",
        )
    trees = Trees(project)
    found: list[FileChange] = []
    for variant in variants:
        read = trees.tree(mod, variant, vllm).read
        chosen = with_requirements(mod, project.mods, version, variant.stage)
        texts: dict[str, str] = {}
        for applied in apply_mods(
            [pair for pair in chosen.values() if trees.same(pair, (mod, variant))], read
        ):
            if applied.mod is mod:
                found += [
                    FileChange(path, texts.get(path, read(path)), text, mountable=_mountable(variant))
                    for path, text in applied.files.items()
                ]
            texts |= applied.files
    return found


def _mountable(variant: Variant) -> bool:
    """Return whether the changes are to files in the image, not to sources or to a package that the mod adds."""
    return variant.stage == "installed" and variant.source is None


def unified_diff(found: list[FileChange]) -> str:
    """Return changes as a unified diff."""
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
    options: list[str] = []
    for change in (change for change in found if change.mountable):
        write_text(folder / change.path.lstrip("/"), change.after)
        inside = (
            change.path
            if change.path.startswith(IMAGE_FILES)
            else f"/{VENV}/lib/python{python}/site-packages/{change.path}"
        )
        options.append(f"-v {(folder / change.path.lstrip('/')).absolute()}:{inside}:ro")
    if not options:
        raise ModNotApplicableError(
            "The mod changes nothing that can be mounted over an image.",
            where=", ".join(change.path for change in found),
            why="It changes sources before they are compiled, or a package that it adds.",
            fix="Build an image with the mod.",
        )
    return options
