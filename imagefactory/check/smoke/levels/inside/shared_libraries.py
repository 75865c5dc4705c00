"""Runs ldd on every shared library of the environment; prints missing dependencies.

A library outside the linker's paths is still found if one of that name is loaded already, as `import torch` does for
its extensions. So only names that no file of the environment has count as missing.
"""

import json
import subprocess
import sys
from pathlib import Path

ELF = b"\x7fELF"
AT_ONCE = 100  # paths per process: fewer processes, and a command line of legal length


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == ELF


root = Path(sys.prefix)
libraries = sorted(path for path in root.rglob("*.so*") if path.is_file() and not path.is_symlink() and is_elf(path))
names = {path.name for path in root.rglob("*.so*")}
missing: dict[str, list[str]] = {}
for start in range(0, len(libraries), AT_ONCE):
    batch = libraries[start : start + AT_ONCE]
    done = subprocess.run(["/usr/bin/ldd", *map(str, batch)], capture_output=True, text=True, check=False)
    current = str(batch[0])  # ldd does not name a file that it gets alone
    for line in done.stdout.splitlines():
        if not line.startswith("\t"):
            current = line.rstrip(":")
        elif "=> not found" in line:
            name = line.split()[0]
            if name not in names:
                missing.setdefault(name, []).append(Path(current).relative_to(root).as_posix())
sys.stdout.write(json.dumps({"libraries": len(libraries), "missing": missing}) + "\n")
