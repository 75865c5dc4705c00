"""Checks the machine: GPU, driver, known faults, kernels, disk, memory, shared memory and port."""

import errno
import socket
from collections.abc import Iterator

from . import heat, holders, hosts
from . import memory as budget
from .command import nodes
from .findings import FAIL, LARGER_DISK, OK, SKIPPED, WARN, Finding, Start
from .image import release
from .kv_disk import stage


def gpu(start: Start) -> Iterator[Finding]:
    """Compare the GPU with the image's, and see that it is neither slowed down nor stuck."""
    if not start.on_gpu:
        yield Finding("gpu", OK, "not needed by this image")
        return
    if not start.readings.gpus:
        remedy = "Install the NVIDIA Container Toolkit on the host; start with `docker run --gpus all`."
        yield Finding("gpu", FAIL, "no NVIDIA GPU is visible in the container", remedy=remedy)
        return
    yield from (Finding("gpu", WARN, what, remedy=remedy) for what, remedy in heat.problems(start.readings.state))
    gpu, wanted = start.readings.gpus[0], start.image.capability
    if gpu.capability == wanted:
        state = heat.describe(start.readings.state)
        yield Finding("gpu", OK, f"{gpu.name}, compute capability {gpu.capability}" + (f"; {state}" if state else ""))
        return
    # Kernels for the family 12.0 also run on 12.1; kernels compiled for a single capability do not.
    kin = gpu.capability.partition(".")[0] == wanted.partition(".")[0]
    compiled = start.image.facts.get("kernels") == "compiled"
    detail = f"{gpu.name} has compute capability {gpu.capability}; the image is for {wanted}"
    remedy = f"Use the image for your GPU; this one is for {start.image.facts.get('arch')}."
    result = WARN if kin and not compiled else FAIL
    yield Finding("gpu", result, detail, allowed=f"compute capability {wanted}", remedy=remedy)


def driver(start: Start) -> list[Finding]:
    minimum, found = str(start.image.facts.get("driver") or ""), start.readings.driver
    if not minimum:
        return [Finding("driver", OK, "not needed")]
    if not start.readings.gpus:
        return [Finding("driver", SKIPPED, "no GPU visible")]
    if not found:
        detail = f"version unknown, needs {minimum} or newer"
        return [Finding("driver", WARN, detail, remedy="Compare it with the output of `nvidia-smi`.")]
    if release(found) < release(minimum):
        detail, remedy = f"{found}, needs {minimum} or newer", "Update the NVIDIA driver on the host."
        return [Finding("driver", FAIL, detail, allowed=f"{minimum} or newer", remedy=remedy)]
    return [Finding("driver", OK, f"{found}, needs {minimum} or newer")]


def host(start: Start) -> Iterator[Finding]:
    """Look for known faults of what a container sees of its host; the doctor sees Docker and its toolkit, too."""
    readings = start.readings
    facts = {
        "unified": readings.unified,
        "kernel": readings.kernel,
        "driver": readings.driver,
        "roce": nodes(start.settings) > 1 and any(device.active for device in readings.network.roce),
    }
    found = [Finding("host", WARN, fault.detail, remedy=fault.remedy) for fault in hosts.faults(facts)]
    yield from found or [Finding("host", OK, "no known fault")]


def kernels(start: Start) -> list[Finding]:
    gpu = start.readings.gpus[0] if start.readings.gpus else None
    if not start.on_gpu:
        return [Finding("kernels", OK, "for CPUs")]
    if gpu is None:
        return [Finding("kernels", SKIPPED, "no GPU visible")]
    made = f"{start.image.facts.get('kernels', 'upstream')} kernels of {start.image.title} {start.image.version}"
    return [Finding("kernels", OK, f"{made} for {start.image.capability}, GPU is {gpu.capability}")]


