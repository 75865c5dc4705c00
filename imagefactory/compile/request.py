"""Turns the options of `invoke compile` into requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from imagefactory.compile.job import Request
from imagefactory.compile.settings import FILE, WHAT, What
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import did_you_mean
from imagefactory.errors.commands import OptionError
from imagefactory.errors.kernels import CompileDataError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.matrix.compile_choices import choice_for


def requests_of(
    project: CompileProject,
    *,
    what: str,
    vllm: str,
    arch: str,
    targets: str,
    sources: Sequence[str],
    without_mods: Sequence[str],
    jobs: int,
    only: str = "",
    group: str = "",
) -> list[Request]:
    """Return a request for each project to compile; unknown names are refused with the closest matches."""
    matrix = project.matrix
    vllm, arch = known_version(project, vllm), arch or matrix.defaults.arch
    _refuse_wrong_group(group)
    _refuse_unknown(
        "arch", arch, [name for name in matrix.archs if not name.startswith("toolchain-")], "--arch"
    )
    for name in without_mods:
        _refuse_unknown("mod", name, project.mods, "--without-mod")
    kind, named = choice_for(matrix.vllm[vllm].compile, arch)
    wanted: list[What] = []
    usual = (
        "vllm"
        if kind == "graft" and not any(name.startswith("flashinfer") for name in named)
        else ",".join(WHAT)
    )
    for text in _split(what or usual):
        _refuse_unknown("project to compile", text, WHAT, "--what")
        wanted += [name for name in WHAT if name == text]
    grafts = kind == "graft" and "vllm" in wanted
    extensions = _extensions(project, vllm, arch) if grafts else ()
    modules = project.settings.flashinfer.of(arch) if "flashinfer" in wanted else ()
    chosen = _chosen(only, vllm, arch, extensions, modules)
    dependencies = project.settings.sources_of(vllm, matrix.vllm[vllm])
    known = {"vllm": ["vllm", *dependencies], "flashinfer": ["flashinfer"]}
    for text in sources:
        every = [name for item in wanted for name in known[item]]
        _refuse_unknown("source", text.partition("=")[0], every, "--source")
    return [
        Request(
            what=item,
            vllm=vllm,
            arch=arch,
            targets=tuple(_split(targets))
            or (tuple(name for name in extensions if name in chosen) if item == "vllm" else ()),
            modules=tuple(name for name in modules if only and name in chosen)
            if item == "flashinfer"
            else (),
            graft=item == "vllm" and grafts and not targets.strip(),
            sources=tuple(text for text in sources if text.partition("=")[0] in known[item]),
            without_mods=tuple(sorted(without_mods)),
            jobs=jobs,
            group=group,
        )
        for item in wanted
    ]


def _extensions(project: CompileProject, vllm: str, arch: str) -> tuple[str, ...]:
    """Return the extensions that a graft can replace."""
    listed = tuple(project.settings.graft.extensions_of(project.matrix.vllm[vllm]))
    if not listed:
        raise CompileDataError(
            f"There is nothing to graft into vLLM {vllm} for {arch}.",
            where=f"{FILE}, graft.extensions",
            why="No extension is listed for this version.",
            fix="Add its extensions, or choose `whole` in matrix.yaml.",
        )
    return listed


def _chosen(
    only: str, vllm: str, arch: str, extensions: Sequence[str], modules: Sequence[str]
) -> tuple[str, ...]:
    """Return the extensions of a graft and the modules of FlashInfer that the user names; by default all."""
    named, known = _split(only), (*extensions, *modules)
    if named and not known:
        raise OptionError(
            f"vLLM {vllm} is not grafted for {arch}.",
            where="the --only option",
            why=f"It names extensions of a graft or modules of FlashInfer; none are compiled for {arch}.",
            fix="Name a version with `compile: graft`, or compile single targets to look at them (`--targets`).",
        )
    for name in named:
        _refuse_unknown("extension" if extensions else "module", name, known, "--only")
    for what, listed in (("extension", extensions), ("module", modules)):
        if named and listed and not set(named).intersection(listed):
            raise OptionError(
                f"--only names no {what}.",
                where="the --only option",
                why=f"The {what}s of a compile cannot all be left out: {', '.join(listed)}.",
                fix="Name at least one, or leave the whole project out (`--what`).",
            )
    return tuple(named) or known


def known_version(project: CompileProject, vllm: str) -> str:
    """Return a vLLM version, by default the matrix's; unknown ones are refused with the closest matches."""
    version = vllm or project.matrix.defaults.vllm
    _refuse_unknown("vLLM version", version, project.matrix.vllm, "--vllm")
    return version


def _refuse_wrong_group(group: str) -> None:
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", group, re.ASCII)
    if group and (match is None or int(match[1]) > int(match[2])):
        raise OptionError(
            f"There is no group {group!r}.",
            where="the --group option",
            why="It is NUMBER/COUNT, such as 2/5 for the second of five.",
            fix="Name a group in that form, or leave the option out to compile everything.",
        )


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _refuse_unknown(what: str, name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        raise UnknownNameError(
            f"Unknown {what} {name!r}.",
            where=f"the {where} option",
            why=f"Known: {', '.join(known)}.",
            fix=did_you_mean(name, known).capitalize(),
        )
