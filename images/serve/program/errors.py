"""The reasons not to start: each has a name, and an exit code by what can be done about it.

A message names the setting, its value, the allowed values and the remedy. It never contains the value of a secret.
docs/serving.md lists the reasons. A failed check is named like the check.
"""

_BY_CODE = {
    64: "bad-option bad-value out-of-range contradiction not-in-this-server settings flags combination nodes-differ",
    65: "bad-key-file unprotected api-key",
    66: "model drafter gated unknown-model unknown-revision damaged",
    67: "gpu driver host memory shm disk kv-disk port no-hub stalled pair",
    68: "broken-image mod-failed internal",
}
"""To correct: the settings, the key, the model, the machine, the image."""
EXIT_CODES = {name: code for code, names in _BY_CODE.items() for name in names.split()}


class StartError(Exception):
    """The start is refused."""

    def __init__(
        self, name: str, what: str, setting: str = "", value: str = "", allowed: str = "", *, remedy: str
    ) -> None:
        super().__init__(what)
        self.name, self.what, self.exit_code = name, what, EXIT_CODES[name]
        self.setting, self.value, self.allowed, self.remedy = setting, value, allowed, remedy

    def __str__(self) -> str:
        lines = [f"error[{self.name}]: {self.what}"]
        if self.setting:
            lines.append(f"  setting: {self.setting}" + (f"={self.value}" if self.value else ""))
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        lines.append(f"  remedy:  {self.remedy}")
        return "\n".join(lines)
