"""Commands for kernels: compile them, and check which chips they run on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from imagefactory.cli import options
from imagefactory.cli.command import command, print_json, say, show

if TYPE_CHECKING:
    from imagefactory.project.project import Project


Style = Literal["table", "json", "markdown"]


@command(
    name="compile",
    help={
        "vllm": options.VLLM,
        "arch": "the arch to compile for (default: the matrix's)",
        "what": "vllm, flashinfer, or both separated by a comma (default: both; for a graft, what matrix.yaml names)",
        "targets": "compile only these, separated by commas: CMake targets of vLLM such as _qutlass_C, objects of one "
        "such as '_vllm_fa2_C/*hdim256*', or modules of FlashInfer such as norm; the results go to build/kernels/, not "
        "to the wheelhouse",
        "only": "separated by commas: graft only these extensions, and leave the others as published; put only these "
        "modules into FlashInfer's wheel (default: all that images/compile.yaml lists)",
        "source": "compile the sources in this folder, given as NAME=DIR, instead of fetching them; repeatable",
        "without_mod": "do not apply this mod to the sources; repeatable",
        "jobs": "run this many compilers at the same time (default: as many as cores and memory allow)",
    },
)
def compile_(
    project: Project,
    source: list[str],
    without_mod: list[str],
    vllm: str = "",
    arch: str = "",
    what: str = "",
    targets: str = "",
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
    from imagefactory.cli.show.live import watching_compile
    from imagefactory.compile.compiling import compile_kernels
    from imagefactory.compile.request import requests_of
    from imagefactory.compile.toolchain import CompileProject

    count = options.processes("--jobs", jobs)
    options.at_most_one(targets=bool(targets), only=bool(only))
    for text in source:
        if (place := text.partition("=")[2]).strip():
            options.existing("--source", place, folder=True)
    checkout = CompileProject(project.root)
    requests = requests_of(
        checkout,
        what=what,
        vllm=vllm,
        arch=arch,
        targets=targets,
        only=only,
        sources=source,
        without_mods=without_mod,
        jobs=count or 0,
    )
    for request in requests:
        with watching_compile() as watch:
            made = compile_kernels(checkout, request, watch, say)
        if made.log is None:
            say(f"{made.inputs.name} {made.inputs.version} is in the wheelhouse already")
        else:
            say(f"the log is {made.log}")
        for path in (made.wheel.path,) if made.wheel else made.libraries:
            print(path)


@command(
    help={
        "subject": "a shared library, a wheel, an OCI layout, a target, or a vLLM version of the matrix",
        "arch": "the arch to check for (default: the target's, else the matrix's)",
        "beside": "compare with this, library by library: another wheel, target or version; repeatable",
        "reaches": "look for the kernels that vLLM calls on the arch, by name",
        "json": options.JSON,
        "markdown": options.MARKDOWN,
    },
)
def audit(
    project: Project,
    subject: str,
    beside: list[str],
    arch: str = "",
    reaches: bool = False,
    json: bool = False,
    markdown: bool = False,
) -> None:
    """Check whether the kernels in a library, wheel or image run on an arch."""
    options.at_most_one(json=json, markdown=markdown)
    options.at_most_one(reaches=reaches, beside=bool(beside))
    style: Style = "json" if json else "markdown" if markdown else "table"
    if reaches:
        _look_for_kernels(project, subject, arch, style)
    elif beside:
        _audit_side_by_side(project, [subject, *beside], arch, style)
    else:
        _audit_one(project, subject, arch, style)


def _look_for_kernels(project: Project, subject: str, arch: str, style: Style) -> None:
    from imagefactory.cli.show import tables
    from imagefactory.lock.audit.reaching import reaches, refuse_unreached

    found = reaches(project, subject, arch)
    if style == "json":
        print_json([{**one.call.model_dump(), "reaches": one.outcome, "why": one.why} for one in found])
    elif style == "markdown":
        print(tables.reached_markdown(found))
    else:
        show(tables.reached_table(found))
    refuse_unreached(subject, found)


def _audit_side_by_side(project: Project, subjects: list[str], arch: str, style: Style) -> None:
    from imagefactory.cli.show import tables
    from imagefactory.lock.audit.auditing import audit

    audited = [audit(project, subject, arch) for subject in subjects]
    if style == "json":
        print_json([asdict(one) | {"grafted": sorted(one.grafted)} for one in audited])
    elif style == "markdown":
        print(tables.comparison_markdown(audited))
    else:
        show(tables.comparison_table(audited))


def _audit_one(project: Project, subject: str, arch: str, style: Style) -> None:
    from imagefactory.cli.show import tables
    from imagefactory.lock.audit.auditing import audit, refuse_failing

    audited = audit(project, subject, arch)
    verdicts = audited.verdicts
    if style == "json":
        print_json([asdict(verdict) for verdict in verdicts])
    elif style == "markdown":
        print(tables.audit_markdown(verdicts))
    else:
        show(tables.audit_table(verdicts))
    if audited.grafted:
        say(f"compiled in place of the published ones: {', '.join(sorted(audited.grafted))}")
    refuse_failing(subject, verdicts)
