"""Notes every file that a Python process opens, imports, loads or starts, in a file beside this one.

Runs inside a traced container, at the start of every Python process, whatever its version. No error in here may reach
the program.
"""

import os
import sys
from contextlib import suppress

FOLDER = os.environ.get("IMAGEFACTORY_TRACE", "/trace")
_FIRST = {"open", "ctypes.dlopen", "subprocess.Popen", "os.exec", "os.posix_spawn"}
"""Events whose first argument is a path or the name of a program; that of `import` has the path second."""


def _trace(folder: str) -> None:
    out = os.open(f"{folder}/opened.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    seen: set[str] = set()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event not in _FIRST and event != "import":
            return
        try:
            path = arguments[1 if event == "import" else 0]
            text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
            if text and text not in seen:
                seen.add(text)
                os.write(out, os.fsencode(f"{_found(text)}\n"))
        except Exception:  # noqa: BLE001, S110 - see above
            pass

    sys.addaudithook(note)


def _found(name: str) -> str:
    """Return the absolute path of a file, or of a program on the PATH."""
    folders = [] if "/" in name else os.get_exec_path()
    candidates = [f"{folder}/{name}" for folder in folders]
    return next((path for path in candidates if os.access(path, os.X_OK)), os.path.abspath(name))  # noqa: PTH100


with suppress(OSError):
    _trace(FOLDER)
