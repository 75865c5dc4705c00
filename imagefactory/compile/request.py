"""Turns the options of `./inv compile` into requests."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from imagefactory.compile.settings import FILE, WHAT, What
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import ConfigError, unknown_name
from imagefactory.project.cells import modules_called_on
from imagefactory.project.server_versions import choice_for


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks to compile."""

    what: What
    vllm: str
    arch: str
    targets: tuple[str, ...] = ()  # extensions of vLLM or modules of FlashInfer; if empty, the whole wheel
    inspects: bool = False  # whether the result is libraries to look at, not a wheel that is kept
    sources: tuple[str, ...] = ()  # folders that replace sources, as NAME=DIR
    without_mods: tuple[str, ...] = ()
    jobs: int = 0

    @property
    def graft(self) -> bool:
        """Whether the targets replace those of the published wheel, in a wheel that is kept."""
        return self.what == "vllm" and bool(self.targets) and not self.inspects


def requests_of(
    project: CompileProject,
    *,
    what: str = "",
    vllm: str = "",
    arch: str = "",
    targets: str = "",
    only: str = "",
    sources: Sequence[str] = (),
    without_mods: Sequence[str] = (),
    jobs: int = 0,
) -> list[Request]:
    """Return a request for each project to compile; unknown names are refused with the closest matches."""
    matrix = project.matrix
    vllm, arch = vllm or matrix.defaults.vllm, arch or matrix.defaults.arch
    _refuse_unknown("vLLM version", [vllm], matrix.vllm, "--vllm")
    _refuse_unknown("arch", [arch], [name for name in matrix.archs if "toolchain-" not in name], "--arch")
    _refuse_unknown("mod", without_mods, project.mods, "--without-mod")
    wanted = _projects(project, what, vllm, arch)
    folders = {
        "vllm": ["vllm", *project.settings.sources_of(vllm, matrix.vllm[vllm])],
        "flashinfer": ["flashinfer"],
    }
    known = [name for item in wanted for name in folders[item]]
    _refuse_unknown("source", [text.partition("=")[0] for text in sources], known, "--source")
    parts = {item: _parts(project, item, vllm, arch) for item in wanted}
    names, listed = _split(only), [part for every in parts.values() for part in every]
    _refuse_unknown("extension of a graft or module of FlashInfer", names, listed or ["none"], "--only")
    if names:
        chosen = {item: tuple(part for part in parts[item] if part in names) for item in wanted}
        wanted = [item for item in wanted if chosen[item]]
    else:
        chosen = {item: () if item == "flashinfer" else parts[item] for item in wanted}
    return [
        Request(
            what=item,
            vllm=vllm,
            arch=arch,
            targets=tuple(_split(targets)) or chosen[item],
            inspects=bool(_split(targets)),
            sources=tuple(text for text in sources if text.partition("=")[0] in folders[item]),
            without_mods=tuple(sorted(without_mods)),
            jobs=jobs,
        )
        for item in wanted
    ]


def _projects(project: CompileProject, what: str, vllm: str, arch: str) -> list[What]:
    """Return the projects to compile: those that the user names, else what matrix.yaml implies."""
    named = _split(what)
    _refuse_unknown("project to compile", named, WHAT, "--what")
    kind, packages = choice_for(project.matrix.vllm[vllm].compile, arch)
    flashinfer = any(name.startswith("flashinfer") for name in packages)
    if not named and kind == "graft" and not flashinfer:
        return ["vllm"]
    if not named and kind == "published" and flashinfer:
        return ["flashinfer"]
    return [item for item in WHAT if not named or item in named]


def _parts(project: CompileProject, item: What, vllm: str, arch: str) -> tuple[str, ...]:
    """Return the parts that --only chooses from; none if vLLM is compiled whole."""
    if item == "flashinfer":
        return modules_called_on(project.matrix, vllm, arch)
    version = project.matrix.vllm[vllm]
    if choice_for(version.compile, arch)[0] != "graft":
        return ()
    listed = project.settings.graft.extensions_of(version)
    if not listed:
        raise ConfigError(
            "bad-compile-data",
            f"There is nothing to graft into vLLM {vllm} for {arch}.",
            where=f"{FILE}, graft.extensions",
            why="No extension is listed for this version.",
            fix="Add its extensions, or choose `whole` in matrix.yaml.",
        )
    return listed


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _refuse_unknown(what: str, names: Sequence[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known, f"the {where} option")
