"""Adds up numbers of all nodes with torch, and prints how fast; runs with the image's packages, beside no server.

`all_reduce.py JOB`: JOB is JSON with rank, nodes, head, port and limit. Prints one JSON object per line.
"""  # noqa: INP001 - a program in a folder to run

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

SMALL, ROUNDS = 1, 50
LARGE, REPEATS = {"gloo": 4_000_000, "nccl": 64_000_000}, 5
"""Numbers of four bytes: TCP through one core is slow, and a GPU is not busy with less."""


def main(job: dict[str, Any]) -> int:
    """Measure with each backend; end within the limit, whatever hangs."""
    step = ["meeting"]
    threading.Timer(job["limit"], lambda: _end(step[0], f"nothing for {job['limit']} s")).start()
    backends = {"gloo": "cpu"} | ({"nccl": "cuda"} if torch.cuda.is_available() else {})
    try:
        distributed.init_process_group(
            ",".join(f"{device}:{name}" for name, device in backends.items()),
            init_method=f"tcp://{job['head']}:{job['port']}",
            rank=job["rank"],
            world_size=job["nodes"],
            timeout=timedelta(seconds=job["limit"]),
        )
        for name, device in backends.items():
            step[0] = name
            latency = _seconds(SMALL, device, ROUNDS, job)
            seconds = _seconds(LARGE[name], device, REPEATS, job)
            _tell(backend=name, latency=latency, speed=4 * LARGE[name] / seconds)
    except Exception as error:  # noqa: BLE001 - torch raises all kinds
        _end(step[0], str(error).strip().partition("\n")[0])
    # Some threads of torch and NCCL never end when the other side is gone.
    os._exit(0)


def _seconds(count: int, device: str, rounds: int, job: dict[str, Any]) -> float:
    """Return how long an all-reduce takes; the first ones set up connections."""
    for measured in (2, rounds):
        numbers = torch.full((count,), job["rank"] + 1.0, device=device)
        distributed.all_reduce(numbers)
        if not bool((numbers == job["nodes"] * (job["nodes"] + 1) / 2).all()):  # 1 + 2 + …
            raise ValueError("the sum is wrong")
        began = time.monotonic()
        for _ in range(measured):
            distributed.all_reduce(numbers)
        if device == "cuda":
            torch.cuda.synchronize()
        spent = time.monotonic() - began
    return spent / rounds


def _end(step: str, reason: str) -> None:
    _tell(step=step, failure=reason)
    os._exit(1)


def _tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
