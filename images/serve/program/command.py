"""The command that starts the server, and what building it takes whatever the server."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from .errors import StartError
from .image import Image
from .redaction import masked
from .settings import Settings

DRAFT_SETTINGS = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "DRAFT_ATTENTION_BACKEND")
NODE_FLAGS = ("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--dist-init-addr", "--headless")
"""What the settings of several nodes become."""


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""How PyTorch's allocator is described; some versions ignore the second, newer name."""


class Parallel(NamedTuple):
    """The flags that split a model, each with its other spellings."""

    tensor: tuple[str, ...]
    """Every layer, over so many GPUs."""
    stages: tuple[str, ...]
    """The layers, one after the other."""
    replicas: tuple[str, ...]
    """Not at all: so many copies, on GPUs of their own."""


class Split(NamedTuple):
    """How a model is split."""

    tensor: int = 1
    stages: int = 1
    replicas: int = 1

    @property
    def parts(self) -> int:
        return self.tensor * self.stages * self.replicas


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
    given = {word.partition("=")[0].replace("_", "-") for word in settings.extra}
    for name, value in image.facts.get("flags", {}).items():
        flag = f"--{name.replace('_', '-')}"
        if flag not in given:
            words += flag_words(flag, value, "")
    return words


def shown(command: Sequence[str]) -> str:
    """Return a command quoted for a shell, with its secrets hidden."""
    return shlex.join(masked(command))


def option(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option among arguments."""
    found = None
    for word, following in zip_longest(arguments, arguments[1:]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else following
    return found


def begun(image: Image, settings: Settings, *before: str) -> tuple[Command, bool]:
    """Return a command with the model, its revision and names, and whether the model is the image's own."""
    path, known = settings.text("MODEL_PATH"), str(image.model["model"])
    model = path or settings.text("MODEL") or known
    own = bool(path) or model == known
    revision = str(image.model.get("revision", "")) if own and not path else ""
    default = path.rstrip("/").rpartition("/")[2] or model
    names = tuple(filter(None, settings.text("SERVED_MODEL_NAME").split(","))) or (default,)
    words = [*before, model, *(("--revision", revision) if revision else ())]
    if names != (model,) and option(settings.extra, "--served-model-name") is None:
        words += ["--served-model-name", *names]
    remarks: tuple[str, ...] = ()
    if not own and "DFLASH_DRAFTER" not in settings.given:
        remarks = (f"{model} is not this image's model: its drafter and revision are not used",)
    return Command(tuple(words), model, revision, names, None, "", remarks), own


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

    def chosen(name: str, key: str) -> Any:  # noqa: ANN401 - a number or a word
        value = settings.values.get(name)
        return value if name in settings.given else known.get(key) or value

    return {
        "method": known.get("method", "dflash"),
        "model": drafter,
        "num_speculative_tokens": chosen("DFLASH_NUM_SPEC_TOKENS", "tokens") or 15,
        "attention_backend": chosen("DRAFT_ATTENTION_BACKEND", "attention_backend") or "auto",
        "revision": known.get("revision", ""),
        "config": known.get("config", {}),
    }


def refuse_second_drafter(settings: Settings, flag: str) -> None:
    # DFLASH_DRAFTER=off describes no drafter: whoever drafts by a flag may switch the image's own off.
    for name in (name for name in DRAFT_SETTINGS if name in settings.given and settings.values[name] is not None):
        what, remedy = f"{name} and {flag} both describe the drafter.", f"Leave out either {name} or {flag}."
        raise StartError("contradiction", what, name, settings.text(name), "one of the two", remedy=remedy)


def allocator(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that has PyTorch's segments of GPU memory grow, if ALLOCATOR says so."""
    chosen = settings.text("ALLOCATOR")
    for name in (name for name in ALLOCATOR_VARIABLES if chosen and environment.get(name)):
        what, remedy = (
            f"ALLOCATOR and {name} both describe PyTorch's allocator.",
            f"Leave out either ALLOCATOR or {name}.",
        )
        raise StartError("contradiction", what, "ALLOCATOR", chosen, "one of the two", remedy=remedy)
    return {ALLOCATOR_VARIABLES[0]: "expandable_segments:True"} if chosen == "expandable" else {}


def nodes(settings: Settings) -> int:
    return settings.number("NODES") or 1


def split(words: Sequence[str], parallel: Parallel) -> Split:
    """Read from flags how a model is split; 1 for what they do not say."""
    sizes = (option(words, *names) or "" for names in parallel)
    return Split(*(max(1, int(size)) if size.isdecimal() else 1 for size in sizes))


def node_words(settings: Settings, joining: Sequence[str], parallel: Parallel) -> list[str]:
    """Return the flags of one of several nodes: those that join it to the others, and its part of each layer.

    Pipeline stages and replicas are as flags say; what is left of the nodes shares every layer.
    """
    if (count := nodes(settings)) == 1:
        return []
    given = (word.partition("=")[0] for word in settings.extra)
    for flag in (flag for flag in given if flag.replace("_", "-") in NODE_FLAGS):
        remedy = f"Leave out {flag}: NODES, NODE_RANK and HEAD_ADDRESS set it."
        setting = ("NODES", settings.text("NODES"), "one of the two")
        raise StartError("contradiction", f"NODES and {flag} both describe the nodes.", *setting, remedy=remedy)
    sizes, given_tensor = split(settings.extra, parallel), option(settings.extra, *parallel.tensor)
    if given_tensor is None:
        sizes = sizes._replace(tensor=max(1, count // (sizes.stages * sizes.replicas)))
    if sizes.parts % count:
        what = f"The flags split the model into {sizes.parts} parts, which {count} nodes cannot share evenly."
        remedy = f"Have the sizes multiply to {count}, or to {count} times the GPUs of a node; or leave them out."
        setting = ("NODES", str(count), f"a number that divides {sizes.parts}")
        raise StartError("contradiction", what, *setting, remedy=remedy)
    own = () if given_tensor or sizes.tensor == 1 else (parallel.tensor[0], str(sizes.tensor))
    return [*joining, *own]
