"""Guards a server with its key, hides the key in its log, and copies log lines about its kernels and start to a file.

The guard also answers for the server what notes below the folder in IMAGEFACTORY_NOTES say about it.

Python runs this file when a process of the server starts. IMAGEFACTORY_LOG describes the server and the file; on the
signal in IMAGEFACTORY_STACKS a process writes what it is doing. No error about the log may reach the server; without
its guard it must not run.
"""  # noqa: INP001 - found by PYTHONPATH

import faulthandler
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def _copier(task: dict[str, Any]) -> Callable[[logging.LogRecord], None]:
    """Return what copies a record to a file if it is one to copy."""

    def copy(record: logging.LogRecord) -> None:
        template = str(record.msg) if record.name.startswith(task["logger"]) else ""
        step = next((step for step in task["steps"] if template.startswith(step)), "")
        if step or any(word in template for word in task["telling"]):
            line = (step or record.getMessage()).replace("\n", " ")[:2000]
            descriptor = os.open(task["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.write(descriptor, f"{time.monotonic():.3f} {line}\n".encode())
            os.close(descriptor)

    return copy


def _hider(key: str) -> Callable[[logging.LogRecord], None]:
    """Return what hides a key in a record; servers log their arguments."""
    secrets = (key, repr(key)[1:-1])

    def hidden(value: object) -> object:
        text = value if isinstance(value, str) else str(value) if isinstance(value, (dict, list)) else ""
        if not any(secret in text for secret in secrets):
            return value
        for secret in secrets:
            text = text.replace(secret, "(hidden)")
        return text

    def hide(record: logging.LogRecord) -> None:
        record.msg = hidden(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(map(hidden, record.args))

    return hide


def _watch(task: dict[str, Any], key: str) -> None:
    steps = [_hider(key)] if key else []
    if task["file"]:
        steps.append(_copier(task))
    make = logging.getLogRecordFactory()

    def making(*arguments: object, **named: object) -> logging.LogRecord:
        record = make(*arguments, **named)
        for step in steps:
            with suppress(Exception):
                step(record)
        return record

    logging.setLogRecordFactory(making)


if os.environ.get("VLLM_API_KEY") or "IMAGEFACTORY_NOTES" in os.environ:
    try:
        import imagefactory_guard  # type: ignore[import-not-found] # found by PYTHONPATH

        imagefactory_guard.install(os.environ)
    except BaseException as error:  # noqa: BLE001 - Python would go on
        sys.stderr.write(f"[serve] the server cannot be guarded: {type(error).__name__}\n")
        os._exit(68)
if "IMAGEFACTORY_LOG" in os.environ:
    with suppress(Exception):
        _watch(json.loads(os.environ["IMAGEFACTORY_LOG"]), os.environ.get("VLLM_API_KEY", ""))
if "IMAGEFACTORY_STACKS" in os.environ:
    with suppress(Exception):
        # To the log itself: a server may have replaced sys.stderr. All threads would be hundreds of lines.
        faulthandler.register(int(os.environ["IMAGEFACTORY_STACKS"]), file=2, all_threads=False)
