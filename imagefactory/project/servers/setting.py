"""Describes a setting of images: its meaning, allowed values and flag.

Everything else is rendered from the settings of a server: settings.json in the image (which the serve program validates
against), the image's environment, the `settings` command, the table in docs/serving.md, compose files, `docker run` and
recipes.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

SettingKind = Literal[
    "text", "path", "whole", "fraction", "switch", "choice", "counts", "list", "flags", "secret"
]
MOST = 2**31 - 1
KEY_SETTINGS = ("VLLM_API_KEY", "VLLM_API_KEY_FILE")
"""The API key of any server."""


@dataclass(frozen=True)
class Setting:
    """A setting of an image; `serve` of a model in matrix.yaml may override its default."""

    name: str
    kind: SettingKind
    description: str
    _: KW_ONLY
    passed: bool = False
    """Whether the server gets it as a flag."""
    spelled: str = ""
    """The flag, where it does not have the setting's name."""
    default: str = ""
    server_default: str = ""
    """What the server assumes without the flag, which is then left out."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    """The first version of the server that supports it."""
    since_of: dict[str, str] = field(default_factory=dict)
    """The first version of the server that supports a choice."""
    unset: str = ""
    """The word that stands for no value."""

    @property
    def key(self) -> str:
        """Its name in matrix.yaml, below a model's `serve`."""
        return self.name.lower()

    @property
    def flag(self) -> str:
        """The flag of the server; empty if only the serve program uses the setting."""
        return (self.spelled or f"--{self.key.replace('_', '-')}") if self.passed else ""


def limit(name: str, description: str, kind: SettingKind, minimum: float, maximum: float) -> Setting:
    """Declare a number that the server chooses itself unless it is set."""
    return Setting(name, kind, description, passed=True, minimum=minimum, maximum=maximum, unset="auto")


def choice(
    name: str, description: str, choices: tuple[str, ...], since_of: dict[str, str] | None = None
) -> Setting:
    """Declare one of several words, of which the server's default is `auto`."""
    return Setting(
        name,
        "choice",
        description,
        passed=True,
        choices=choices,
        server_default="auto",
        since_of=since_of or {},
    )
