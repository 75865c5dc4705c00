"""The factory's commands: each parses, calls the library and prints. `invoke --list` shows them all."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from imagefactory.errors import FactoryError

ROOT = Path(__file__).resolve().parent
INTERRUPTED = 130  # as shells have it: 128 and the number of the signal
CHECKS = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "shellcheck inv .ci/run",
    "hadolint tests/golden/dockerfiles/*.Dockerfile",
)
TARGET = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; may be given several times"


def command(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a task whose failures are shown as messages with their own exit code, not as tracebacks."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            try:
                function(context, *args, **kwargs)
                sys.stdout.flush()
            except FactoryError as error:
                from imagefactory.console import err, error_message

                # Long paths stay whole, so that they can be copied.
                err.print(error_message(error), soft_wrap=True)
                raise Exit(code=error.exit_code) from None
            except BrokenPipeError:
                # The reader (head, less) went away; that is its right.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except KeyboardInterrupt:
                print("interrupted; what is finished is kept", file=sys.stderr, flush=True)
                # Not sys.exit: it would wait for downloads from a server that has fallen silent.
                os._exit(INTERRUPTED)

        return task(**options)(run)

    return decorate


@command(
    iterable=["target"],
    help={"target": TARGET, "json": "print JSON", "excluded": "list what is excluded, and why"},
)
def targets(context: Context, target: list[str], json: bool = False, excluded: bool = False) -> None:
    """List the images that the matrix stands for."""
    from imagefactory import console
    from imagefactory.cells import exclusions
    from imagefactory.project import Project
    from imagefactory.targets import EVERYTHING, select

    project = Project(ROOT)
    if excluded:
        console.out.print(console.exclusions_table(exclusions(project.matrix)))
        return
    cells = select(project.matrix, target or [EVERYTHING])
    if json:
        _print_json(console.target_rows(project, cells))
        return
    console.out.print(console.targets_table(project, cells))
    count = len(exclusions(project.matrix))
    console.err.print(f"{len(cells)} targets; {count} combinations are excluded (--excluded says why)")


@command(
    iterable=["target", "upgrade"],
    help={
        "target": f"{TARGET}; default: everything that is locked already, and the default target",
        "check": "change nothing; fail when matrix.yaml and the locks disagree",
        "upgrade": "take the newest version of this package (or base, or all); may be given several times",
        "models": "also look up and pin the revisions of models and drafters on the model hub",
    },
)
def lock(
    context: Context, target: list[str], upgrade: list[str], check: bool = False, models: bool = False
) -> None:
    """Pin the exact files that images are made of."""
    from imagefactory import console
    from imagefactory.locking import check_locks, locked_cells, make_locks
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    if check:
        console.err.print(f"{len(check_locks(project))} locks agree with matrix.yaml")
        return
    cells = select(project.matrix, target) if target else locked_cells(project)
    if not cells:
        cells = select(project.matrix, [next(iter(project.matrix.models))])
    for result in make_locks(project, cells, upgrade=upgrade, models=models, say=console.err.print):
        state = "written" if result.changed else "unchanged"
        console.err.print(f"{result.path.relative_to(ROOT)}: {state}")


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "json": "print the plans as JSON (schemas/plan.schema.json)",
        "diff": "say which input changed since the last build here",
    },
)
def plan(context: Context, target: list[str], json: bool = False, diff: bool = False) -> None:
    """Explain what would be built: the layers, their keys, what is cached and what is shared."""
    from imagefactory.plan import locked_plans, make_plan
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    cells = select(project.matrix, target or [next(iter(project.matrix.models))])
    plans = [make_plan(project, cell) for cell in cells]
    if json:
        _print_json({"plans": [plan.model_dump(mode="json") for plan in plans]})
        return
    from imagefactory import console
    from imagefactory.planview import diff_plans, last_plan, shared_download

    if diff:
        for plan in plans:
            last = last_plan(project.build_folder(plan.cell))
            console.out.print(plan.target, style="bold")
            console.out.print(console.changes_table(None if last is None else diff_plans(last, plan)))
        return
    others = locked_plans(project)
    for plan in plans:
        console.out.print(console.plan_table(project, plan, shared_download(plan, others)))


@command(iterable=["target"], help={"target": TARGET})
def render(context: Context, target: list[str]) -> None:
    """Write the Dockerfile of a target, and the description of its build context."""
    from imagefactory.project import Project
    from imagefactory.render import render, write
    from imagefactory.targets import select

    project = Project(ROOT)
    for cell in select(project.matrix, target or [next(iter(project.matrix.models))]):
        for path in write(render(project, cell), project.build_folder(cell)):
            print(path.relative_to(ROOT))


@command(
    iterable=["target", "cache_from", "cache_to"],
    help={
        "target": TARGET,
        "output": "folder for the OCI layout (default: build/<target>); with several targets, one folder each below it",
        "locked": "fail when a locked file has vanished, instead of using its successor",
        "workers": "layers that are built at the same time (default: the number of cores)",
        "engine": "embedded (default) or docker, which runs the rendered Dockerfile and leaves the image in the daemon",
        "builder": "docker: the buildx builder to use, such as one on another machine or in Kubernetes",
        "cache_from": "docker: take finished steps from this cache in a registry; may be given several times",
        "cache_to": "docker: put finished steps into this cache; may be given several times",
    },
)
def build(
    context: Context,
    target: list[str],
    cache_from: list[str],
    cache_to: list[str],
    output: str = "",
    locked: bool = False,
    workers: int = 0,
    engine: str = "embedded",
    builder: str = "",
) -> None:
    """Assemble images from the locks, without Docker; the digest alone goes to standard output."""
    from imagefactory import console
    from imagefactory.build import build
    from imagefactory.display import watching
    from imagefactory.engines import engine_named
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    cells = select(project.matrix, target or [next(iter(project.matrix.models))])
    given = {"output": output, "locked": locked, "workers": workers, "builder": builder}
    if engine_named(engine, given | {"cache-from": cache_from, "cache-to": cache_to}) == "docker":
        from imagefactory.engines.docker.build import build_with_docker

        caches = {"cache_from": cache_from, "cache_to": cache_to}
        for cell in cells:
            with watching(console.err) as watch:
                made = build_with_docker(
                    project, cell, watch, console.err.print, builder=builder or None, **caches
                )
            console.err.print(f"built {cell} as {made.name}")
            print(made.id)
        return
    with watching(console.err) as watch:
        images = build(
            project,
            cells,
            watch,
            console.err.print,
            locked_only=locked,
            output=Path(output).absolute() if output else None,
            workers=workers or None,
        )
    for image in images:
        console.err.print(console.built_message(image))
        print(image.image.digest)


@command(iterable=["target"], help={"target": TARGET})
def load(context: Context, target: list[str]) -> None:
    """Stream built images into the Docker daemon."""
    from imagefactory import console
    from imagefactory.engines.docker import load

    for cell, layout, name in _built(target):
        console.err.print(f"loading {cell} as {name}")
        print(load(layout, name))


@command(
    positional=["file"],
    iterable=["target"],
    help={
        "target": TARGET,
        "file": "the tar to write; docker load, podman load and skopeo oci-archive: take it",
    },
)
def export(context: Context, file: str, target: list[str]) -> None:
    """Write a built image as one tar file."""
    from imagefactory.oci.layout import archive, write_archive

    [(_, layout, name)] = _built(target, one=True)
    write_archive(archive(layout, name), Path(file).absolute())
    print(file)


@command(
    iterable=["target"],
    help={"target": TARGET, "digest": "compare with this digest instead of the built image"},
)
def verify(context: Context, target: list[str], digest: str = "") -> None:
    """Rebuild from the lock with an empty layer cache and compare, bit for bit."""
    from imagefactory import console
    from imagefactory.display import watching
    from imagefactory.project import Project
    from imagefactory.targets import select
    from imagefactory.verify import verify

    project = Project(ROOT)
    for cell in select(project.matrix, target or [next(iter(project.matrix.models))]):
        with watching(console.err) as watch:
            verified = verify(project, cell, watch, console.err.print, digest=digest or None)
        console.err.print(f"{cell}: verified")
        print(verified)


@command(
    positional=["left", "right"],
    help={
        "left": "a target, an OCI layout, or an image of the Docker daemon (NAME:TAG)",
        "right": "another one",
        "all": "also show the differences between the engines that are declared (docs/engines.md)",
    },
)
def diff(context: Context, left: str, right: str, all: bool = False) -> None:
    """Compare two images path by path."""
    from imagefactory import console
    from imagefactory.engines.differences import compare_named
    from imagefactory.project import Project

    differences, declared = compare_named(Project(ROOT), left, right)
    console.out.print(console.differences_table([*differences, *declared] if all else differences))
    if declared:
        console.err.print(f"{len(declared)} declared differences between the engines (--all shows them)")
    if differences:
        raise Exit(code=1)


@command(positional=["path"], iterable=["target"], help={"path": "a path in the image", "target": TARGET})
def explain(context: Context, path: str, target: list[str]) -> None:
    """Say which layer, package and lock entry own a path in an image."""
    from imagefactory import console
    from imagefactory.explain import explain
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    for cell in select(project.matrix, target or [next(iter(project.matrix.models))]):
        console.out.print(console.ownership_table(explain(project, cell, path), ROOT))


@command(
    help={
        "older_than": "remove what was not used for so many days",
        "larger_than": "remove the oldest until at most so many GB are left",
        "everything": "remove all downloads, layers and blobs",
        "dry_run": "only say what would be removed",
    }
)
def clean(
    context: Context,
    older_than: float = -1.0,
    larger_than: float = -1.0,
    everything: bool = False,
    dry_run: bool = False,
) -> None:
    """Clean the cache: by default what was not used for 30 days."""
    from imagefactory import console
    from imagefactory.cleaning import clean
    from imagefactory.project import Project

    days = older_than if older_than >= 0 else 30 if larger_than < 0 else None
    cleaned = clean(
        Project(ROOT).store,
        older_than=None if everything else days,
        larger_than=None if everything or larger_than < 0 else int(larger_than * 1e9),
        dry_run=dry_run,
    )
    verb = "would free" if dry_run else "freed"
    console.err.print(
        f"{verb} {console.size(cleaned.freed)} ({cleaned.files} files); {console.size(cleaned.kept)} kept"
    )


@command(
    iterable=["set"],
    help={
        "target": "which image, as MODEL[@VLLM][/ARCH[/MACHINE]] (default: the matrix's first)",
        "image": "a reference by digest, or an image id (default: the target's own)",
        "set": "a setting, as NAME=VALUE; may be given several times (docs/serving.md lists them)",
        "models": "the host's folder of downloaded models (default: ~/.cache/huggingface)",
        "print": "only print the docker run line",
        "compose": "only print a compose file",
        "recipe": "only print a recipe for another launcher: eugr or sparkrun",
        "detach": "run in the background, and again after a restart of the machine",
    },
)
def run(
    context: Context,
    set: list[str],
    target: str = "",
    image: str = "",
    models: str = "",
    print_: bool = False,
    compose: bool = False,
    recipe: str = "",
    detach: bool = False,
) -> None:
    """Start an image in Docker, or print how: VLLM_API_KEY in the environment becomes the server's key."""
    from imagefactory.project import Project
    from imagefactory.serving import starting
    from imagefactory.serving.run import HUB_CACHE
    from imagefactory.targets import select_one

    project = Project(ROOT)
    cell = select_one(project.matrix, target or next(iter(project.matrix.models)))
    shown = print_ or compose or bool(recipe)
    reference = image or (starting.published_reference if shown else starting.local_image)(project, cell)
    start = starting.prepare(
        project,
        cell,
        reference,
        given=starting.settings_from(set),
        api_key=os.environ.get("VLLM_API_KEY", ""),
        models=models or HUB_CACHE,
    )
    if recipe:
        print(start.recipe(starting.recipe_format(recipe)))
    elif compose:
        print(start.compose())
    elif print_:
        print(start.shell(detach=detach))
    else:
        print(start.shell(detach=detach), file=sys.stderr, flush=True)
        os.execvp("docker", start.line(detach=detach))  # noqa: S606, S607 - as docker is found by the user's shell


