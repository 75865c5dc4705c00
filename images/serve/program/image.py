"""What the image knows about itself: its schema with defaults, its model, its GPU."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from .errors import BrokenImageError

SHARE = "/usr/share/imagefactory"
"""Where the image keeps what the factory wrote; FACTORY_SHARE overrides, for tests."""

Json = dict[str, Any]


class Setting(NamedTuple):
    """One setting, as settings.json describes it."""

    name: str
    kind: str
    default: str
    description: str
    flag: str = ""
    vllm_default: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    since_of: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's fields are not shared
    unset: str = ""


class Image(NamedTuple):
    """This image: what it serves, on what, with which settings."""

    facts: Json
    settings: dict[str, Setting]
    model: Json

    @property
    def vllm(self) -> str:
        """The vLLM version, for comparisons."""
        return str(self.facts["vllm"])

    @property
    def capability(self) -> str:
        """The compute capability that the image is for; empty for a CPU."""
        return str(self.facts.get("capability") or "")

    @property
    def weights(self) -> str:
        """The number format of the model's weights."""
        return str(self.facts.get("weights", ""))

    @property
    def drafters(self) -> list[Json]:
        """The drafters that are known to fit the model."""
        return list(self.model.get("drafters", []))


def load(share: str | None = None) -> Image:
    """Read settings.json and model.json."""
    folder = share or os.environ.get("FACTORY_SHARE") or SHARE
    described, model = _read(folder, "settings.json"), _read(folder, "model.json")
    try:
        settings = {entry["name"]: _setting(entry) for entry in described["settings"]}
        facts = described["image"]
        str(facts["vllm"]), str(model["model"])
    except (KeyError, TypeError) as error:
        raise BrokenImageError(
            f"{folder}/settings.json or model.json lacks {error}.", remedy="Pull the image again."
        ) from None
    return Image(facts, settings, model)


def _setting(entry: Json) -> Setting:
    fields: Json = {key: tuple(value) if key == "choices" else value for key, value in entry.items()}
    return Setting(**fields)


def _read(folder: str, name: str) -> Json:
    path = os.path.join(folder, name)  # noqa: PTH118 - pathlib costs 15 ms of every start
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise BrokenImageError(f"{path} cannot be read: {error}.", remedy="Pull the image again.") from None
    if not isinstance(value, dict):
        raise BrokenImageError(f"{path} is not a JSON object.", remedy="Pull the image again.")
    return value
