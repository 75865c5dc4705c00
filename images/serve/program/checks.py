"""Runs the checks before the server starts. Each reports a fact, and a remedy if it fails.

A failed check refuses the start, unless SKIP_CHECKS names it or CHECKS=warn turns refusals into warnings. CHECKS=strict
turns warnings into refusals.
"""

from collections.abc import Callable, Iterable

from . import machine_checks, model_checks, pair
from .errors import StartError
from .findings import FAIL, SKIPPED, WARN, Finding, Start

Check = Callable[[Start], Iterable[Finding]]


def run(start: Start, names: Iterable[str]) -> list[Finding]:
    """Run the named checks, except skipped ones."""
    skip, mode = start.settings.words("SKIP_CHECKS"), start.settings.text("CHECKS")
    for name in (name for name in skip if name not in CHECKS):
        raise StartError(
            "bad-value",
            f"There is no check {name!r}.",
            setting="SKIP_CHECKS",
            value=",".join(skip),
            allowed=", ".join(CHECKS),
            remedy="Name one of these checks.",
        )
    findings: list[Finding] = []
    for name in names:
        if mode == "off" or name in skip:
            reason = "skipped by SKIP_CHECKS" if name in skip else "CHECKS=off"
            findings.append(Finding(name, SKIPPED, reason))
            continue
        found = list(CHECKS[name](start))
        if mode == "warn":
            found = [item._replace(result=WARN) if item.result == FAIL else item for item in found]
        elif mode == "strict":
            found = [item._replace(result=FAIL) if item.result == WARN else item for item in found]
        findings += found
    return findings


CHECKS: dict[str, Check] = {
    "gpu": machine_checks.gpu,
    "driver": machine_checks.driver,
    "kernels": machine_checks.kernels,
    "model": model_checks.model,
    "drafter": model_checks.drafter,
    "disk": machine_checks.disk,
    "memory": machine_checks.memory,
    "shm": machine_checks.shm,
    "settings": model_checks.settings,
    "flags": model_checks.flags,
    "combination": model_checks.combination,
    "port": machine_checks.port,
    "api-key": model_checks.api_key,
    "pair": pair.check,
}
