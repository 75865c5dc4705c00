"""Runs the checks before the server starts. Each reports a fact, and a remedy if it fails.

A failed check refuses the start, unless SKIP_CHECKS names it or CHECKS=warn turns refusals into warnings. CHECKS=strict
turns warnings into refusals.
"""

from collections.abc import Callable, Iterable

from . import kv_disk_checks, machine_checks, model_checks, pair
from .errors import StartError
from .findings import FAIL, SKIPPED, WARN, Finding, Start

Check = Callable[[Start], Iterable[Finding]]


HELD = ("memory", "port", "kv-disk")
"""The checks of what a running server itself has taken."""


def run(start: Start, names: Iterable[str], *, beside: bool = False) -> list[Finding]:
    """Run checks by name, `beside` a server that runs in the same container or before a start."""
    skip, mode = start.settings.words("SKIP_CHECKS"), start.settings.text("CHECKS")
    for name in (name for name in skip if name not in CHECKS):
        what, setting = f"There is no check {name!r}.", ("SKIP_CHECKS", ",".join(skip), ", ".join(CHECKS))
        raise StartError("bad-value", what, *setting, remedy="Name one of these checks.")
    changed = {"warn": {FAIL: WARN}, "strict": {WARN: FAIL}}.get(mode, {})
    findings: list[Finding] = []
    for name in names:
        if mode == "off" or name in skip:
            findings.append(Finding(name, SKIPPED, "skipped by SKIP_CHECKS" if name in skip else "CHECKS=off"))
            continue
        if beside and name in HELD:
            findings.append(Finding(name, SKIPPED, "this container's own server runs, and holds it"))
            continue
        found = CHECKS[name](start)
        findings += [finding._replace(result=changed.get(finding.result, finding.result)) for finding in found]
    return findings


CHECKS: dict[str, Check] = {
    "gpu": machine_checks.gpu,
    "driver": machine_checks.driver,
    "host": machine_checks.host,
    "kernels": machine_checks.kernels,
    "model": model_checks.model,
    "drafter": model_checks.drafter,
    "disk": machine_checks.disk,
    "memory": machine_checks.memory,
    "shm": machine_checks.shm,
    "kv-disk": kv_disk_checks.kv_disk,
    "settings": model_checks.settings,
    "flags": model_checks.flags,
    "combination": model_checks.combination,
    "port": machine_checks.port,
    "api-key": model_checks.api_key,
    "pair": pair.check,
}
