"""Describes the companion's task, and starts it beside the server."""

import os
from collections.abc import Mapping
from pathlib import Path

from . import ahead, health, own_files, pulse, watch
from . import command as commands
from .findings import Start
from .link import Link
from .servers.server import hook_variables


def accompany(
    start: Start, where: health.Address, key_file: str, began: float | None, link: Link | None
) -> Mapping[str, str]:
    """Start the companion of the server; return variables that make the server record its choices for it."""
    try:
        choices = own_files.write(f"choices.{os.getpid()}", "")
    except OSError:
        choices = ""
    task = watch.Task(
        start.server,
        where,
        model=start.command.served_names[0],
        api_key=start.settings.api_key,
        rounds=start.settings.number("WARMUP") or 0,
        choices=choices,
        drafting=start.command.speculative is not None,
        key_file=key_file,
        began=began,
        kernels=ahead.find(start.image.facts, os.environ),
        compilers=_compilers(start),
        hang_limit=start.settings.number("HANG_LIMIT") or 0,
        memory_floor=start.memory_floor,
        link=link,
    )
    watch.accompany(task)
    kept = {**start.server.watched, **({"MAX_JOBS": str(max(1, task.compilers))} if any(task.kernels) else {})}
    hooked = hook_variables(start.server.name, start.server.log, choices, os.environ) if choices else {}
    if choices and task.memory_floor:
        hooked["IMAGEFACTORY_SHORT"] = str(Path(choices).with_name(pulse.SHORT))
    return hooked | {name: value for name, value in kept.items() if name not in os.environ}


def _compilers(start: Start) -> int:
    """Return how many compilers may run beside the server, which comes first where the GPU shares the host's memory."""
    chosen, machine = start.settings.number("COMPILERS"), start.readings
    if chosen is not None:
        return chosen
    share = start.settings.fraction("GPU_MEMORY_UTILIZATION") or start.server.share.default
    reserved = int(share * (machine.memory_total or 0)) if machine.unified else 0
    reserved += ahead.floor(start.memory_floor)
    return ahead.jobs(len(os.sched_getaffinity(0)), machine.memory_available, reserved)


def address(start: Start) -> health.Address:
    """Return the address of the API; port 0 if this node has none."""
    words = start.command.arguments
    if start.server.without_api(words):
        return health.Address("", 0)
    host = commands.option(words, "--host") or start.settings.text("HOST")
    # A command of the user's own may leave the port to the server.
    port = commands.option(words, "--port") or start.image.settings["PORT"].server_default
    return health.Address(
        health.reachable(host),
        int(port) if port.isdecimal() else start.settings.number("PORT") or 8000,
        commands.option(words, "--ssl-certfile") is not None,
    )
