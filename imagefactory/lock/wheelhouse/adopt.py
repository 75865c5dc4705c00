"""Chooses the compiled wheel that a lock adopts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import InputError, LockError, UsageError
from imagefactory.lock.auditing import look_into, refuse_failing
from imagefactory.lock.wheelhouse.keep import (
    CompiledWheel,
    KeptWheel,
    all_kept,
    find,
    refuse_damaged,
    same_version,
    why_unfit,
)
from imagefactory.lock.wheelhouse.share import compile_command, is_kept, pull, remote_wheels, shared_at
from imagefactory.mods.choose import source_mods
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell, intended_kernels
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.locks.kernels import audited_wheels, verdicts_of
from imagefactory.project.project import Project
from imagefactory.store.progress import Say


class Offers(NamedTuple):
    """Compiled wheels of a package: those that a cell can have, and why it cannot have the others, by key."""

    fit: list[CompiledWheel]
    unfit: dict[str, str]


def offers_for(project: Project, cell: Cell, name: str, wheels: Iterable[CompiledWheel], version: str = "") -> Offers:
    """Sort the wheels of a package that were compiled for a cell's machines; without a version, any will do."""
    matrix, arch = project.matrix, project.matrix.archs[cell.arch]
    chips = arch.flashinfer_cuda_arch_list if name.startswith("flashinfer") else arch.torch_cuda_arch_list
    package_platform_chips = (canonicalize_name(name), cell.platform, chips or "")
    kind = "graft" if name == "vllm" and intended_kernels(matrix, cell) == "graft" else "whole"
    offers = Offers([], {})
    for wheel in wheels:
        inputs = wheel.inputs
        if (canonicalize_name(inputs.name), inputs.platform, inputs.arch_list) != package_platform_chips:
            continue
        if version and not same_version(inputs.version, version):
            continue
        if inputs.kind != kind:
            offers.unfit[wheel.key] = f"it is a {inputs.kind} wheel, and matrix.yaml wants a {kind} one"
        elif why := why_unfit(inputs.system, matrix.bases[arch.base]):
            offers.unfit[wheel.key] = why
        else:
            offers.fit.append(wheel)
    return offers


def choose_compiled(
    project: Project,
    cell: Cell,
    name: str,
    version: str,
    *,
    key_prefixes: Sequence[str],
    locked: str | None,
    say: Say,
) -> KeptWheel:
    """Find the wheel of a package that was compiled for a cell, first locally and then in the registry.

    A wheel whose key starts with one of the `key_prefixes` is preferred to the one that the lock names already.
    """
    fit, unfit = offers_for(project, cell, name, all_kept(project.store), version)
    preferred = tuple(key_prefixes) or (locked or "",)
    where = shared_at(project.matrix)
    if where is not None and not any(wheel.key.startswith(preferred) for wheel in fit):
        say(f"Asking {where} for {name} {version}")
        local_keys = {wheel.key for wheel in fit}
        with Repository.open(where) as repository:
            remote = [wheel for wheel in remote_wheels(repository, name) if wheel.key not in local_keys]
        shared = offers_for(project, cell, name, remote, version)
        fit, unfit = fit + shared.fit, unfit | shared.unfit
    refused = {key: why for key, why in unfit.items() if not key_prefixes or key.startswith(tuple(key_prefixes))}
    if refused and (key_prefixes or not fit):
        raise _unfit(cell, name, refused)
    if not fit:
        raise _compile_needed(project, cell, name, version)
    wheel = _one_of(fit, project, cell, key_prefixes, locked)
    if not isinstance(wheel, KeptWheel):
        with Repository.open(str(where)) as repository:
            wheel = pull(repository, wheel, project.store)
    refuse_damaged(wheel)
    if name == "vllm" and wheel.inputs.mods != mods_of_sources(project, cell):
        say(f"{wheel.filename} was not compiled with the mods that this checkout has for its sources")
    say(f"Adopting {wheel.filename}, compiled as {wheel.key[:16]}")
    return wheel


def is_superseded(project: Project, cell: Cell, lock: WheelLock) -> bool:
    """Whether this machine compiled a wheel of a lock anew, while nobody has the file that the lock names.

    That is so in a fork, whose lock names the file of somebody else: a compile may give other bytes.
    """
    return any(
        offers_for(project, cell, wheel.name, all_kept(project.store), wheel.version).fit
        and not is_kept(project, wheel, _shared(project, wheel.name))
        for wheel in lock.wheels
        if wheel.compiled
    )


def _shared(project: Project, name: str) -> Iterator[CompiledWheel]:
    """Iterate over the wheels of the registry; it is asked when the first is."""
    where = shared_at(project.matrix)
    if where is not None:
        with Repository.open(where) as repository:
            yield from remote_wheels(repository, name)


