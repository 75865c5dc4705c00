"""For those who write mods: a scaffold, the exact change, and files to mount over an image that lacks it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import ModManifestError, ModNotApplicableError, SourceMissingError
from imagefactory.locks import write_text_atomically
from imagefactory.mods.apply import apply_mods
from imagefactory.mods.check import named_mod, named_versions
from imagefactory.mods.manifest import IMAGE_FILES, MANIFEST, Mod, Variant
from imagefactory.mods.sources import FolderSource, ReleaseSource, git_source, source_variable
from imagefactory.oci.format import VENV
from imagefactory.project import Project
from imagefactory.resolve.index import IndexConfig, Indexes

TEMPLATE = """\
# yaml-language-server: $schema=../../schemas/mod.schema.json
name: {name}
summary: Say in one line what gets better, for whom
why: https://github.com/vllm-project/vllm/issues/1
licence: Apache-2.0
distribution: vllm
needed_when:
  - {{model: "no-model-yet"}}

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
class Change:
    """One file before and after a mod; None before means that the mod adds it."""

    path: str
    before: str | None
    after: str


def scaffold(project: Project, name: str) -> Path:
    """Make the folder of a new mod, with a mod.yaml that works and says what to write where."""
    folder = project.root / "mods" / name
    if folder.exists():
        raise ModManifestError(
            f"There is a mod {name} already.",
            where=folder,
            why="A new mod needs a name of its own.",
            fix="Choose another name, or edit the one that is there.",
        )
    write_text_atomically(folder / MANIFEST, TEMPLATE.format(name=name, version=project.matrix.defaults.vllm))
    return folder / MANIFEST


def changes(project: Project, name: str, vllm: str) -> list[Change]:
    """Work out what a mod does to the files of a version, in both of its stages."""
    mod = named_mod(project, name)
    [vllm] = named_versions(project, [vllm])
    version = project.matrix.vllm[vllm].version
    variants = [variant for stage in ("installed", "source") for variant in mod.variants(version, stage)]
    if not variants:
        note = (
            f"upstream since {mod.manifest.upstreamed_in}"
            if mod.is_upstream(version)
            else "no variant for it"
        )
        raise ModNotApplicableError(
            f"The mod {name} does nothing in vLLM {vllm}.",
            where=mod.where("variants"),
            why=f"It has {mod.reason_not_needed(version) or note}.",
            fix="`invoke mods.check` shows where it applies.",
        )
    found: list[Change] = []
    for variant in variants:
        read = _reader(project, vllm, mod, variant)
        [applied] = apply_mods([(mod, variant)], read)
        found += [Change(path, read(path), text) for path, text in applied.files.items()]
    return found


def unified_diff(found: list[Change]) -> str:
    """Show changes as a unified diff."""
    lines: list[str] = []
    for change in found:
        lines += difflib.unified_diff(
            (change.before or "").splitlines(keepends=True),
            change.after.splitlines(keepends=True),
            fromfile=f"a/{change.path}" if change.before is not None else "/dev/null",
            tofile=f"b/{change.path}",
        )
    return "".join(lines)


def export(found: list[Change], folder: Path, python: str) -> list[str]:
    """Write the changed files; give the `docker run` options that mount them over an image without the mod."""
    options: list[str] = []
    for change in found:
        write_text_atomically(folder / change.path.lstrip("/"), change.after)
        inside = (
            change.path
            if change.path.startswith(IMAGE_FILES)
            else f"/{VENV}/lib/python{python}/site-packages/{change.path}"
        )
        options.append(f"-v {(folder / change.path.lstrip('/')).absolute()}:{inside}:ro")
    return options


def _reader(project: Project, vllm: str, mod: Mod, variant: Variant) -> Callable[[str], str | None]:
    if variant.source is not None:
        tree = git_source(variant.source.git)
        if tree is None:
            raise SourceMissingError(
                f"The sources of {variant.source.git} are not on this machine.",
                where=mod.where("variants"),
                why="The mod changes them, and they are on no package index.",
                fix=f"Check out {variant.source.commit} and set {source_variable(variant.source.git)}.",
            )
        return tree.read
    locked = project.source_lock.find(vllm, ".whl" if variant.stage == "installed" else ".tar.gz")
    if locked is None:
        raise SourceMissingError(
            f"The sources of vLLM {vllm} are not locked.",
            where="locks/sources.toml",
            why="Only releases have an archive; a git reference needs a checkout.",
            fix="Use `invoke mods.check --source DIR --vllm NAME` with a checkout.",
        )
    source: FolderSource | ReleaseSource = ReleaseSource(
        locked, Indexes(IndexConfig.from_environment()), project.store
    )
    return source.read
