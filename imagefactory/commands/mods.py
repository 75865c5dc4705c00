"""Commands for mods: check, create, show and export them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, print_json, show

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    help={
        "name": "a mod; repeatable (default: all)",
        "vllm": "a version of the matrix, such as 0.32.0 or sglang-0.5.21; repeatable (default: all releases)",
        "source": "check this source tree instead, as the version --vllm (default: nightly)",
        "json": options.JSON,
        "markdown": options.MARKDOWN,
        "write": "check everything, and update the table in mods/README.md",
    },
)
def check(
    project: Project,
    name: list[str],
    vllm: list[str],
    source: str = "",
    json: bool = False,
    markdown: bool = False,
    write: bool = False,
) -> None:
    """Apply every mod to every vLLM version, and fail if one does not do what it claims."""
    from imagefactory.commands.show.tables import mods_table
    from imagefactory.mods import readme_table
    from imagefactory.mods.compatibility import check_mods, refuse_broken
    from imagefactory.mods.source_files import FolderSource

    options.at_most_one(json=json, markdown=markdown)
    options.at_most_one(source=source, write=write)
    tree = FolderSource(options.existing("--source", source, folder=True)) if source else None
    results = check_mods(project, [] if write else name, [] if write else vllm, folder=tree)
    if json:
        print_json([{**vars(result), "holds": result.holds} for result in results])
    elif markdown:
        print(readme_table.markdown(results))
    else:
        show(mods_table(results))
    refuse_broken(results)
    if write:
        readme_table.write_table(project.root / "mods" / "README.md", results)


@command(help={"name": "the name of the mod and its folder"})
def new(project: Project, name: str) -> None:
    """Create a mod with a mod.yaml to fill in."""
    from imagefactory.mods.authoring import scaffold

    print(scaffold(project, name).relative_to(project.root))


@command(help={"name": "the mod", "vllm": options.VLLM})
def diff(project: Project, name: str, vllm: str = "") -> None:
    """Show what a mod changes in a vLLM version, as a diff."""
    from imagefactory.mods.authoring import changes, unified_diff

    sys.stdout.write(unified_diff(changes(project, name, vllm or project.matrix.defaults.vllm)))


@command(
    help={
        "name": "the mod",
        "vllm": options.VLLM,
        "output": "write to this folder (default: build/mods/<name>-<version>)",
    },
)
def export(project: Project, name: str, vllm: str = "", output: str = "") -> None:
    """Write the files a mod changes, and print `docker run` options that mount them over an image without it."""
    from imagefactory.environment.paths import expand_home
    from imagefactory.mods.authoring import changes, export

    version = vllm or project.matrix.defaults.vllm
    default = project.root / "build" / "mods" / f"{name}-{version}"
    folder = expand_home(output, "--output") if output else default
    base = next(iter(project.matrix.bases.values()))
    print("\n".join(export(changes(project, name, version), folder, base.python)))
