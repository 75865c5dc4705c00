"""Commands for kernels and compiled wheels: compile, audit, list, push."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, print_json, say, show, show_rows, watching

if TYPE_CHECKING:
    from imagefactory.project.project import Project


@command(
    called="compile",
    arch="the arch to compile for (default: as in matrix.yaml)",
    what="vllm, flashinfer, or both separated by a comma (default: what matrix.yaml names, else both)",
    only=(
        "separated by commas: graft only these extensions, and leave the others as published; put only these "
        "modules into FlashInfer's wheel (default: all that matrix.yaml and images/compile.yaml list)"
    ),
    without_mod="do not apply this mod to the sources; repeatable",
    jobs="run this many compilers at the same time (default: as many as cores and memory allow)",
)
def compile_(
    project: Project,
    without_mod: list[str],
    vllm: str = "",
    arch: str = "",
    what: str = "",
    only: str = "",
    jobs: str = "",
) -> None:
    """Compile vLLM and FlashInfer for an arch, in a container of pinned compilers.

    Where matrix.yaml says `compile: graft`, only the extensions that matter on the chip are compiled, and replace
    those of the published wheel.

    `./inv lock --toolchain VERSION` pins the compilers. An interrupted compile resumes where it stopped, and a
    finished wheel is kept under a key of all its inputs, so nothing is compiled twice.
    See docs/compiling.md.
    """
    from imagefactory.compile.compiling import compile_kernels
    from imagefactory.compile.job import requests_of
    from imagefactory.compile.toolchain import CompileProject

    count = options.processes("--jobs", jobs)
    checkout = CompileProject(project.root)
    requests = requests_of(
        checkout, what=what, vllm=vllm, arch=arch, only=only, without_mods=without_mod, jobs=count or 0
    )
    for request in requests:
        with watching() as watch:
            compiled = compile_kernels(checkout, request, watch, say)
        if compiled.log is None:
            say(f"{compiled.inputs.name} {compiled.inputs.version} is in the wheelhouse already")
        else:
            say(f"the log is {compiled.log}")
        print(compiled.wheel.path)


@command(
    target="a target, a shared library, a wheel, or a vLLM version of the matrix",
    arch="the arch to check for (default: the target's, else the matrix's)",
    beside="compare with this, library by library: another wheel, target or version; repeatable",
)
def audit(project: Project, beside: list[str], target: str = "", arch: str = "", json: bool = False) -> None:
    """Check whether the kernels of a library, wheel, target or release run on an arch."""
    from imagefactory.lock import auditing

    if not target.strip():
        why = "It takes a shared library, a wheel, a target, or a vLLM version of the matrix."
        raise options.unfit("--target", "Nothing is named to look into.", why, "Try `./inv audit --target gemma4-31b`.")
    if beside:
        audited = [auditing.audit(project, name, arch) for name in (target, *beside)]
        if json:
            print_json([asdict(report) | {"grafted": sorted(report.grafted)} for report in audited])
        else:
            from imagefactory.cli.show.tables import comparison_rows

            show_rows(comparison_rows(audited), "library", *(report.title for report in audited))
    else:
        report = auditing.audit(project, target, arch)
        verdicts = report.verdicts
        if json:
            print_json([asdict(verdict) for verdict in verdicts])
        else:
            show_rows(
                ((verdict.library, verdict.outcome, verdict.why) for verdict in verdicts), "library", "outcome", "why"
            )
        if report.grafted:
            say(f"compiled in place of the published ones: {', '.join(sorted(report.grafted))}")
        auditing.refuse_failing(target, verdicts)


@command(
    "wheels",
    called="list",
    remote="also list the wheels in the registry (FACTORY_REGISTRY, else `registry` in matrix.yaml)",
)
def list_(project: Project, remote: bool = False, json: bool = False) -> None:
    """List the compiled wheels and what they were compiled from."""
    from imagefactory.cli.show.tables import wheels_table
    from imagefactory.lock.wheelhouse.share import listing

    rows = listing(project, remote=remote)
    if json:
        print_json([row.as_json() for row in rows])
    else:
        show(wheels_table(rows))


@command("wheels")
def push(project: Project) -> None:
    """Push compiled wheels to the registry, except those already there; locks and builds take them from it."""
    from imagefactory.lock.wheelhouse.share import push_all

    for filename, outcome, reference in push_all(project):
        say(f"{filename}: {outcome}")
        print(reference)
