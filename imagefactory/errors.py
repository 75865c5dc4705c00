"""Every failure that a user can meet, in a class by what can be done about it.

A class has an exit code; docs/errors.md lists them. Which failure it is says its name, the first argument:
`raise LockError("no-lock", ...)`. Code that recovers from one failure of a class compares the name with one of the
constants below.
"""

from collections.abc import Iterable
from typing import Final

from images.shipped.errors import ConfigError, FactoryError, Location, ModError, UsageError, did_you_mean

__all__ = [
    "BuildError",
    "CheckError",
    "ConfigError",
    "EngineError",
    "FactoryError",
    "InputError",
    "InternalError",
    "Location",
    "LockError",
    "MachineError",
    "ModError",
    "NetworkError",
    "RegistryError",
    "TrustError",
    "UsageError",
    "clean",
    "did_you_mean",
    "unknown_name",
]


NO_CONTENT: Final = "no-content"
NO_REGISTRY: Final = "no-registry"
NO_REPOSITORY: Final = "no-repository"
REGISTRY_OUTAGES: Final = frozenset(
    (
        *("registry-unreachable", "registry-busy", "registry-failed"),
        *("credentials-refused", "access-denied", "unsafe-address"),
    )
)
"""What says nothing about the content that was asked for."""
MOD_NOT_APPLICABLE: Final = "not-applicable"
MOD_FILE_MISSING: Final = "mod-file"
MOD_MISFITS: Final = frozenset(
    (
        *(MOD_NOT_APPLICABLE, "anchor-misfit", "patch-misfit", "check-failed", "mod-conflict", "broken-syntax"),
        *("bad-mod-path", "forbidden-path", "taken-path"),
    )
)
"""A mod does not fit this version, whatever else is right; images/shipped/mods raises these."""


def clean(text: str) -> str:
    """Return a text from outside in one line that can be printed: it may hold escape sequences, or half characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def unknown_name(
    what: str, name: str, known: Iterable[str], where: str | Location, *, why: str = "", hint: str = ""
) -> UsageError:
    """Make the error for a name that does not exist, with the nearest that do."""
    known = list(known)
    near = did_you_mean(name, known)
    if not near.endswith("?"):
        near = "Choose one of them." if known and not why else f"{near}."
    why, fix = why or f"Known: {', '.join(known)}.", f"{near}{hint}"
    return UsageError("unknown-name", f"Unknown {what} {name!r}.", where=where, why=why, fix=fix)


class LockError(FactoryError):
    """A lock or record is missing, stale or impossible: run `./inv lock`, or change what it is made from."""

    exit_code = 5


class NetworkError(FactoryError):
    """An index, mirror, hub or forge does not deliver: check the network and the addresses, and try again."""

    exit_code = 6


class RegistryError(FactoryError):
    """The container registry refuses, fails or lacks something: check the login, or try again."""

    exit_code = 7


class InputError(FactoryError):
    """A file is refused because it is damaged, unsafe or not the one that was asked for: get the correct file."""

    exit_code = 8


class BuildError(FactoryError):
    """A build or compile failed, or something is not built yet; its log says where."""

    exit_code = 9


class CheckError(FactoryError):
    """An image failed a smoke test, an audit or a benchmark: it should not be used."""

    exit_code = 10


class TrustError(FactoryError):
    """Something is not what was signed, recorded or built, or nobody vouches for it: do not use or publish it."""

    exit_code = 11


class EngineError(FactoryError):
    """Docker is missing, too old, or fails."""

    exit_code = 12


class MachineError(FactoryError):
    """The machine stands in the way: disk, memory, permissions, paths."""

    exit_code = 13


class InternalError(FactoryError):
    """A bug in the factory; the details are in a file for its authors."""

    exit_code = 14
