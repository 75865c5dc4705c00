"""Measures pushing a changed mod from a machine with an empty cache to a registry that has the rest.

Set FACTORY_REGISTRY to a registry that `./inv push --target TARGET` was run against from this checkout, and run
`.venv/bin/python -m tests.bench.publish_mod`. It changes the target's last mod in a copy of the checkout, and counts
the bytes that sockets carry, separately for the package index and the registry. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANCHOR = "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE\n"
received: Counter[str] = Counter()
sent: Counter[str] = Counter()


def count_bytes() -> None:
    """Count what every socket receives and sends: to this machine (a registry), or to others."""

    def peer(connection: socket.socket) -> str:
        try:
            return "registry" if connection.getpeername()[0] in {"127.0.0.1", "::1"} else "network"
        except OSError:
            return "network"

    def counting(method: Callable[..., Any], counter: Counter[str], measure: Callable[..., int]) -> Any:
        def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            result = method(self, *arguments, **options)
            counter[peer(self)] += measure(result, *arguments)
            return result

        return counted

    for kind in (socket.socket, ssl.SSLSocket):
        kind.recv_into = counting(kind.recv_into, received, lambda result, *_: result)  # type: ignore[method-assign]
        kind.sendall = counting(kind.sendall, sent, lambda _, data, *__: len(data))  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="qwen3.5-27b-nvfp4-tq")
    parser.add_argument("--mod", default="turboquant-cuda-graph")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="publish-mod-") as folder:
        checkout = Path(folder) / "checkout"
        skipped = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*cache")
        shutil.copytree(ROOT, checkout, ignore=skipped)
        manifest = checkout / "mods" / options.mod / "mod.yaml"
        text = manifest.read_text("utf-8")
        changed = text.replace(ANCHOR, f"{ANCHOR.rstrip()}  # {time.time_ns()}\n", 1)
        if changed == text:
            raise SystemExit(f"{manifest} has no {ANCHOR.strip()} to change")
        manifest.write_text(changed, "utf-8")
        os.environ["FACTORY_CACHE"] = str(Path(folder) / "cache")
        measure(checkout, options.target)


def measure(checkout: Path, target: str) -> None:
    count_bytes()
    began = time.monotonic()
    from imagefactory.cli.show.live import PlainDisplay  # noqa: PLC0415 - part of what is measured
    from imagefactory.cli.show.terminal import err  # noqa: PLC0415
    from imagefactory.oci.registry.repository import Repository  # noqa: PLC0415
    from imagefactory.plan.make import make_plan  # noqa: PLC0415
    from imagefactory.project.project import Project  # noqa: PLC0415
    from imagefactory.project.targets import select  # noqa: PLC0415
    from imagefactory.publish.outcomes import Outcomes  # noqa: PLC0415
    from imagefactory.publish.staging import stage  # noqa: PLC0415

    project = Project(checkout)
    with Repository.open(project.matrix.effective_registry) as repository:
        watch = PlainDisplay(err)
        [cell] = select(project.matrix, [target])
        plans = Outcomes({cell: make_plan(project, cell)})
        outcomes = stage(project, repository, plans, watch, err.print, pushing=watch)
        outcomes.refuse_failures("pushed")
        staged = outcomes.finished[cell]
    seconds = time.monotonic() - began
    print(f"{staged.plan.target}: {staged.image.digest}")
    print(f"{'seconds':<28}{seconds:12.2f}")
    print(f"{'received from the network':<28}{received['network'] / 1e6:12.3f} MB")
    print(f"{'received from the registry':<28}{received['registry'] / 1e6:12.3f} MB")
    print(f"{'sent to the registry':<28}{sent['registry'] / 1e6:12.3f} MB")
    uploaded, present = (staged.pushed.count(state) for state in ("uploaded", "present"))
    print(f"{'blobs sent, there before':<28}{uploaded:6}{present:6}")


if __name__ == "__main__":
    main()
