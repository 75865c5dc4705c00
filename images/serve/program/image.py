"""Loads the description of the image: its settings with defaults, its model and its GPU."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from .errors import StartError

VENV = "/opt/venv"
"""The server's own Python environment."""
SHARE = "/usr/share/imagefactory"
"""The folder of settings.json and model.json; tests override it with FACTORY_SHARE."""

TITLES = {"vllm": "vLLM", "sglang": "SGLang"}

Json = dict[str, Any]


class Setting(NamedTuple):
    """A setting in settings.json."""

    name: str
    kind: str
    default: str
    description: str
    flag: str = ""
    server_default: str = ""
    """What the server assumes without the flag."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    since_of: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's fields are not shared
    unset: str = ""
    unit: str = ""
    """What a number without one counts: rules.json has the others that it may have."""


class Image(NamedTuple):
    """The description of this image."""

    facts: Json
    settings: dict[str, Setting]
    model: Json
    refused: dict[str, str] = {}  # noqa: RUF012
    """Settings that the server lacks, each with what to do instead."""

    @property
    def server(self) -> str:
        return str(self.model.get("server", "vllm"))

    @property
    def title(self) -> str:
        return TITLES[self.server]

    @property
    def version(self) -> str:
        return str(self.facts[self.server])

    def at_least(self, version: str) -> bool:
        """Whether the server has a version or a later one; a development version counts as its release."""
        own, bound = release(self.version), release(version)
        width = max(len(own), len(bound))
        return own + (0,) * (width - len(own)) >= bound + (0,) * (width - len(bound))

    @property
    def capability(self) -> str:
        """The compute capability of the image's GPU; empty for a CPU."""
        return str(self.facts.get("capability") or "")

    @property
    def drafters(self) -> list[Json]:
        return list(self.model.get("drafters", []))


def load(share: str | None = None) -> Image:
    folder = share or os.environ.get("FACTORY_SHARE") or SHARE
    described, model = read_object(folder, "settings.json"), read_object(folder, "model.json")
    server = model.get("server", "vllm")
    try:
        settings = {}
        for entry in described["settings"]:
            own = {"choices": tuple(entry.pop("choices", ())), "server_default": entry.pop(f"{server}_default", "")}
            settings[entry["name"]] = Setting(**entry, **own)
        image = Image(described["image"], settings, model, described.get("refused", {}))
        str(image.version), str(model["model"])
    except (KeyError, TypeError) as error:
        raise broken(f"{folder}/settings.json or model.json lacks {error}.") from None
    return image


def release(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def read_object(folder: str, name: str) -> Json:
    path = Path(folder, name)
    try:
        value: Json = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise broken(f"{path} cannot be read: {error}.") from None
    return value


def broken(what: str) -> StartError:
    return StartError("broken-image", what, remedy="Pull the image again.")
