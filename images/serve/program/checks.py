"""Preflight: what can be known before vLLM starts, each check with a result and a remedy.

A check that fails refuses the start, unless SKIP_CHECKS names it or CHECKS=warn turns refusals into warnings.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from . import checkpoint, combinations, flags, memory
from .command import KEY_FLAG, Command, option
from .errors import (
    DiskShortError,
    DrafterMismatchError,
    DriverError,
    GpuError,
    KnownFailureError,
    MemoryShortError,
    ModelMissingError,
    NotInThisVllmError,
    OutOfRangeError,
    PortInUseError,
    StartError,
    UsageError,
    ValueRefusedError,
)
from .image import Image
from .readings import Readings
from .settings import Settings

SHARED_MEMORY = 256 * 1024 * 1024
"""vLLM's message queue takes 10 chunks of 16 MiB, and a little more."""
STRETCHING = ("--hf-overrides", "--rope-scaling", "--hf_overrides", "--rope_scaling")
"""Flags by which a user gives a model a longer context than its own."""
OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"


class Finding(NamedTuple):
    """What a check found."""

    name: str
    result: str
    detail: str
    setting: str = ""
    value: str = ""
    allowed: str = ""
    remedy: str = ""
    error: type[StartError] = KnownFailureError

    def refusal(self) -> StartError:
        """Give the error that this finding stands for."""
        return self.error(
            f"{self.name}: {self.detail}",
            setting=self.setting,
            value=self.value,
            allowed=self.allowed,
            remedy=f"{self.remedy} (To start all the same: SKIP_CHECKS={self.name}.)",
        )


class Start(NamedTuple):
    """Everything that the checks look at."""

    image: Image
    settings: Settings
    command: Command
    readings: Readings
    cache: str
    vllm_folder: str | None

    @property
    def on_gpu(self) -> bool:
        """Whether the image is for a GPU at all."""
        return bool(self.image.capability)

    @property
    def nodes(self) -> int:
        """Over how many GPUs the model is spread."""
        parts = (
            option(self.settings.extra, "--tensor-parallel-size", "-tp"),
            option(self.settings.extra, "--pipeline-parallel-size", "-pp"),
        )
        product = 1
        for part in parts:
            product *= int(part) if part and part.isdecimal() and int(part) else 1
        return product

    @property
    def config(self) -> dict[str, object] | None:
        """The model's config, where the model is at hand."""
        return checkpoint.config_of(checkpoint.locate(self.command.model, self.command.revision, self.cache))

    @property
    def own_model(self) -> bool:
        """Whether the image's own model is served, so that its facts hold."""
        return bool(self.settings.text("MODEL_PATH")) or self.command.model == self.image.model["model"]


Check = Callable[[Start], Iterable[Finding]]


def run(start: Start, names: Iterable[str]) -> list[Finding]:
    """Run the named checks, except those that the settings skip."""
    skip, mode = skipped(start.settings), start.settings.text("CHECKS")
    findings: list[Finding] = []
    for name in names:
        if mode == "off" or name in skip:
            findings.append(Finding(name, SKIPPED, "not looked at"))
            continue
        found = list(CHECKS[name](start)) or [Finding(name, OK, "nothing speaks against it")]
        if mode == "warn":
            found = [item._replace(result=WARN) if item.result == FAIL else item for item in found]
        findings += found
    return findings


