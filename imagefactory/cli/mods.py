"""Commands for mods: check, create, import and show them, and the sources that they change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say, say_written, show, show_rows, watching, write_summary
from imagefactory.cli.failures import exit_refused

if TYPE_CHECKING:
    from imagefactory.mods.compatibility import ModResult
    from imagefactory.project.project import Project

VERSION = "a version of the matrix, such as 0.32.0 or sglang-0.5.21 (default: as in matrix.yaml)"


@command(
    "mods",
    name="a mod; repeatable (default: all)",
    vllm="a version of the matrix, such as 0.32.0 or sglang-0.5.21; repeatable (default: all releases)",
    source="check this source tree instead, as the version --vllm (default: nightly)",
    write="update the table in mods/README.md",
    report="with --source: open, update or close an issue on GitHub for each mod, instead of failing",
)
def check(
    project: Project, name: list[str], vllm: list[str], source: str = "", write: bool = False, report: bool = False
) -> None:
    """Apply every mod to every version, and fail if one does not do what it claims."""
    from imagefactory.cli.show.tables import mods_table
    from imagefactory.mods import compatibility
    from imagefactory.mods.authoring import unfinished
    from imagefactory.mods.source_files import FolderSource

    options.at_most_one(source=source, write=write)
    options.at_most_one(vllm=vllm, write=write)
    tree = FolderSource(options.existing("--source", source, folder=True)) if source or report else None
    results = compatibility.check_mods(project, name, vllm, folder=tree)
    show(mods_table(results))
    if report and tree:
        _report(project, results, tree.folder)
        return
    compatibility.refuse_broken(results)
    for line in unfinished(project, name):
        say(line)
    if write:
        readme = project.root / "mods" / "README.md"
        say_written(project, readme, changed=compatibility.write_table(readme, results, project.mods))


def _report(project: Project, results: Sequence[ModResult], tree: Path) -> None:
    from imagefactory.ci.report_mods import mod_findings
    from imagefactory.cli.ci import report_issues
    from imagefactory.mods.compatibility import markdown
    from imagefactory.publish.attest.provenance import read_source

    write_summary(f"## Mods\n\n{markdown(results)}\n")
    findings = mod_findings(results, read_source(tree).commit or "")
    # A mod that was not checked this time keeps its issue.
    unchecked = project.mods.keys() - {result.mod for result in results}
    over = "The mod holds again, or no longer exists."
    exit_refused(report_issues("mod", findings, lambda mod: "" if mod in unchecked else over))


@command("mods", name="the name of the mod and its folder", like="begin with a copy of this mod")
def new(project: Project, name: str, like: str = "") -> None:
    """Create a mod with a mod.yaml to fill in."""
    from imagefactory.mods.authoring import scaffold

    print(scaffold(project, name, like).relative_to(project.root))


@command(
    "mods",
    called="import",
    source="a folder with run.sh, a .patch or .diff file, or a folder of them, on this machine",
    name="the name of the mod (default: that of the source)",
    env="a variable for the script, as NAME=VALUE; repeatable",
    vllm="try it on this version only; repeatable (default: every vLLM release of the matrix)",
    why="the URL of the issue or pull request (default: the first that the source names)",
)
def import_(project: Project, source: str, env: list[str], vllm: list[str], name: str = "", why: str = "") -> None:
    """Turn somebody's run.sh or diffs into a mod: try it on every version, in a container without network."""
    from imagefactory.compile.toolchain import CompileProject
    from imagefactory.importing.importer import Importer
    from imagefactory.importing.scripts import provide_image, running
    from imagefactory.importing.sources import read_source
    from imagefactory.launch.prepare import settings_from

    def provide() -> str:
        with watching() as watch:
            return provide_image(CompileProject(project.root, project.store), watch)

    importer = Importer(project, running(provide), say, settings_from(env, "--env"))
    imported = importer.run(read_source(source, name), vllm, why)
    rows = (
        (attempt.version, attempt.outcome, ", ".join(attempt.files) if attempt.outcome == "changes" else attempt.why)
        for attempt in imported.draft.attempts
    )
    show_rows(rows, "vLLM", "outcome", "why")
    for note in imported.draft.notes:
        say(f"note: {note}")
    print(imported.manifest.relative_to(project.root))


@command("mods", name="the mod", vllm=VERSION)
def diff(project: Project, name: str, vllm: str = "") -> None:
    """Show what a mod changes in a version of its server, as a diff."""
    from imagefactory.mods.authoring import changes, unified_diff

    sys.stdout.write(unified_diff(changes(project, name, vllm or project.matrix.defaults.vllm)))


@command(
    "mods",
    path="a file as installed, such as vllm/envs.py; a folder, to list it; or a file of the sources, such as setup.py",
    vllm=VERSION,
    grep="only lines that match this regular expression; in a folder, of all its files",
)
def source(project: Project, path: str, vllm: str = "", grep: str = "") -> None:
    """Show or search a source file of a version, as mods find it."""
    from imagefactory.mods.authoring import source_lines

    for line in source_lines(project, path, vllm or project.matrix.defaults.vllm, grep):
        print(line)
