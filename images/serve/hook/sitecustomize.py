"""Copies the log lines about vLLM's kernels, backends and start to the file in IMAGEFACTORY_CHOICES, with their times.

Any process of vLLM may log them, and only there are they found. Python runs this file when a process starts. No error
in here may reach vLLM.
"""  # noqa: INP001 - found by PYTHONPATH

import logging
import os
import time

_FILE = os.environ.get("IMAGEFACTORY_CHOICES")
_TELLING = ("backend", "GEMM", "native support for FP", "LinearKernel", "init engine (")
_STEPS = ("non-default args", "Starting to load model", "Loading model from")
"""Lines that only mark a moment: their arguments, which may be secrets, are not copied."""


def _watch(path: str) -> None:
    make = logging.getLogRecordFactory()

    def making(*arguments: object, **named: object) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            template = str(record.msg) if record.name.startswith("vllm") else ""
            step = template.startswith(_STEPS)
            if step or any(word in template for word in _TELLING):
                line = (template if step else record.getMessage()).replace("\n", " ")[:2000]
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                os.write(descriptor, f"{time.monotonic():.3f} {line}\n".encode())
                os.close(descriptor)
        except Exception:  # noqa: BLE001, S110 - see above
            pass
        return record

    logging.setLogRecordFactory(making)


if _FILE:
    _watch(_FILE)