@command(
    positional=["subject"],
    help={
        "subject": "a shared library, a wheel, an OCI layout, a target, or a vLLM version of the matrix",
        "arch": "the arch to judge by (default: the target's, else the matrix's)",
        "json": "print JSON",
        "markdown": "print the table as Markdown",
    },
)
def audit(context: Context, subject: str, arch: str = "", json: bool = False, markdown: bool = False) -> None:
    """Show for which chips the kernels inside were compiled, and whether they run on an arch."""
    from imagefactory import console
    from imagefactory.audit.run import audit, audit_release, refuse_failing
    from imagefactory.project import Project

    project = Project(ROOT)
    arch = arch or project.matrix.defaults.arch if subject in project.matrix.vllm else arch
    judged = audit_release if subject in project.matrix.vllm else audit
    verdicts = judged(project, subject, arch)
    if json:
        _print_json([asdict(verdict) for verdict in verdicts])
    elif markdown:
        print(console.audit_markdown(verdicts))
    else:
        console.out.print(console.audit_table(verdicts))
    refuse_failing(subject, verdicts)


@command()
def doctor(context: Context) -> None:
    """Look at this machine: Python, uv, engine, index, mirror, cache, disk, each with a remedy."""
    from imagefactory import console
    from imagefactory.doctor import examine
    from imagefactory.project import Project

    findings = list(examine(Project(ROOT)))
    console.out.print(console.findings_table(findings))
    if any(finding.health == "failed" for finding in findings):
        raise Exit(code=1)