def skipped(settings: Settings) -> list[str]:
    """Give the names in SKIP_CHECKS; an unknown one is refused, since it would protect from nothing."""
    names = settings.words("SKIP_CHECKS")
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueRefusedError(
            f"There is no check {unknown[0]!r}.",
            setting="SKIP_CHECKS",
            value=",".join(names),
            allowed=", ".join(CHECKS),
            remedy="Name one of these checks.",
        )
    return names


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first failure, if there is one."""
    for finding in findings:
        if finding.result == FAIL:
            raise finding.refusal()


def _gpu(start: Start) -> Iterator[Finding]:
    if not start.on_gpu:
        yield Finding("gpu", OK, "the image needs none")
        return
    if not start.readings.gpus:
        yield Finding(
            "gpu",
            FAIL,
            "no NVIDIA GPU is visible in the container",
            remedy="Start with `docker run --gpus all`; it needs the NVIDIA Container Toolkit on the host.",
            error=GpuError,
        )
        return
    gpu, wanted = start.readings.gpus[0], start.image.capability
    if gpu.capability == wanted:
        yield Finding("gpu", OK, f"{gpu.name}, compute capability {gpu.capability}")
        return
    # Family code for 12.0 also runs on 12.1, but what was compiled for one capability alone does not.
    kin = gpu.capability.partition(".")[0] == wanted.partition(".")[0]
    compiled = start.image.facts.get("kernels") == "compiled"
    yield Finding(
        "gpu",
        WARN if kin and not compiled else FAIL,
        f"{gpu.name} has compute capability {gpu.capability}; the image is made for {wanted}",
        allowed=f"compute capability {wanted}",
        remedy=f"Use the image for your GPU instead of the one for {start.image.facts.get('arch')}.",
        error=GpuError,
    )


def _driver(start: Start) -> Iterator[Finding]:
    minimum, found = str(start.image.facts.get("driver") or ""), start.readings.driver
    if not minimum or not start.readings.gpus:
        return
    if not found:
        yield Finding("driver", WARN, "the driver's version is not known", remedy="Look at `nvidia-smi`.")
    elif _numbers(found) < _numbers(minimum):
        yield Finding(
            "driver",
            FAIL,
            f"the driver is {found}; CUDA in this image needs {minimum} or later",
            allowed=f"{minimum} or later",
            remedy="Update the NVIDIA driver on the host.",
            error=DriverError,
        )
    else:
        yield Finding("driver", OK, found)


def _kernels(start: Start) -> Iterator[Finding]:
    gpu = start.readings.gpus[0] if start.readings.gpus else None
    old = combinations.old_kernels(start.image)
    if old and gpu is not None and gpu.capability == "12.1":
        yield Finding(
            "kernels",
            FAIL,
            f"the kernels of vLLM {start.image.vllm} are built for 12.0a, which does not load on 12.1",
            remedy="Use an image with vLLM 0.20 or later, or one whose kernels the factory compiled.",
        )


def _model(start: Start) -> Iterator[Finding]:
    yield from _template(start)
    yield from _context(start)
    model = start.command.model
    folder = checkpoint.locate(model, start.command.revision, start.cache)
    if folder is None:
        offline = os.environ.get("HF_HUB_OFFLINE", "") in {"1", "true", "yes", "on"}
        yield Finding(
            "model",
            FAIL if offline else OK,
            f"{model} is not downloaded yet" + (", and HF_HUB_OFFLINE forbids it" if offline else ""),
            setting="MODEL",
            value=model,
            remedy="Unset HF_HUB_OFFLINE, or mount the model and set MODEL_PATH.",
            error=ModelMissingError,
        )
        return
    setting = "MODEL_PATH" if start.settings.text("MODEL_PATH") else "MODEL"
    if not os.path.isdir(folder):  # noqa: PTH112 - see image.py
        yield Finding(
            "model",
            FAIL,
            f"{folder} does not exist in the container",
            setting=setting,
            value=folder,
            allowed="a folder in the container",
            remedy=f"Mount the model: -v /path/on/the/host:{folder}:ro",
            error=ModelMissingError,
        )
        return
    dummy = start.settings.text("LOAD_FORMAT") == "dummy"
    missing = checkpoint.missing_files(folder, weights=not dummy)
    # A snapshot that a download left unfinished is completed by the next one.
    if missing and checkpoint.is_path(model):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""  # noqa: PLR2004
        yield Finding(
            "model",
            FAIL,
            f"{folder} lacks {', '.join(missing[:3])}{more}",
            setting=setting,
            value=folder,
            allowed="a complete model folder",
            remedy="Download the model again; an interrupted download leaves shards out.",
            error=ModelMissingError,
        )
    else:
        yield Finding("model", OK, folder)


def _context(start: Start) -> Iterator[Finding]:
    length, longest = start.settings.number("MAX_MODEL_LEN"), _needs(start).context
    stretched = any(word.partition("=")[0] in STRETCHING for word in start.settings.extra)
    if (
        length
        and longest
        and length > longest
        and not stretched
        and "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in os.environ
    ):
        yield Finding(
            "model",
            FAIL,
            f"the model's own context ends at {longest} tokens",
            setting="MAX_MODEL_LEN",
            value=str(length),
            allowed=f"up to {longest}",
            remedy=f"Set MAX_MODEL_LEN={longest} or lower.",
            error=OutOfRangeError,
        )


def _template(start: Start) -> Iterator[Finding]:
    path = start.settings.text("CHAT_TEMPLATE")
    # vLLM also takes the template itself in place of a file.
    if path and "{" not in path and not os.path.isfile(path):  # noqa: PTH113 - see image.py
        yield Finding(
            "model",
            FAIL,
            f"the chat template {path} does not exist in the container",
            setting="CHAT_TEMPLATE",
            value=path,
            allowed="a Jinja file in the container",
            remedy=f"Mount it: -v /path/on/the/host:{path}:ro",
            error=ModelMissingError,
        )


def _drafter(start: Start) -> Iterator[Finding]:
    speculative = start.command.speculative
    if not speculative or not speculative.get("model"):
        yield Finding("drafter", OK, "none")
        return
    drafter = str(speculative["model"])
    folder = checkpoint.locate(drafter, str(speculative.get("revision", "")), start.cache)
    draft, target = checkpoint.config_of(folder), start.config
    if checkpoint.is_path(drafter) and draft is None:
        yield _drafter_failure(drafter, f"{drafter} has no config.json")
    elif draft and target and draft.get("vocab_size") != target.get("vocab_size"):
        yield _drafter_failure(
            drafter,
            f"its vocabulary has {draft.get('vocab_size')} tokens, the model's {target.get('vocab_size')}",
        )
    elif draft and target and draft.get("hidden_size") != target.get("hidden_size"):
        yield _drafter_failure(
            drafter, f"its hidden size is {draft.get('hidden_size')}, the model's {target.get('hidden_size')}"
        )
    elif start.own_model and drafter in {entry["repo"] for entry in start.image.drafters}:
        yield Finding("drafter", OK, f"{drafter} is made for this model")
    elif draft and target:
        yield Finding("drafter", OK, f"{drafter} has the model's vocabulary and hidden size")
    else:
        yield Finding(
            "drafter",
            WARN,
            f"whether {drafter} fits {start.command.model} is not known",
            setting="DFLASH_DRAFTER",
            value=drafter,
            remedy="A drafter must be trained for the very model; set DFLASH_DRAFTER=off to go without.",
        )


def _drafter_failure(drafter: str, detail: str) -> Finding:
    return Finding(
        "drafter",
        FAIL,
        detail,
        setting="DFLASH_DRAFTER",
        value=drafter,
        allowed="a drafter that was trained for the model",
        remedy="Set DFLASH_DRAFTER to the model's own drafter, or to off.",
        error=DrafterMismatchError,
    )


def _disk(start: Start) -> Iterator[Finding]:
    sizes = start.image.facts.get("memory") or {}
    here = checkpoint.locate(start.command.model, start.command.revision, start.cache)
    if here is not None or not start.own_model or start.readings.disk_free is None:
        return
    needed = (sizes.get("download") or sizes.get("weights") or 0) + (
        sizes.get("drafter", 0) if start.command.speculative else 0
    )
    free = start.readings.disk_free
    if not needed:
        yield Finding("disk", OK, f"{free / memory.GB:.0f} GB free; the size of the download is not known")
    elif needed > free:
        yield Finding(
            "disk",
            FAIL,
            f"the download needs {needed / memory.GB:.0f} GB, {free / memory.GB:.0f} GB are free in {start.cache}",
            remedy="Free space there, or mount a larger disk: -v /path/on/the/host:/root/.cache/huggingface",
            error=DiskShortError,
        )
    else:
        yield Finding("disk", OK, f"{free / memory.GB:.0f} GB free, {needed / memory.GB:.0f} GB needed")


def _memory(start: Start) -> Iterator[Finding]:
    readings = start.readings
    if not start.on_gpu or not readings.gpus:
        yield Finding("memory", SKIPPED, "only a GPU's memory is looked at")
        return
    gpu = readings.gpus[0]
    total, free = (
        (readings.memory_total, readings.memory_available) if readings.unified else (gpu.total, gpu.free)
    )
    if not total or free is None:
        yield Finding("memory", WARN, "the machine's memory is not known", remedy="Look at `free -g`.")
        return
    verdict = memory.judge(
        memory.Machine(total, free, readings.unified),
        _needs(start),
        # Without the setting vLLM takes 0.9 (0.92 from 0.20 on).
        start.settings.fraction("GPU_MEMORY_UTILIZATION") or 0.9,
        start.settings.number("MAX_MODEL_LEN"),
    )
    if verdict.fits:
        yield Finding("memory", OK, verdict.detail)
    else:
        yield Finding(
            "memory",
            FAIL,
            verdict.detail,
            setting=verdict.setting,
            value=verdict.value,
            allowed=verdict.largest,
            remedy=verdict.remedy,
            error=MemoryShortError,
        )


def _shm(start: Start) -> Iterator[Finding]:
    size = start.readings.shared_memory
    if size is None or size >= SHARED_MEMORY:
        return
    # One GPU is served from one process; several, and any CPU, talk to each other through shared memory.
    needed = not start.on_gpu or start.nodes > 1
    yield Finding(
        "shm",
        FAIL if needed else WARN,
        f"shared memory (/dev/shm) has {size / 1e6:.0f} MB, "
        f"vLLM's processes exchange their work there and need {SHARED_MEMORY / 1e6:.0f} MB",
        allowed=f"{SHARED_MEMORY / 1e6:.0f} MB or more",
        remedy="Start with `docker run --ipc host`, or with `--shm-size 1g`.",
        error=MemoryShortError,
    )


def _needs(start: Start) -> memory.Needs:
    """Find out what the model needs: from its files where they are at hand, else from the image's facts."""
    facts = (start.image.facts.get("memory") or {}) if start.own_model else {}
    folder = checkpoint.locate(start.command.model, start.command.revision, start.cache)
    shape = checkpoint.shape(start.config)
    # Weights that vLLM quantizes while loading are smaller in memory than on disk; the image's fact knows that.
    weights = facts.get("weights") or (checkpoint.weights_size(folder) if folder else None)
    per_token = shape.per_token if shape else facts.get("kv_per_token")
    per_sequence = shape.per_sequence if shape else facts.get("kv_per_sequence", 0)
    context = shape.context if shape else facts.get("context", 0)
    parts, factor = start.nodes, memory.compression(start.command.cache_dtype)
    return memory.Needs(
        weights // parts if weights else None,
        (facts.get("drafter", 0) if start.command.speculative else 0),
        int(per_token * factor) // parts if per_token else None,
        per_sequence // parts,
        context,
    )