def refuse_unknown(project: Project, key_prefixes: Sequence[str]) -> None:
    keys = [wheel.key for wheel in all_kept(project.store)]
    where = shared_at(project.matrix)
    if where is not None and not all(any(key.startswith(prefix) for key in keys) for prefix in key_prefixes):
        with Repository.open(where) as repository:
            keys += [wheel.key for wheel in remote_wheels(repository) if wheel.key not in keys]
    for prefix in key_prefixes:
        if not any(key.startswith(prefix) for key in keys):
            raise LockError(
                "wheel-not-kept",
                f"No compiled wheel has a key that begins with {prefix!r}.",
                where=f"the wheelhouse{f' and {where}' if where else ''}",
                why=f"These {len(keys)} exist: {', '.join(key[:16] for key in keys) or 'none'}.",
                fix="`./inv wheels.list` shows them.",
            )


def refuse_unfit_kernels(project: Project, cell: Cell, lock: WheelLock) -> None:
    """Raise an error if a compiled wheel has no kernels for the GPU, or kernels that do not load on it."""
    arch = project.matrix.archs[cell.arch]
    runtime = next((wheel for wheel in lock.wheels if wheel.name.startswith("nvidia-cuda-runtime")), None)
    for wheel in audited_wheels(lock, arch):
        if wheel.compiled is None:
            continue
        kept = find(project.store, wheel.compiled)
        cuda = kept.inputs.system["cuda"] if kept else ""
        if cuda and runtime and not _runs_with_cuda(cuda, runtime.version):
            why = f"it was compiled with CUDA {cuda}, and the image gets {runtime.name} {runtime.version}"
            raise _unfit(cell, wheel.name, {wheel.compiled: why})
        verdicts = verdicts_of([look_into(project, wheel)], arch, lock.python)
        refuse_failing(wheel.file, verdicts)
        if not any(verdict.outcome == "native" for verdict in verdicts):
            raise InputError(
                "wrong-wheel",
                f"{wheel.file} holds no kernels for {cell.arch}.",
                where=wheel.file,
                why=f"None of its libraries has code for compute capability {arch.capability}.",
                fix=f"Compile it for {cell.arch}: `{compile_command(cell, wheel.name)}`.",
            )


def _runs_with_cuda(compiled: str, runtime: str) -> bool:
    """Whether code of a CUDA release runs with a runtime: one of the same major version that is not older."""
    needed, offered = Version(compiled).release, Version(runtime).release
    return needed[0] == offered[0] and needed <= offered


def _one_of(
    wheels: list[CompiledWheel], project: Project, cell: Cell, key_prefixes: Sequence[str], locked: str | None
) -> CompiledWheel:
    """Choose a wheel: the one named, else the locked one, else the one compiled with the mods of this checkout."""
    fitting = [wheel for wheel in wheels if key_prefixes and wheel.key.startswith(tuple(key_prefixes))]
    fitting = fitting or [wheel for wheel in wheels if wheel.key == locked]
    if not fitting and len(wheels) > 1:
        mods = mods_of_sources(project, cell)
        fitting = [wheel for wheel in wheels if wheel.inputs.mods == mods]
    fitting = fitting or wheels
    if len(fitting) == 1:
        return fitting[0]
    documents = [wheel.inputs.as_json() for wheel in wheels]
    names = dict.fromkeys(name for data in documents for name in data)
    differing = [name for name in names if len({str(data.get(name)) for data in documents}) > 1]
    raise UsageError(
        "several-wheels",
        f"{len(wheels)} compiled wheels fit {cell}.",
        where="the wheelhouse (`./inv wheels.list`)",
        why=f"They differ in {', '.join(differing)}: {', '.join(sorted(wheel.key[:16] for wheel in wheels))}.",
        fix="Choose one: `./inv lock --wheel KEY`.",
    )


def mods_of_sources(project: Project, cell: Cell) -> tuple[str, ...]:
    return tuple(mod.digest(variant) for mod, variant in source_mods(project, cell.version, cell.arch))


def _unfit(cell: Cell, name: str, reasons: Mapping[str, str]) -> LockError:
    return LockError(
        "unfit-wheel",
        f"No compiled wheel of {name} fits {cell}.",
        where="the wheelhouse (`./inv wheels.list`)",
        why="; ".join(f"{key[:16]}: {why}" for key, why in sorted(reasons.items())) + ".",
        fix=f"Compile it for these images: `{compile_command(cell, name)}`.",
    )


def _compile_needed(project: Project, cell: Cell, name: str, version: str) -> LockError:
    registry = shared_at(project.matrix)
    searched = f"the wheelhouse {project.store.root / 'wheelhouse'}" + (f", {registry}" if registry else "")
    kept_inputs = [wheel.inputs for wheel in all_kept(project.store)]
    kept = ", ".join(f"{inputs.version} for {inputs.arch_list}" for inputs in kept_inputs if inputs.name == name)
    return LockError(
        "compile-needed",
        f"{name} {version} has to be compiled for {cell.arch}, and no such wheel is kept.",
        where=f"matrix.yaml, vllm.{cell.version}",
        why=f"Searched: {searched}." + (f" It has {kept}." if kept else ""),
        fix=f"Run `{compile_command(cell, name)}`, or name the registry that has it (FACTORY_REGISTRY); then "
        f"`./inv lock --target {cell}`.",
    )
