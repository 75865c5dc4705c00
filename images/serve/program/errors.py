"""The reasons not to start, each with its own exit code.

A message names the setting, its value, the allowed values and the remedy. It never contains the value of a secret.
The first line of a class's docstring is its meaning in docs/serving.md.
"""

from __future__ import annotations


class StartError(Exception):
    """The start is refused. Only subclasses are raised."""

    exit_code = 1

    def __init__(
        self, what: str, *, setting: str = "", value: str = "", allowed: str = "", remedy: str
    ) -> None:
        super().__init__(what)
        self.what = what
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.setting:
            lines.append(f"  setting: {self.setting}" + (f"={self.value}" if self.value else ""))
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        lines.append(f"  remedy:  {self.remedy}")
        return "\n".join(lines)


class UsageError(StartError):
    """A command of the image was given an option that it does not have."""

    exit_code = 64


class ValueRefusedError(StartError):
    """A setting is not a number, not JSON, or not one of the allowed values."""

    exit_code = 65


class OutOfRangeError(StartError):
    """A number is outside its range."""

    exit_code = 66


class ContradictionError(StartError):
    """Two settings contradict each other."""

    exit_code = 67


class NotInThisServerError(StartError):
    """A setting, value or flag does not exist in this image's server or its version."""

    exit_code = 68


class KeyFileError(StartError):
    """The file with the API key is missing, unreadable or empty."""

    exit_code = 69


class ModelMissingError(StartError):
    """The model folder or a file in it is missing."""

    exit_code = 70


class DrafterMismatchError(StartError):
    """The drafter does not fit the model."""

    exit_code = 71


class GpuError(StartError):
    """No GPU, or one that the image was not made for."""

    exit_code = 72


class DriverError(StartError):
    """The NVIDIA driver is too old."""

    exit_code = 73


class MemoryShortError(StartError):
    """Not enough memory, or the host would be left without."""

    exit_code = 74


class DiskShortError(StartError):
    """Not enough disk space for the download."""

    exit_code = 75


class PortInUseError(StartError):
    """The port is taken."""

    exit_code = 76


class KnownFailureError(StartError):
    """A combination that is known to fail."""

    exit_code = 77


class BrokenImageError(StartError):
    """A file of the image itself is missing or damaged."""

    exit_code = 78


class ModError(StartError):
    """A mod that MODS names could not be applied."""

    exit_code = 79


class UnprotectedError(StartError):
    """A key was given, but the server would not require it."""

    exit_code = 80


class ProgramError(StartError):
    """A mistake of the serve program itself."""

    exit_code = 81
