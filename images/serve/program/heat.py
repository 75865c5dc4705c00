"""Reads from nvidia-smi how hot, busy and fast the GPUs are, and tells one that is slowed down or stuck.

The limits and remedies are of GB10, where CPU and GPU share their heat; others measured them.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

_FIELDS = ("name", "temperature.gpu", "power.draw", "utilization.gpu", "clocks.sm", "clocks_event_reasons.active")
QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_UNITS = (" °C", " W", " % busy", " MHz")
HEAT, BRAKE = 0x20 | 0x40, 0x80
"""Reasons for a lower clock: too hot, by software or hardware; not enough power from outside."""
BUSY, IDLE_POWER = 90, 27
"""A GB10 that works draws 45 W or so; one that says it is busy at idle power is stuck."""
COOLER = (
    "Keep the vents free, and see that the fans turn. On a Spark, `sudo nvidia-smi -lgc 0,2100`, until the next boot, "
    "took the GPU from 91 to 65 to 80 °C at the same decoding speed; `sudo fwupdmgr upgrade` updates the firmware."
)
POWERLESS = (
    "Shut the machine down and unplug its power supply for a minute: a reboot is not enough. Use its own supply."
)


def said(query: Sequence[str]) -> str:
    """Return what nvidia-smi answers, a line per GPU or process; empty if it is missing or does not answer."""
    program = shutil.which("nvidia-smi")
    with suppress(OSError, subprocess.SubprocessError):
        if program:
            done = subprocess.run([program, *query], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - no words from outside
            return done.stdout
    return ""


def describe(text: str) -> str:
    """Describe the first GPU; empty if nothing could be read."""
    for _, figures, _ in _rows(text):
        return ", ".join(
            f"{figure:.0f}{unit}" for figure, unit in zip(figures, _UNITS, strict=True) if figure is not None
        )
    return ""


def problems(text: str) -> Iterator[tuple[str, str]]:
    for name, (temperature, power, busy, clock), reasons in _rows(text):
        at = "" if clock is None else f" to {clock:.0f} MHz"
        if reasons & HEAT:
            hot = "" if temperature is None else f", at {temperature:.0f} °C"
            yield f"{name} is slowed down{at} by heat{hot}", COOLER
        if reasons & BRAKE:
            yield f"{name} is slowed down{at} by a lack of power (power brake)", POWERLESS
        if "GB10" in name and power is not None and busy is not None and busy >= BUSY and power <= IDLE_POWER:
            yield f"{name} says it is {busy:.0f} % busy, but draws {power:.0f} W as if idle: it is stuck", POWERLESS


def _rows(text: str) -> Iterator[tuple[str, list[float | None], int]]:
    for line in text.splitlines():
        name, *values = [part.strip() for part in line.split(",")]
        if len(values) == len(_FIELDS) - 1:
            numbers = [float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None for value in values[:-1]]
            yield name, numbers, int(values[-1], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", values[-1]) else 0
