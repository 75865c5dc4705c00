"""Compiles modules of FlashInfer, with progress; ends its compilers when memory runs short or its parent ends.

Run with the server's Python and a JSON job as the only argument. It needs no GPU: FLASHINFER_CUDA_ARCH_LIST names the
chip.
"""  # noqa: INP001 - run by path

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from program.readings import memory  # type: ignore[import-not-found] # beside this file

EVERY = 30.0
"""Seconds between lines of progress."""


def say(text: str) -> None:
    sys.stderr.write(f"[serve] {text}\n")
    sys.stderr.flush()


def end(*_: object) -> None:
    """End this process and all of its compilers, each of which ninja gives a process group of its own."""
    deadline = time.monotonic() + 5
    while (others := session()) and time.monotonic() < deadline:
        for process in others:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def session() -> list[int]:
    """List the other processes of the session that this one leads, without those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, leader = path.read_text("ascii", "replace").rpartition(")")[2].split()[:4]
            if int(leader) == os.getpid() != int(path.parent.name) and state != "Z":
                found.append(int(path.parent.name))
    return found


def watch(floor: int, current: dict[str, Any]) -> None:
    """Report progress, and end everything if memory runs short."""
    said = time.monotonic()
    while True:
        time.sleep(1)
        _, left = memory()
        if left is not None and left < floor:
            left_over = f"{left / 1e9:.1f} GB of memory are left; it continues at first use"
            say(f"compiling {current['name']} ends: {left_over}")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if time.monotonic() - said > EVERY and current["spec"] is not None:
            said, seconds = time.monotonic(), time.time() - current["began"]
            say(f"compiling {current['name']}: {progress(current['spec'])}, {seconds:.0f} s")


def finished(folder: Path) -> int:
    """Count the objects that are finished, in this start or an earlier one, according to ninja's own log.

    It compiles only the others: a compile that was stopped goes on with the next object.
    """
    with suppress(OSError):
        lines = (folder / ".ninja_log").read_text("utf-8", "replace").splitlines()
        outputs = {Path(words[3]).name for line in lines if len(words := line.split("\t")) > 3}  # noqa: PLR2004
        return sum(path.name in outputs for path in folder.glob("*.o"))
    return 0


def progress(spec: Any) -> str:  # noqa: ANN401 - of FlashInfer
    return f"{finished(spec.build_dir)} of {len(spec.sources)} objects"


def compile_module(name: str, make: str, current: dict[str, Any]) -> str:
    """Compile a module unless it is there; return what happened."""
    from filelock import FileLock  # noqa: PLC0415 - of the server's packages

    module, _, function = make.partition(":")
    spec = getattr(import_module(module), function)()
    began = time.time()
    current.update(name=name, spec=spec, began=began)
    if finished(spec.build_dir):
        say(f"compiling {name} goes on: an earlier start left {progress(spec)}")
    spec.jit_library_path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(spec.lock_path, thread_local=False):
        spec.build(verbose=False, need_lock=False)
    current["spec"] = None
    return f"compiled {name} in {time.time() - began:.0f} s"


def main(job: dict[str, Any]) -> int:
    signal.signal(signal.SIGTERM, end)
    os.environ["MAX_JOBS"] = str(job["jobs"])
    current: dict[str, Any] = {"name": next(iter(job["modules"])), "spec": None, "began": time.time()}
    say(f"compiling {', '.join(job['modules'])} beside the start, {job['jobs']} at a time")
    threading.Thread(target=watch, args=(job["floor"], current), daemon=True).start()
    failed = 0
    for name, make in job["modules"].items():
        try:
            say(compile_module(name, make, current))
        except Exception as error:  # noqa: BLE001 - the server compiles it itself
            failed += 1
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            say(f"{name} could not be compiled beside the start, and is compiled at first use: {last[0][:300]}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
