"""The command that starts the server, and what building it takes whatever the server."""

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import StartError
from .hiding import masked
from .image import Image
from .settings import Settings

DRAFT_SETTINGS = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "DRAFT_ATTENTION_BACKEND")


NODE_FLAGS = ("--nnodes", "--node-rank", "-r", "--master-addr", "--master-port", "--dist-init-addr", "--headless")
"""What the settings of a pair become."""


class Command(NamedTuple):
    """The command, with remarks for the user."""

    arguments: tuple[str, ...]
    model: str
    revision: str
    served_names: tuple[str, ...]
    speculative: dict[str, Any] | None
    cache_dtype: str
    remarks: tuple[str, ...]


def more_flags(image: Image, settings: Settings) -> list[str]:
    """Return the flags that the model or its mods need beyond the settings, unless the user gave them."""
    words: list[str] = []
    for name, value in image.facts.get("flags", {}).items():
        flag = f"--{name.replace('_', '-')}"
        if option(settings.extra, flag) is None and flag not in settings.extra:
            words += flag_words(flag, value, "")
    return words


def shown(command: Sequence[str]) -> str:
    """Return a command quoted for a shell, with its secrets hidden."""
    return shlex.join(masked(command))


def option(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option among arguments."""
    found = None
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            if equals:
                found = value
            elif index + 1 < len(arguments):
                found = arguments[index + 1]
    return found


def model_of(image: Image, settings: Settings) -> tuple[str, str, bool]:
    """Return the model, its revision, and whether it is the image's own."""
    path = settings.text("MODEL_PATH")
    if path:
        return path, "", True
    model = settings.text("MODEL") or str(image.model["model"])
    own = model == image.model["model"]
    return model, str(image.model.get("revision", "")) if own else "", own


def served_names(settings: Settings, model: str) -> tuple[str, ...]:
    """Return the names that clients may send."""
    return tuple(name for name in settings.text("SERVED_MODEL_NAME").split(",") if name) or (model,)


def flag_words(flag: str, value: object, default: str) -> list[str]:
    """Return a flag with its value; nothing if the server assumes that value."""
    if value is None or (not isinstance(value, dict) and str(value) == default):
        return []
    if value is True:
        return [flag]
    if value is False:
        # Off needs no flag unless the server's default is on, or depends on the model.
        return [f"--no-{flag[2:]}"] if default in {"True", "None"} else []
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def drafter_of(image: Image, settings: Settings, *, own: bool) -> dict[str, Any] | None:
    """Return the drafter's method, model, tokens, backend and revision; None without a drafter."""
    drafter = settings.text("DFLASH_DRAFTER")
    if not drafter or (not own and "DFLASH_DRAFTER" not in settings.given):
        return None
    known = next((entry for entry in image.drafters if entry["repo"] == drafter), {})
    tokens = settings.number("DFLASH_NUM_SPEC_TOKENS")
    if "DFLASH_NUM_SPEC_TOKENS" not in settings.given:
        tokens = known.get("tokens") or tokens
    backend = settings.text("DRAFT_ATTENTION_BACKEND")
    if "DRAFT_ATTENTION_BACKEND" not in settings.given:
        backend = known.get("attention_backend") or backend
    return {
        "method": known.get("method", "dflash"),
        "model": drafter,
        "num_speculative_tokens": tokens or 15,
        "attention_backend": backend or "auto",
        "revision": known.get("revision", ""),
        "config": known.get("config", {}),
    }


def refuse_second_drafter(settings: Settings, flag: str) -> None:
    """Refuse settings of the drafter beside a flag that describes it."""
    both = [name for name in DRAFT_SETTINGS if name in settings.given]
    if both:
        raise StartError(
            "contradiction",
            f"{both[0]} and {flag} both describe the drafter.",
            setting=both[0],
            value=settings.text(both[0]) or "off",
            allowed="one of the two",
            remedy=f"Leave out either {both[0]} or {flag}.",
        )


def paired(settings: Settings) -> bool:
    return (settings.number("NODES") or 1) > 1


def node_words(settings: Settings, joining: Sequence[str], parallel: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the flags of one of two nodes: those that join it to the other, and half a layer unless flags say more."""
    if not paired(settings):
        return []
    both = next((word for word in settings.extra if word.partition("=")[0].replace("_", "-") in NODE_FLAGS), None)
    if both is not None:
        flag = both.partition("=")[0]
        raise StartError(
            "contradiction",
            f"NODES and {flag} both describe the nodes.",
            setting="NODES",
            value=settings.text("NODES"),
            allowed="one of the two",
            remedy=f"Leave out {flag}: NODES, NODE_RANK and HEAD_ADDRESS set it.",
        )
    spread = any(option(settings.extra, *names) for names in parallel)
    return [*joining, *(() if spread else (parallel[0][0], settings.text("NODES")))]
