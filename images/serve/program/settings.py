"""From environment variables and arguments to checked values.

Where a value comes from: an argument or EXTRA_ARGS, else the environment, else the image's default. An image sets its
defaults as environment variables too, so a variable that equals the default counts as not given.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import versions
from .errors import (
    ContradictionError,
    KeyFileError,
    NotInThisVllmError,
    OutOfRangeError,
    StartError,
    ValueRefusedError,
)
from .image import Image, Setting

Value = str | int | float | bool | dict[str, Any] | list[str] | None
YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")
SECRETS = ("VLLM_API_KEY",)
UNLIMITED = 2**63


class Settings(NamedTuple):
    """The values of this start."""

    values: dict[str, Value]
    given: frozenset[str]
    """Names that somebody set to something else than the image's default."""
    extra: tuple[str, ...]
    """Flags for vLLM that no setting covers."""
    api_key: str
    notes: tuple[str, ...]

    def text(self, name: str) -> str:
        """Return a value as text, empty when unset."""
        value = self.values.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int | None:
        """Return a whole number."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def fraction(self, name: str) -> float | None:
        """Return a number with decimals."""
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return self.values.get(name) is True

    def words(self, name: str) -> list[str]:
        """Return a list."""
        value = self.values.get(name)
        return value if isinstance(value, list) else []


def read(image: Image, environment: Mapping[str, str], arguments: Iterable[str] = ()) -> Settings:
    """Read and check every setting."""
    values: dict[str, Value] = {}
    given: set[str] = set()
    for setting in image.settings.values():
        text = environment.get(setting.name, "").strip()
        if text and text != setting.default:
            given.add(setting.name)
        values[setting.name] = parse(setting, text or setting.default, image.vllm)
    extra = [*_extra_args(environment.get("EXTRA_ARGS", "")), *arguments]
    rest = _take_flags(image, extra, values, given)
    _check_versions(image, values, given)
    _check_contradictions(values, given)
    key = _api_key(values, environment)
    values["VLLM_API_KEY"] = None
    return Settings(values, frozenset(given), tuple(rest), key, tuple(_notes(image, values, given)))


def parse(setting: Setting, text: str, vllm: str) -> Value:
    """Turn text into the value of a setting, or refuse it."""
    if text in {"", setting.unset} and setting.kind != "switch":
        return None
    by_kind = {"whole": _number, "fraction": _number, "switch": _switch, "counts": _counts}
    if setting.kind in by_kind:
        return by_kind[setting.kind](setting, text)
    if setting.kind == "list":
        return [word for word in text.replace(",", " ").split() if word]
    if setting.choices:
        return _choice(setting, text, vllm)
    if "\0" in text or "\n" in text:
        raise ValueRefusedError(
            f"{setting.name} has a line break in it.",
            setting=setting.name,
            value=shown(setting, text),
            allowed="one line of text",
            remedy="Give one line.",
        )
    return text


def allowed(setting: Setting) -> str:
    """Describe what a setting accepts, in words."""
    if setting.kind in {"whole", "fraction"}:
        noun = "a whole number" if setting.kind == "whole" else "a number"
        words = f"{noun} from {_short(setting.minimum)} to {_short(setting.maximum)}"
        return f"{words}, or {setting.unset}" if setting.unset else words
    if setting.kind == "switch":
        return "1 or 0"
    if setting.kind == "counts":
        return 'a JSON object of whole numbers, such as {"image": 0}'
    if setting.choices:
        return ", ".join(setting.choices)
    kinds = {"list": "names, separated by commas", "flags": "flags, quoted as in a shell", "path": "a path"}
    return kinds.get(setting.kind, "text") + (f", or {setting.unset}" if setting.unset else "")


def shown(setting: Setting, text: str) -> str:
    """Return a value for a message; secrets stay hidden."""
    return "(hidden)" if setting.name in SECRETS else text


def _short(number: float | None) -> str:
    return "any" if number is None else f"{number:g}" if number < 1000 else f"{number:.0f}"  # noqa: PLR2004


def _number(setting: Setting, text: str) -> int | float:
    number: int | float
    try:
        # int() and float() accept underscores and other digits than ours, which vLLM would not.
        if not text.isascii() or "_" in text:
            raise ValueError  # noqa: TRY301
        number = int(text) if setting.kind == "whole" else float(text)
    except ValueError:
        raise ValueRefusedError(
            f"{setting.name} is not {'a whole number' if setting.kind == 'whole' else 'a number'}.",
            setting=setting.name,
            value=text,
            allowed=allowed(setting),
            remedy=f"Set {setting.name} to a number in that range, or leave it out for {setting.default or 'auto'}.",
        ) from None
    low = -math.inf if setting.minimum is None else setting.minimum
    high = math.inf if setting.maximum is None else setting.maximum
    if not low <= number <= high:
        raise OutOfRangeError(
            f"{setting.name} is out of range.",
            setting=setting.name,
            value=text,
            allowed=allowed(setting),
            remedy=f"Set {setting.name} to a number in that range, or leave it out for {setting.default or 'auto'}.",
        )
    return number


def _switch(setting: Setting, text: str) -> bool | None:
    if not text:
        return None
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    raise ValueRefusedError(
        f"{setting.name} is a switch.",
        setting=setting.name,
        value=text,
        allowed="1 or 0 (also true, yes, on, false, no, off)",
        remedy=f"Set {setting.name} to 1 or 0.",
    )


def _counts(setting: Setting, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(_count(number) for number in value.values()):
        raise ValueRefusedError(
            f"{setting.name} is not a JSON object of whole numbers.",
            setting=setting.name,
            value=text,
            allowed=allowed(setting),
            remedy='Quote it for the shell: \'{"image": 0, "video": 0}\'.',
        )
    return value


def _count(value: object) -> bool:
    if isinstance(value, dict):
        return all(_count(number) for number in value.values())
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < UNLIMITED


def _choice(setting: Setting, text: str, vllm: str) -> str:
    value = text.lower()
    if value not in setting.choices:
        raise ValueRefusedError(
            f"{setting.name} does not know {text!r}.",
            setting=setting.name,
            value=text,
            allowed=allowed(setting),
            remedy=_nearest(value, setting.choices)
            or f"Choose one of them, or leave {setting.name} out for {setting.default or 'auto'}.",
        )
    since = setting.since_of.get(value, "")
    if since and not versions.at_least(vllm, since):
        raise NotInThisVllmError(
            f"{setting.name}={text} needs vLLM {since}; this image has {vllm}.",
            setting=setting.name,
            value=text,
            allowed=", ".join(
                choice
                for choice in setting.choices
                if versions.at_least(vllm, setting.since_of.get(choice, "0"))
            ),
            remedy="Choose another value, or an image with a newer vLLM.",
        )
    return value


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a message

    near = get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def _extra_args(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueRefusedError(
            f"EXTRA_ARGS cannot be split into words: {error}.",
            setting="EXTRA_ARGS",
            value=text,
            allowed="flags, quoted as in a shell",
            remedy="Close every quotation mark; put JSON into single quotes.",
        ) from None


def _take_flags(image: Image, words: list[str], values: dict[str, Value], given: set[str]) -> list[str]:
    """Let flags that a setting covers set it, so that the checks see them; give back the others."""
    by_flag = {setting.flag: setting for setting in image.settings.values() if setting.flag}
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, inline = word.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        positive = f"--{flag[5:]}" if flag.startswith("--no-") else flag
        setting = by_flag.get(positive)
        if setting is None or setting.kind == "list":
            rest.append(word)
            continue
        if setting.kind == "switch":
            text = "0" if positive != flag else "1"
        elif equals:
            text = inline
        elif position < len(words):
            text = words[position]
            position += 1
        else:
            raise ValueRefusedError(
                f"{flag} stands last and has no value.",
                setting="EXTRA_ARGS",
                value=word,
                allowed=f"{flag} followed by {allowed(setting)}",
                remedy=f"Give the value, or set {setting.name} instead.",
            )
        value = parse(setting, text, image.vllm)
        if setting.name in given and values[setting.name] != value:
            raise ContradictionError(
                f"{setting.name} is set to {values[setting.name]}, but {flag} says {text}.",
                setting=setting.name,
                value=str(values[setting.name]),
                allowed="one of the two",
                remedy=f"Leave out either {setting.name} or {flag}.",
            )
        values[setting.name] = value
        given.add(setting.name)
    return rest


def _check_versions(image: Image, values: Mapping[str, Value], given: set[str]) -> None:
    for name in sorted(given):
        setting = image.settings[name]
        if setting.since and values[name] is not None and not versions.at_least(image.vllm, setting.since):
            raise NotInThisVllmError(
                f"{name} needs vLLM {setting.since}; this image has {image.vllm}.",
                setting=name,
                value=shown(setting, str(values[name])),
                allowed="unset",
                remedy=f"Leave {name} out, or use an image with a newer vLLM.",
            )


def _check_contradictions(values: Mapping[str, Value], given: set[str]) -> None:
    if {"MODEL", "MODEL_PATH"} <= given and values["MODEL"] != values["MODEL_PATH"]:
        raise _contradiction("MODEL_PATH", values, "MODEL", "both name the model", "Leave one of them out.")
    if {"VLLM_API_KEY", "VLLM_API_KEY_FILE"} <= given:
        raise ContradictionError(
            "VLLM_API_KEY and VLLM_API_KEY_FILE are both set.",
            setting="VLLM_API_KEY_FILE",
            value=str(values["VLLM_API_KEY_FILE"]),
            allowed="one of the two",
            remedy="Keep the file: a variable shows up in `docker inspect`.",
        )
    tokens, sequences = values.get("MAX_NUM_BATCHED_TOKENS"), values.get("MAX_NUM_SEQS")
    if isinstance(tokens, int) and isinstance(sequences, int) and tokens < sequences:
        raise _contradiction(
            "MAX_NUM_BATCHED_TOKENS",
            values,
            "MAX_NUM_SEQS",
            "every sequence of a batch needs one token at least",
            f"Set MAX_NUM_BATCHED_TOKENS to {sequences} or more, or lower MAX_NUM_SEQS to {tokens}.",
        )
    if values.get("ENABLE_TURBOQUANT") is True and "KV_CACHE_DTYPE" in given:
        dtype = str(values["KV_CACHE_DTYPE"] or "auto")
        if not dtype.startswith("turboquant_"):
            raise _contradiction(
                "KV_CACHE_DTYPE",
                values,
                "ENABLE_TURBOQUANT",
                "TurboQuant is itself a number format of the KV cache",
                "Leave KV_CACHE_DTYPE out, or set ENABLE_TURBOQUANT=0.",
            )
    if "DFLASH_NUM_SPEC_TOKENS" in given and values.get("DFLASH_DRAFTER") is None:
        raise _contradiction(
            "DFLASH_NUM_SPEC_TOKENS",
            values,
            "DFLASH_DRAFTER",
            "there is no drafter that could draft tokens",
            "Name a drafter in DFLASH_DRAFTER, or leave DFLASH_NUM_SPEC_TOKENS out.",
        )
    if (
        "TOOL_CALL_PARSER" in given
        and values["TOOL_CALL_PARSER"]
        and values["ENABLE_AUTO_TOOL_CHOICE"] is False
    ):
        raise _contradiction(
            "TOOL_CALL_PARSER",
            values,
            "ENABLE_AUTO_TOOL_CHOICE",
            "without automatic tool choice the parser is never used",
            "Set ENABLE_AUTO_TOOL_CHOICE=1, or leave TOOL_CALL_PARSER out.",
        )


def _contradiction(
    name: str, values: Mapping[str, Value], other: str, why: str, remedy: str
) -> ContradictionError:
    value = values.get(other)
    against = "off" if value is None else str(value)
    return ContradictionError(
        f"{name} does not go with {other}={against}: {why}.",
        setting=name,
        value=str(values.get(name)),
        allowed=f"a value that goes with {other}={against}",
        remedy=remedy,
    )


def _api_key(values: Mapping[str, Value], environment: Mapping[str, str]) -> str:
    key = environment.get("VLLM_API_KEY", "").strip()
    path = values.get("VLLM_API_KEY_FILE")
    if not isinstance(path, str):
        return key
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - see image.py
            key = file.read().strip()
    except (OSError, ValueError) as error:
        raise _key_file(path, f"cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not key or len(key.split()) != 1:
        raise _key_file(path, "does not hold one word")
    return key


def _key_file(path: str, problem: str) -> StartError:
    return KeyFileError(
        f"The file with the API key {problem}.",
        setting="VLLM_API_KEY_FILE",
        value=path,
        allowed="a readable file that holds the key and nothing else",
        remedy=f"Mount the file: -v /path/on/the/host:{path}:ro",
    )


def _notes(image: Image, values: Mapping[str, Value], given: set[str]) -> Iterable[str]:
    if "MODEL" in given and values["MODEL"] != image.model["model"] and "DFLASH_DRAFTER" not in given:
        yield f"{values['MODEL']} is not this image's model: its drafter and revision are left out"
