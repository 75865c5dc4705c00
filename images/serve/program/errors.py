"""Every reason not to start, one class and one exit code each.

A message names the setting, its value, what would be allowed, and what to do. The value of a secret is never in it.
"""

from __future__ import annotations


class StartError(Exception):
    """A start that is refused. Subclasses set `exit_code`; nothing raises this class itself."""

    exit_code = 1
    meaning = ""

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
    """An option of a command of ours that does not exist."""

    exit_code = 64
    meaning = "a command of the image was given an option that it does not have"


class ValueRefusedError(StartError):
    """A value of the wrong kind, or not among the allowed ones."""

    exit_code = 65
    meaning = "a setting is not a number, not JSON, or not one of the allowed values"


class OutOfRangeError(StartError):
    """A number outside its range."""

    exit_code = 66
    meaning = "a number is outside its range"


class ContradictionError(StartError):
    """Two settings that cannot both hold."""

    exit_code = 67
    meaning = "two settings contradict each other"


class NotInThisVllmError(StartError):
    """A setting, value or flag that this image's vLLM does not have."""

    exit_code = 68
    meaning = "a setting, value or flag does not exist in this image's vLLM"


class KeyFileError(StartError):
    """The file with the API key cannot be used."""

    exit_code = 69
    meaning = "the file with the API key is missing, unreadable or empty"


class ModelMissingError(StartError):
    """The model's folder, or a file in it, is missing."""

    exit_code = 70
    meaning = "the model folder or a file in it is missing"


class DrafterMismatchError(StartError):
    """The drafter was made for another model."""

    exit_code = 71
    meaning = "the drafter does not fit the model"


class GpuError(StartError):
    """No GPU, or one that the image was not made for."""

    exit_code = 72
    meaning = "no GPU, or one that the image was not made for"


class DriverError(StartError):
    """The NVIDIA driver is too old."""

    exit_code = 73
    meaning = "the NVIDIA driver is too old"


class MemoryShortError(StartError):
    """The server would not fit, or would take what the host needs."""

    exit_code = 74
    meaning = "not enough memory, or the host would be left without"


class DiskShortError(StartError):
    """The download does not fit on the disk."""

    exit_code = 75
    meaning = "not enough disk space for the download"


class PortInUseError(StartError):
    """Something else listens on the port."""

    exit_code = 76
    meaning = "the port is taken"


class KnownFailureError(StartError):
    """A combination of settings that is known to fail."""

    exit_code = 77
    meaning = "a combination that is known to fail"


class BrokenImageError(StartError):
    """The image lacks a file of its own."""

    exit_code = 78
    meaning = "a file of the image itself is missing or damaged"


class ModError(StartError):
    """A mod that was asked for at start could not be applied."""

    exit_code = 79
    meaning = "a mod that MODS names could not be applied"


ALL = (
    UsageError,
    ValueRefusedError,
    OutOfRangeError,
    ContradictionError,
    NotInThisVllmError,
    KeyFileError,
    ModelMissingError,
    DrafterMismatchError,
    GpuError,
    DriverError,
    MemoryShortError,
    DiskShortError,
    PortInUseError,
    KnownFailureError,
    BrokenImageError,
    ModError,
)