def _flags(start: Start) -> Iterator[Finding]:
    if start.vllm_folder is None:
        yield Finding("flags", SKIPPED, "vLLM's sources are not here to look them up")
        return
    unknown = flags.unknown(start.command.arguments, flags.known(start.vllm_folder))
    if unknown:
        yield Finding(
            "flags",
            FAIL,
            f"vLLM {start.image.vllm} does not know {', '.join(unknown)}",
            setting="EXTRA_ARGS",
            value=unknown[0],
            allowed="what `vllm serve --help=all` lists",
            remedy="Correct the flag, or use an image whose vLLM has it.",
            error=NotInThisVllmError,
        )


def _combination(start: Start) -> Iterator[Finding]:
    gpu = start.readings.gpus[0].capability if start.readings.gpus else start.image.capability
    shape = checkpoint.shape(start.config)
    facts = start.image.facts if start.own_model else {}
    hybrid = shape.hybrid if shape else bool((facts.get("memory") or {}).get("hybrid"))
    for known in combinations.found(start.image, start.settings, start.command, gpu, hybrid=hybrid):
        yield Finding(
            "combination",
            known.result,
            known.detail,
            setting=known.setting,
            value=known.value,
            allowed=known.allowed,
            remedy=known.remedy,
        )


def _port(start: Start) -> Iterator[Finding]:
    import socket  # noqa: PLC0415 - the last check, and skipped by many

    host, port = start.settings.text("HOST") or "0.0.0.0", start.settings.number("PORT") or 8000  # noqa: S104
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            yield Finding(
                "port",
                FAIL,
                f"something else listens on port {port}",
                setting="PORT",
                value=str(port),
                allowed="a free port",
                remedy="Set PORT to another one; with --network host the host's own services count.",
                error=PortInUseError,
            )
        else:
            yield Finding(
                "port",
                FAIL,
                f"{host}:{port} cannot be listened on: {error.strerror or error}",
                setting="HOST",
                value=host,
                allowed="an address of this machine",
                remedy="Set HOST to 0.0.0.0, and PORT to 1024 or more unless the container runs as root.",
                error=PortInUseError,
            )
    except UnicodeError:
        yield Finding(
            "port",
            FAIL,
            f"{host!r} is not an address",
            setting="HOST",
            value=host,
            allowed="an address of this machine",
            remedy="Set HOST to 0.0.0.0.",
            error=PortInUseError,
        )
    else:
        yield Finding("port", OK, f"{host}:{port} is free")


def _api_key(start: Start) -> Iterator[Finding]:
    given = option(start.settings.extra, KEY_FLAG) is not None
    if given:
        yield Finding(
            "api-key",
            WARN,
            f"{KEY_FLAG} on the command line is visible to everybody on this machine",
            setting="EXTRA_ARGS",
            remedy="Set VLLM_API_KEY_FILE, or VLLM_API_KEY.",
            error=UsageError,
        )
    else:
        yield Finding("api-key", OK, "required" if start.settings.api_key else "none: everybody may ask")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


CHECKS: dict[str, Check] = {
    "gpu": _gpu,
    "driver": _driver,
    "kernels": _kernels,
    "model": _model,
    "drafter": _drafter,
    "disk": _disk,
    "memory": _memory,
    "shm": _shm,
    "flags": _flags,
    "combination": _combination,
    "port": _port,
    "api-key": _api_key,
}
