"""Note the lines in which vLLM says which kernels and backends it chose.

vLLM says so in its log only, in any of its processes. Python runs this file at the start of each of them; it looks
at log records as they are made and writes the telling ones to the file that IMAGEFACTORY_CHOICES names. Nothing that
goes wrong here may reach vLLM.
"""  # noqa: INP001 - found by PYTHONPATH

import logging
import os

_FILE = os.environ.get("IMAGEFACTORY_CHOICES")
_TELLING = ("backend", "GEMM", "native support for FP", "LinearKernel")


def _watch(path: str) -> None:
    make = logging.getLogRecordFactory()

    def making(*arguments: object, **named: object) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            if record.name.startswith("vllm") and any(word in str(record.msg) for word in _TELLING):
                line = record.getMessage().replace("\n", " ")[:2000]
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.write(descriptor, f"{line}\n".encode())
                os.close(descriptor)
        except Exception:  # noqa: BLE001, S110 - see above
            pass
        return record

    logging.setLogRecordFactory(making)


if _FILE:
    _watch(_FILE)