@command()
def docs(context: Context) -> None:
    """Write the generated parts of the documentation anew: the README's digest, settings tables, pictures."""
    from imagefactory import pictures, readme
    from imagefactory.mods.check import check_mods
    from imagefactory.plan import make_plan
    from imagefactory.project import Project
    from imagefactory.serving import document
    from imagefactory.targets import select_one

    project = Project(ROOT)
    cell = select_one(project.matrix, next(iter(project.matrix.models)))
    plan = make_plan(project, cell)
    drawn = pictures.draw(project, plan, check_mods(project))
    print(readme.write_digest(project, plan, ROOT / "README.md") or f"build {cell} to know its digest")
    for path in (*document.update(ROOT), *pictures.write(ROOT / "docs" / "pictures", drawn)):
        print(path.relative_to(ROOT))


@command(help={"check": "change nothing; fail when a schema is out of date"})
def schemas(context: Context, check: bool = False) -> None:
    """Write the JSON schemas of matrix.yaml and of plans."""
    from imagefactory.schemas import write_schemas

    stale = write_schemas(ROOT / "schemas", check=check)
    print("\n".join(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}" for path in stale))
    if check and stale:
        raise Exit(code=1)


@command(
    help={
        "require_engine": "fail instead of skipping when Docker or a registry is missing",
        "fast": "unit tests only",
        "match": "run only tests whose name matches (pytest -k)",
    }
)
def test(context: Context, require_engine: bool = False, fast: bool = False, match: str = "") -> None:
    """Run linters, type checks and tests."""
    options = [
        *(["tests/unit"] if fast else []),
        *(["--require-engine"] if require_engine else []),
        *(["-k", match] if match else []),
    ]
    # The tools of this environment, whether it is activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    with context.cd(str(ROOT)):
        for line in (*CHECKS, shlex.join(["python", "-m", "pytest", *options])):
            print(f"$ {line}", file=sys.stderr, flush=True)
            context.run(line, env={"PATH": path}, pty=sys.stdout.isatty(), in_stream=False)


@command(
    iterable=["name", "vllm"],
    help={
        "name": "a mod; may be given several times (default: all)",
        "vllm": "a vLLM version of the matrix; may be given several times (default: all releases)",
        "source": "check against this source tree instead, as the version named with --vllm (default: nightly)",
        "json": "print JSON",
        "markdown": "print the table as Markdown",
        "write": "check everything, and put the table into mods/README.md",
    },
)
def mods_check(
    context: Context,
    name: list[str],
    vllm: list[str],
    source: str = "",
    json: bool = False,
    markdown: bool = False,
    write: bool = False,
) -> None:
    """Apply every mod to every vLLM version and show the table; fail when a claim does not hold."""
    from imagefactory import console
    from imagefactory.mods import table
    from imagefactory.mods.check import check_mods, refuse_broken
    from imagefactory.mods.sources import FolderSource
    from imagefactory.project import Project

    tree = FolderSource(Path(source)) if source and not write else None
    results = check_mods(Project(ROOT), [] if write else name, [] if write else vllm, folder=tree)
    if json:
        _print_json([{**vars(result), "holds": result.holds} for result in results])
    elif markdown:
        print(table.markdown(results))
    else:
        console.out.print(console.mods_table(results))
    refuse_broken(results)
    if write:
        table.write_table(ROOT / "mods" / "README.md", results)


@command(positional=["name"], help={"name": "the new mod's name, which becomes its folder"})
def mods_new(context: Context, name: str) -> None:
    """Make the folder of a new mod, with a mod.yaml to fill in."""
    from imagefactory.mods.authoring import scaffold
    from imagefactory.project import Project

    print(scaffold(Project(ROOT), name).relative_to(ROOT))


@command(positional=["name"], help={"name": "a mod", "vllm": "the vLLM version (default: the matrix's)"})
def mods_diff(context: Context, name: str, vllm: str = "") -> None:
    """Show exactly what a mod changes in a version, as a diff."""
    from imagefactory.mods.authoring import changes, unified_diff
    from imagefactory.project import Project

    project = Project(ROOT)
    sys.stdout.write(unified_diff(changes(project, name, vllm or project.matrix.defaults.vllm)))


@command(
    positional=["name"],
    help={
        "name": "a mod",
        "vllm": "the vLLM version (default: the matrix's)",
        "output": "the folder to write to (default: build/mods/<name>)",
    },
)
def mods_export(context: Context, name: str, vllm: str = "", output: str = "") -> None:
    """Write the changed files, and the `docker run` options that mount them over an image without the mod."""
    from imagefactory.mods.authoring import changes, export
    from imagefactory.project import Project

    project = Project(ROOT)
    version = vllm or project.matrix.defaults.vllm
    folder = Path(output) if output else ROOT / "build" / "mods" / f"{name}-{version}"
    base = next(iter(project.matrix.bases.values()))
    print("\n".join(export(changes(project, name, version), folder, base.python)))


def _built(target: list[str], *, one: bool = False, stale: bool = False) -> list[tuple[Any, Any, str]]:
    """Find built images: the cell, its layout and the name it goes by."""
    from imagefactory.build import built_layouts
    from imagefactory.project import Project

    return built_layouts(Project(ROOT), target, one=one, stale=stale)


def _print_json(value: object) -> None:
    # ASCII, so that the bytes do not depend on the terminal's encoding.
    print(json.dumps(value, indent=2))


namespace = Collection(
    targets,
    lock,
    plan,
    render,
    build,
    load,
    run,
    export,
    verify,
    diff,
    explain,
    clean,
    audit,
    doctor,
    schemas,
    docs,
    test,
)
mods = Collection("mods")
mods.add_task(mods_check, "check")
mods.add_task(mods_new, "new")
mods.add_task(mods_diff, "diff")
mods.add_task(mods_export, "export")
namespace.add_collection(mods)
