"""Hands the API key to SGLang, which reads it from its command line or from a configuration file, and logs it.

Arguments are in every list of processes, so the key travels in a file that only the user of the container can read. The
hook in SGLang's processes hides it in their logs.
"""

import json
import os
from collections.abc import Mapping, Sequence

from ... import own_files
from ...errors import StartError
from ...hiding import HIDDEN, KEY_FLAG
from ...keys import Secrets
from ..server import Handover, hook_variables
from .log import LINES

ADMIN_FLAG = "--admin-api-key"
CONFIG_FLAG = "--config"
SHORTEST = len("--ap")


def check(words: Sequence[str], secrets: Secrets) -> None:
    """Refuse keys that SGLang cannot take, or would show."""
    names = [word.partition("=")[0].replace("_", "-") for word in words]
    cut = [name for name in names if len(name) >= SHORTEST]  # argparse takes what is not ambiguous
    if any(ADMIN_FLAG.startswith(name) for name in cut):
        what = f"{ADMIN_FLAG} would be in every list of processes, and in SGLang's log."
        remedy = f"Leave {ADMIN_FLAG} out; with a key, the endpoints for administrators need it too."
        allowed = "one key for everything, in VLLM_API_KEY_FILE"
        raise StartError("bad-value", what, "EXTRA_ARGS", ADMIN_FLAG, allowed, remedy=remedy)
    if any(KEY_FLAG.startswith(name) for name in cut) or secrets.api_key.startswith("-"):
        what = "SGLang takes a key that does not begin with a hyphen; and the flag is not to be cut short."
        remedy = "Make a key with `openssl rand -hex 32`, and put it into VLLM_API_KEY_FILE."
        raise StartError("bad-value", what, KEY_FLAG, HIDDEN, "one key", remedy=remedy)
    if secrets.api_key and CONFIG_FLAG in names:
        what = f"SGLang reads one file of {CONFIG_FLAG}, and the key needs it."
        allowed = "a key, or a configuration file of your own"
        remedy = "Give the options of the file as flags, in EXTRA_ARGS."
        raise StartError("contradiction", what, "EXTRA_ARGS", CONFIG_FLAG, allowed, remedy=remedy)


def hand_over(words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
    """Write the key to a file for SGLang, and have the hook hide it in the log."""
    check(words, secrets)
    environment = secrets.environment(variables)
    if not secrets.api_key:
        return Handover(tuple(words), environment)
    try:
        file = own_files.write(f"key.{os.getpid()}.yaml", json.dumps({"api-key": secrets.api_key}, ensure_ascii=False))
    except OSError as error:
        what = f"The API key cannot be written to a file for SGLang: {error.strerror or error}."
        allowed = f"a folder in {own_files.PLACE} that belongs to the container's user"
        remedy = f"Start the container with `--tmpfs {own_files.PLACE}`, or writable."
        raise StartError("bad-key-file", what, "VLLM_API_KEY", "", allowed, remedy=remedy) from None
    environment |= hook_variables("sglang", LINES, "", environment)
    return Handover((*words, CONFIG_FLAG, file), environment, file)