def disk(start: Start) -> list[Finding]:
    here, free = start.folder, start.readings.disk_free
    sizes = (start.image.facts.get("memory") or {}) if start.own_model else {}
    table = sizes.get("table", 0)  # is written at every start
    if here is not None and not table:
        return [Finding("disk", OK, f"nothing to download: {here}")]
    if free is None:
        return [Finding("disk", SKIPPED, f"free space in {start.cache} unknown")]
    download = (sizes.get("download") or sizes.get("weights") or 0) + (
        sizes.get("drafter", 0) if (start.command.speculative or {}).get("model") else 0
    )
    needed = table + (0 if here else download)
    more = f", {table / budget.GB:.0f} GB of it for a table that the server writes at every start" if table else ""
    if not needed:
        return [Finding("disk", OK, f"{free / budget.GB:.0f} GB free, download size unknown")]
    if needed > free:
        detail = f"{free / budget.GB:.0f} GB free in {start.cache}, needs {needed / budget.GB:.0f} GB{more}"
        # The table of the last start may be there already; the new one takes its place.
        return [Finding("disk", WARN if here else FAIL, detail, remedy=LARGER_DISK)]
    return [Finding("disk", OK, f"{free / budget.GB:.0f} GB free, needs {needed / budget.GB:.0f} GB{more}")]


def memory(start: Start) -> list[Finding]:
    readings = start.readings
    if not start.on_gpu or not readings.gpus:
        return [Finding("memory", SKIPPED, "no GPU: only its memory is checked")]
    gpu = readings.gpus[0]
    total, free = (readings.memory_total, readings.memory_available) if readings.unified else (gpu.total, gpu.free)
    if not total or free is None:
        return [Finding("memory", WARN, "the machine's memory is unknown", remedy="Check it with `free -g`.")]
    asked = (
        start.needs(),
        start.server.share,
        start.settings.fraction("GPU_MEMORY_UTILIZATION") or start.server.share.default,
        start.settings.number("MAX_MODEL_LEN"),
    )
    machine = budget.Machine(total, free, readings.unified, stage(start.settings))
    verdict = budget.judge(machine, *asked)
    # What would fit into an idle machine fails for what others hold: a killed server may have left its engine behind.
    if verdict.setting and not budget.judge(machine._replace(free=total), *asked).setting:
        verdict = _blame(verdict, total - free, readings.processes)
    return [Finding("memory", FAIL if verdict.setting else OK, *verdict)]


def _blame(verdict: budget.Verdict, held: int, processes: str) -> budget.Verdict:
    """Name the processes that hold the memory, as far as the container sees them."""
    known = holders.of(processes)
    who, end = holders.describe(processes), "End what is left over"
    if known:
        end += f" (`kill {known[0].process}`)"
    else:
        who = f"others hold {held / budget.GB:.1f} GB, unseen from this container"
        end += ": `nvidia-smi` on the host names it"
    return verdict._replace(detail=f"{verdict.detail}; {who}", remedy=f"{end}. Else: {verdict.remedy}")


def shm(start: Start) -> list[Finding]:
    staged = stage(start.settings)
    size, needs = start.readings.shared_memory, start.server.shared_memory + staged
    if size is None:
        return [Finding("shm", SKIPPED, "size of shared memory unknown")]
    if size >= needs:
        return [Finding("shm", OK, f"{size / 1e6:.0f} MB, needs {needs / 1e6:.0f} MB")]
    # Several GPUs, or a CPU, are served by several processes, which communicate through shared memory.
    result = FAIL if not start.on_gpu or start.nodes > 1 or staged else WARN
    need = f"{needs / 1e6:.0f} MB"
    detail = f"{size / 1e6:.0f} MB in /dev/shm, the processes of {start.image.title} need {need}"
    remedy = f"Start with `docker run --ipc host`, or with `--shm-size {1 + staged // budget.GB}g`."
    return [Finding("shm", result, detail, allowed=f"{need} or more", remedy=remedy)]


def port(start: Start) -> list[Finding]:
    if start.server.without_api(start.command.arguments):
        return [Finding("port", SKIPPED, "this node serves no API")]
    host, port = start.settings.text("HOST") or "0.0.0.0", start.settings.number("PORT") or 8000  # noqa: S104
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError, TypeError) as error:  # the last two refuse a name that no DNS takes
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            remedy = "Set PORT to a free one; with --network host, services of the host count too."
            return [Finding("port", FAIL, f"port {port} is in use", "PORT", str(port), "a free port", remedy)]
        remedy = "Set HOST to 0.0.0.0, and PORT to 1024 or more unless the container runs as root."
        detail = f"cannot listen on {host!r}, port {port}: {getattr(error, 'strerror', None) or error}"
        return [Finding("port", FAIL, detail, "HOST", host, "an address of this machine", remedy)]
    return [Finding("port", OK, f"{host}:{port} is free")]
