"""Reads settings from environment variables and arguments, and checks them.

An argument or EXTRA_ARGS wins over the environment, which wins over the image's default. An image sets its defaults
as environment variables too, so a variable that equals the default counts as not given.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from . import keys, rules
from .errors import StartError
from .image import Image, Setting
from .redaction import HIDDEN

Value = str | int | float | bool | dict[str, Any] | list[str] | None
UNLIMITED = 2**63
_BREAKING = re.compile("[\\0-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]")
"""What ends a line somewhere, or is no text."""


class Settings(NamedTuple):
    """The values of this start."""

    values: dict[str, Value]
    given: frozenset[str]
    """Names of settings that differ from the image's default."""
    extra: tuple[str, ...]
    """Flags for the server that no setting covers."""
    secrets: keys.Secrets

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def fraction(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def words(self, name: str) -> list[str]:
        value = self.values.get(name)
        return value if isinstance(value, list) else []


def read(image: Image, environment: Mapping[str, str], arguments: Iterable[str] = ()) -> Settings:
    _refuse_lacking(image, environment)
    values: dict[str, Value] = {}
    given: set[str] = set()
    for setting in image.settings.values():
        text = environment.get(setting.name, "").strip()
        if text and text != setting.default:
            given.add(setting.name)
        values[setting.name] = _parse(setting, text or setting.default, image)
    extra = [*_extra_args(image.settings["EXTRA_ARGS"], environment.get("EXTRA_ARGS", "")), *arguments]
    secrets = keys.find(environment, extra)
    rest = _take_flags(image, secrets.words, values, given)
    _check_versions(image, values, given)
    _check_contradictions(image, values, given)
    values[keys.KEY] = None
    return Settings(values, frozenset(given), tuple(rest), secrets)


def _refuse_lacking(image: Image, environment: Mapping[str, str]) -> None:
    # Ignoring them would not be what the user asked for.
    for name, instead in image.refused.items():
        value = environment.get(name, "").strip()
        if value:
            what = f"{name} is not a setting of {image.title}."
            raise StartError("not-in-this-server", what, name, value, "unset", remedy=instead)


def _parse(setting: Setting, text: str, image: Image) -> Value:
    if text in {"", setting.unset}:
        return None
    by_kind = {"whole": _number, "fraction": _number, "switch": _switch}
    if setting.kind in by_kind:
        return by_kind[setting.kind](setting, text)
    if setting.choices:
        return _choice(setting, text, image)
    if _BREAKING.search(text):
        raise _refused(setting, text, "contains a line break", "Use a single line.")
    if setting.kind == "counts":
        return _counts(setting, text)
    return text.replace(",", " ").split() if setting.kind == "list" else text


def allowed(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    words = str(rules.common()["allowed"].get(setting.kind, "text"))
    if setting.kind in {"whole", "fraction"}:
        words = f"{_noun(setting)} from {_short(setting.minimum)} to {_short(setting.maximum)}"
    return f"{words}, or {setting.unset}" if setting.unset else words


def _refused(
    setting: Setting, text: str, problem: str, remedy: str, name: str = "bad-value", *, only: str = ""
) -> StartError:
    # Flags that cannot be told apart may hold a secret.
    value = HIDDEN if setting.name in {keys.KEY, "EXTRA_ARGS"} else text
    return StartError(name, f"{setting.name} {problem}.", setting.name, value, only or allowed(setting), remedy=remedy)


def _noun(setting: Setting) -> str:
    return "a whole number" if setting.kind == "whole" else "a number"


def _short(number: float | None) -> str:
    return "any" if number is None else f"{number:g}" if number < 1000 else f"{number:.0f}"  # noqa: PLR2004


def _number(setting: Setting, text: str) -> int | float:
    remedy = f"Set {setting.name} to a number in that range, or leave it out for {setting.default or 'auto'}."
    try:
        number = _figure(setting, text)
    except (ValueError, OverflowError):
        raise _refused(setting, text, f"is not {_noun(setting)}", remedy) from None
    low, high = setting.minimum, setting.maximum
    if (low is not None and not low <= number) or (high is not None and not number <= high):  # not a NaN either
        raise _refused(setting, text, "is out of range", remedy, "out-of-range")
    return number


def _figure(setting: Setting, text: str) -> int | float:
    """Read a number, which may have a unit: 32k, 1.5k, 100 GB, 80 %."""
    # int() and float() accept underscores and non-ASCII digits, which the servers do not.
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    word, units = text.lower(), rules.common()["units"][setting.unit]
    unit = next((unit for unit in units if word.endswith(unit)), "")
    figure, factor = word.removesuffix(unit), units.get(unit, 1)
    if setting.kind == "fraction":
        return round(float(figure) * factor, 9) if unit else float(figure)
    # 1.3k is near enough to a whole number, 0.5 GB is not: it would be 0, for `never`.
    return int(float(figure) * factor) if factor > 1 else int(figure)


def _switch(setting: Setting, text: str) -> bool:
    yes, no = rules.common()["yes"], rules.common()["no"]
    if text.lower() not in yes + no:
        remedy = f"Set {setting.name} to 1 or 0; true, yes, on, false, no and off work too."
        raise _refused(setting, text, "is a switch", remedy)
    return text.lower() in yes


def _counts(setting: Setting, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not _count(value):
        remedy = 'Quote it for the shell: \'{"image": 0, "video": 0}\'.'
        raise _refused(setting, text, "is not a JSON object of whole numbers", remedy)
    return value


def _count(value: object) -> bool:
    if isinstance(value, dict):
        return all(_count(number) for number in value.values())
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < UNLIMITED


def _choice(setting: Setting, text: str, image: Image) -> str:
    value = text.lower()
    if value not in setting.choices:
        remedy = f"Use one of them, or leave {setting.name} out for {setting.default or 'auto'}."
        near = get_close_matches(value, setting.choices, n=2, cutoff=0.6)
        remedy = f"Did you mean {' or '.join(near)}?" if near else remedy
        raise _refused(setting, text, f"does not accept {text!r}", remedy)
    since = setting.since_of.get(value, "")
    if since and not image.at_least(since):
        what = f"{setting.name}={text} needs {image.title} {since}; this image has {image.version}."
        here = ", ".join(word for word in setting.choices if image.at_least(setting.since_of.get(word, "0")))
        remedy = "Choose another value, or an image with a newer version."
        raise StartError("not-in-this-server", what, setting.name, text, here, remedy=remedy)
    return value


def _extra_args(setting: Setting, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        remedy = "Close every quotation mark; put JSON into single quotes."
        raise _refused(setting, text, f"cannot be split into words: {error}", remedy) from None


def _take_flags(image: Image, words: Iterable[str], values: dict[str, Value], given: set[str]) -> list[str]:
    """Set the settings that flags stand for, so that the checks see them; return the other flags."""
    by_flag = {setting.flag: setting for setting in image.settings.values() if setting.flag}
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, inline = word.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        positive = f"--{flag[5:]}" if flag.startswith("--no-") else flag
        setting = by_flag.get(positive)
        if setting is None:
            rest.append(word)
            continue
        if setting.kind == "switch":
            text: str | None = "0" if positive != flag else "1"
        else:
            text = inline if equals else next(remaining, None)
        if text is None:
            takes, remedy = f"{flag} followed by {allowed(setting)}", f"Add the value, or set {setting.name} instead."
            raise StartError("bad-value", f"{flag} has no value.", "EXTRA_ARGS", word, takes, remedy=remedy)
        value = _parse(setting, text, image)
        if setting.name in given and values[setting.name] != value:
            what = f"{setting.name} is set to {values[setting.name]}, but {flag} says {text}."
            clash = (setting.name, str(values[setting.name]), "one of the two")
            raise StartError("contradiction", what, *clash, remedy=f"Leave out either {setting.name} or {flag}.")
        values[setting.name] = value
        given.add(setting.name)
    return rest


def _check_versions(image: Image, values: Mapping[str, Value], given: set[str]) -> None:
    for name in sorted(given):
        setting = image.settings[name]
        if setting.since and values[name] is not None and not image.at_least(setting.since):
            problem = f"needs {image.title} {setting.since}; this image has {image.version}"
            remedy = f"Leave {name} out, or use an image with a newer version."
            raise _refused(setting, str(values[name]), problem, remedy, "not-in-this-server", only="unset")


def _check_contradictions(image: Image, values: Mapping[str, Value], given: set[str]) -> None:
    facts = rules.Facts(values, given, image.at_least)
    known = (*rules.common()["contradictions"], *rules.of_server(image.server)["contradictions"])
    for rule in rules.matching(known, facts):
        name, other = rule["setting"], rule["against"]
        value = values.get(other)
        against = f"{other}={'off' if value is None else int(value) if isinstance(value, bool) else value}"
        what, own = f"{name} conflicts with {against}: {rule['why']}.", values.get(name)
        clash = (name, "" if own is None else str(own), f"a value that works with {against}")
        raise StartError("contradiction", what, *clash, remedy=rule["remedy"])
