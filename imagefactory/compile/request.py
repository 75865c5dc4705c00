"""Turns the options of `invoke compile` into requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from imagefactory.compile.job import Request
from imagefactory.compile.settings import WHAT, What
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError


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
) -> list[Request]:
    """Return a request for each project to compile; unknown names are refused with the closest matches."""
    matrix = project.matrix
    vllm, arch = vllm or matrix.defaults.vllm, arch or matrix.defaults.arch
    _refuse_unknown("vLLM version", vllm, matrix.vllm, "--vllm")
    _refuse_unknown(
        "arch", arch, [name for name in matrix.archs if not name.startswith("toolchain-")], "--arch"
    )
    for name in without_mods:
        _refuse_unknown("mod", name, project.mods, "--without-mod")
    wanted: list[What] = []
    for text in _split(what):
        _refuse_unknown("project to compile", text, WHAT, "--what")
        wanted += [name for name in WHAT if name == text]
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
            targets=tuple(_split(targets)),
            sources=tuple(text for text in sources if text.partition("=")[0] in known[item]),
            without_mods=tuple(sorted(without_mods)),
            jobs=jobs,
        )
        for item in wanted
    ]


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
