"""The reasons not to start: each has a name, and an exit code by what can be done about it.

A message names the setting, its value, the allowed values and the remedy. It never contains the value of a secret.
docs/serving.md lists the reasons. A failed check is named like the check.
"""

from __future__ import annotations

SETTINGS, KEY, MODEL, MACHINE, IMAGE = 64, 65, 66, 67, 68
EXIT_CODES = {
    "bad-option": SETTINGS,
    "bad-value": SETTINGS,
    "out-of-range": SETTINGS,
    "contradiction": SETTINGS,
    "not-in-this-server": SETTINGS,
    "flags": SETTINGS,
    "combination": SETTINGS,
    "bad-key-file": KEY,
    "unprotected": KEY,
    "api-key": KEY,
    "model": MODEL,
    "drafter": MODEL,
    "gpu": MACHINE,
    "driver": MACHINE,
    "kernels": MACHINE,
    "memory": MACHINE,
    "shm": MACHINE,
    "disk": MACHINE,
    "port": MACHINE,
    "broken-image": IMAGE,
    "mod-failed": IMAGE,
    "internal": IMAGE,
}


class StartError(Exception):
    """The start is refused."""

    def __init__(
        self, name: str, what: str, *, setting: str = "", value: str = "", allowed: str = "", remedy: str
    ) -> None:
        super().__init__(what)
        self.name = name
        self.what = what
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.remedy = remedy
        self.exit_code = EXIT_CODES[name]

    def __str__(self) -> str:
        lines = [f"error[{self.name}]: {self.what}"]
        if self.setting:
            lines.append(f"  setting: {self.setting}" + (f"={self.value}" if self.value else ""))
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        lines.append(f"  remedy:  {self.remedy}")
        return "\n".join(lines)
