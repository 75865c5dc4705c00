"""The options that commands share: help texts, and checks that run before any work starts.

Numbers arrive as text: when Invoke converts them, its errors name neither the option nor the reason.
"""

import os
import re
import tempfile
from pathlib import Path

from imagefactory.cli.failures import from_system
from imagefactory.errors import UsageError
from imagefactory.store.paths import expand_home, open_regular

TARGETS = "what to act on: MODEL[@VERSION][/ARCH[/MACHINE]], a glob, or all; repeatable"
SET = "a setting as NAME=VALUE; repeatable (see docs/serving.md)"
UPGRADE = "upgrade this package (or base, companions, models, or all) to its newest version; repeatable"
HELP = {
    "target: list[str]": f"{TARGETS} (default: the first model)",
    "target: str": "which image: MODEL[@VERSION][/ARCH[/MACHINE]] (default: the first model)",
    "vllm: str": "the vLLM version (default: as in matrix.yaml)",
    "upgrade: list[str]": UPGRADE,
    "key: str": "sign with this key (default: FACTORY_SIGNING_KEY, your own key, or the CI job's identity)",
    "key: list[str]": "a public key to trust; repeatable (default: keys/*.pub and the workflows that may sign)",
    "answers_changed: str": "promote images although their answers changed, for this reason; it stays in the history",
    "unsigned: bool": "also promote unsigned images, for a private registry",
    "set: list[str]": SET,
    "profile: str": "what to measure: quick (default), chat, texts, cards, users, long or start (docs/benchmarks.md)",
    "dataset: str": "prompts of mt-bench, gsm8k, math500, humaneval, mbpp or a file of JSON lines; nothing is fetched",
    "temperature: str": "the temperature of requests (default: 0)",
    "thinking: str": "on or off: ask the model to think, or not to (default: as its template has it)",
    "with_tools: bool": "offer tools in each request, which makes prompts longer and drafts worse",
    "users: str": "numbers of users at once, such as 1,4,8 (default: the profile's)",
    "repeats: str": "repeats of each measurement (default: the profile's)",
    "limit: str": "seconds that one measurement may take before the server counts as hung (default: 1800)",
    "json: bool": "print JSON",
    "markdown: bool": "print Markdown",
}
"""What options mean unless a command says otherwise."""
_SHOWN = 60  # characters of a wrong value that an error repeats
_LONGEST_REASON = 200


def number(option: str, text: str, *, least: int = 0, most: int = 1_000_000, whole: bool = False) -> float | None:
    if not text.strip():
        return None
    # Python itself would also take 1_0, nan, and the digits of every script.
    if re.fullmatch(r"[0-9]+" if whole else r"[0-9]+(\.[0-9]+)?", text) and least <= float(text) <= most:
        return float(text)
    why = f"It has to be a {'whole ' if whole else ''}number from {least} to {most}."
    fix = "Name a number in that range, or leave the option out."
    raise unfit(option, f"{option} cannot be {text[:_SHOWN]!r}.", why, fix)


def whole_number(option: str, text: str, *, least: int = 0, most: int = 1_000_000) -> int | None:
    value = number(option, text, least=least, most=most, whole=True)
    return None if value is None else int(value)


def processes(option: str, text: str) -> int | None:
    """Return how many processes to run at the same time; more than 1024 would only compete for memory."""
    return whole_number(option, text, least=1, most=1024)


def path(option: str, text: str) -> Path | None:
    return expand_home(text, option).absolute() if text else None


def existing(option: str, text: str, *, folder: bool) -> Path:
    path = _path(option, text)
    try:
        (os.scandir(path) if folder else open_regular(path)).close()
    except OSError as error:
        raise from_system(error, option) or error from None
    return path


def new_file(option: str, text: str) -> Path:
    """Return the path of a file to write, in an existing, writable folder."""
    path = _path(option, text)
    if path.is_dir():
        why = "There is a folder of that name."
    elif not path.parent.is_dir():
        why = "Its folder does not exist."
    elif path.exists():
        why = "" if path.is_file() and os.access(path, os.W_OK) else "You cannot write to it."
    else:
        why = _why_unwritable(path)
    if why:
        raise _unusable("file", option, path, why)
    return path


def new_folder(option: str, text: str) -> Path | None:
    """Return the path of a folder to write, which can be made if it is missing; None if the option was not given."""
    path = _path(option, text) if text else None
    if path is not None and (why := _why_unwritable(path)):
        raise _unusable("folder", option, path, why)
    return path


def _why_unwritable(path: Path) -> str:
    """Try to write where a path would be made; /proc, links in a circle and full disks refuse only that."""
    nearest = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
    try:
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        return f"{nearest}: {error.strerror}."
    return ""


def _unusable(what: str, option: str, path: Path, why: str) -> UsageError:
    return UsageError(
        "output-unusable",
        f"The {what} cannot be written.",
        where=f"{option} {str(path)[: 4 * _SHOWN]}",
        why=why,
        fix=f"Name a {what} in a folder that exists and that you can write to.",
    )


def at_most_one(**given: object) -> None:
    """Raise an error if several of these options were given; they are named as in Python."""
    named = [f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value]
    if len(named) > 1:
        what = f"{' and '.join(named)} cannot be used together."
        raise unfit(named[-1], what, "They exclude each other.", "Use only one of them.")


def filled(option: str, text: str, needed: str = "") -> str:
    """Return what an option was given; `needed` says what to give if the command cannot do without it."""
    if text.strip():
        return text
    if needed:
        raise unfit(option, f"{option} is missing.", "The command cannot do without it.", needed)
    why = "It needs a value; a variable may be unset."
    raise unfit(option, f"{option} is empty.", why, "Give it a value, or leave the option out.")


def reason(option: str, text: str) -> str:
    """Check a reason that others are going to read: a line of ASCII."""
    if len(text) <= _LONGEST_REASON and text.isascii() and text.isprintable():
        return text.strip()
    why = f"The catalog keeps a line of up to {_LONGEST_REASON} letters, digits and signs of ASCII."
    fix = "Say it in one shorter line, without other letters."
    raise unfit(option, f"{option} cannot be {text[:_SHOWN]!r}.", why, fix)


def unfit(option: str, what: str, why: str, fix: str) -> UsageError:
    return UsageError("bad-option", what, where=f"the {option} option", why=why, fix=fix)


def _path(option: str, text: str) -> Path:
    return expand_home(filled(option, text), option).absolute()
