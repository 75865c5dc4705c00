"""Finds the API key, however it was given: a server whose key gets lost would be open to everyone.

Servers log their arguments, so a secret among them is passed on in another way.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import StartError
from .redaction import HIDDEN, KEY_FLAG, TOKEN_FLAG, is_flag

KEY, FILE = "VLLM_API_KEY", "VLLM_API_KEY_FILE"
PAIR_FILE = "PAIR_SECRET_FILE"
LONGEST = 10_000
"""Characters of a key file."""
OTHER_SERVICES = ("VLLM_USE_RUST_FRONTEND", "SGLANG_GRPC_PORT")
_OTHER_SERVICE = re.compile(r"--(?:smg|grp)")
_KEY_IN_CONFIG = re.compile(r"""^[ \t]*["']?(?:admin[-_])?api[-_]key\b""", re.MULTILINE)
SIMILAR = re.compile(r"_*(?:VLLM|SGLANG)_*(?:SERVER_*)?API_*(?:KEY|TOKEN)", re.IGNORECASE)
"""Names that somebody could take for that of the key."""


class Secrets(NamedTuple):
    """The secrets of a start."""

    words: tuple[str, ...]
    api_key: str = ""
    token: str = ""
    """For downloads from Hugging Face."""
    flags: tuple[str, ...] = ()
    """The flags that held a secret."""

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for the server; vLLM warns about names like its own that it does not know."""
        found = {name: value for name, value in variables.items() if name != FILE}
        found |= {KEY: self.api_key} if self.api_key else {}
        return found | ({"HF_TOKEN": self.token} if self.token else {})


def find(environment: Mapping[str, str], arguments: Iterable[str] = ()) -> Secrets:
    """Find the secrets in the environment and among arguments; refuse a key that would have no effect."""
    words, keys = _take(list(arguments), KEY_FLAG)
    words, tokens = _take(words, TOKEN_FLAG, most=1)
    if tokens == []:
        words.append(TOKEN_FLAG)  # the token that `hf auth login` stored
    flags = [flag for flag, values in ((KEY_FLAG, keys), (TOKEN_FLAG, tokens)) if values]
    given = {name: environment[name].strip() for name in (KEY, FILE) if name in environment}
    if keys is not None:
        keys = [key for key in keys if key.strip()]
        given[KEY_FLAG] = " ".join(keys)
    for name, value in given.items():
        if not value:
            raise _unprotected(f"{name} is given, but empty", name)
    if len(given) > 1:
        first, second = list(given)[:2]
        remedy = f"Keep {FILE}: `docker inspect` shows variables and arguments."
        remedy = remedy if FILE in given else f"Leave out {KEY_FLAG}."
        what = f"{first} and {second} are both given."
        raise StartError("contradiction", what, second, HIDDEN, "one of the two", remedy=remedy)
    if not given:
        _refuse_lost(environment)
    key = " ".join(keys) if keys else _read(given[FILE]) if FILE in given else given.get(KEY, "")
    if not (key.isascii() and key.isprintable()) or " " in key:
        what = "The API key is not one word of printable ASCII characters."
        setting = (next(iter(given)), HIDDEN, "one key, for all clients")
        raise StartError("bad-value", what, *setting, remedy="Make a key with `openssl rand -hex 32`.")
    _refuse_unguarded(words, environment, key)
    return Secrets(tuple(words), key, tokens[0] if tokens else "", tuple(flags))


def _take(words: list[str], flag: str, most: int | None = None) -> tuple[list[str], list[str] | None]:
    """Take a flag with its values out of a command; the values are None if it is not there."""
    rest: list[str] = []
    values: list[str] | None = None
    taking = False
    for word in words:
        if is_flag(word, flag):
            _, equals, value = word.partition("=")
            values, taking = [value] if equals else [], not equals
        elif taking and values is not None and not word.startswith("-") and len(values) != most:
            values.append(word)
        else:
            taking = False
            rest.append(word)
    return rest, values


def _refuse_lost(environment: Mapping[str, str]) -> None:
    for name in filter(SIMILAR.match, environment):
        raise _unprotected(f"There is no setting {name}", name)
    # Only the recommended command has these flags; there, the key has been found.
    if any(is_flag(word.strip("\"'"), KEY_FLAG) for word in environment.get("EXTRA_ARGS", "").split()):
        raise _unprotected(f"EXTRA_ARGS, with its {KEY_FLAG}, has no effect on a command of your own", "EXTRA_ARGS")


def _refuse_unguarded(words: Iterable[str], environment: Mapping[str, str], key: str) -> None:
    """Refuse what serves beside the guarded API, and a key where only the server reads it."""
    other = next((word for word in words if _OTHER_SERVICE.match(word)), "")
    other = other or next((name for name in OTHER_SERVICES if environment.get(name, "0") not in {"", "0"}), "")
    if key and other:
        raise _unprotected(f"{other} starts a service that does not ask for the key", other)
    for path in _take(list(words), "--config")[1] or ():
        with suppress(OSError, ValueError), Path(path).open(encoding="utf-8") as file:
            if _KEY_IN_CONFIG.search(file.read(LONGEST * 100)):
                raise _unprotected(f"{path} has a key, which guards only a part of the API", "--config")


def _unprotected(problem: str, name: str) -> StartError:
    what = f"{problem}: anyone who reaches the port could use the server."
    allowed = f"a key in {KEY}, or a file with it in {FILE}"
    remedy = f"Set one of them; to serve without a key, leave out {name}."
    return StartError("unprotected", what, name, allowed=allowed, remedy=remedy)


def pair_secret(path: str) -> str:
    """Return the secret that all nodes were given; empty without one."""
    return _read(path, PAIR_FILE, "secret of the nodes") if path else ""


def _read(path: str, setting: str = FILE, kind: str = "API key") -> str:
    problem = "does not contain exactly one word"
    try:
        with Path(path).open(encoding="utf-8") as file:
            words = file.read(LONGEST).split()
    except (OSError, ValueError) as error:
        words, problem = [], f"cannot be read: {getattr(error, 'strerror', None) or 'not text'}"
    if len(words) != 1:
        # What is no path may be the key itself, by mistake.
        shown = path if path.startswith(("/", ".")) else HIDDEN
        what, remedy = f"The file with the {kind} {problem}.", f"Mount the file: -v /path/on/the/host:{shown}:ro"
        allowed = f"a readable file with the {kind} and nothing else"
        raise StartError("bad-key-file", what, setting, shown, allowed, remedy=remedy)
    return words[0]
