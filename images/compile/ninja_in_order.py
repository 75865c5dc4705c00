"""Runs ninja so that the longest objects start first, and only as many large ones at once as memory allows.

ninja has no priorities: of the steps that are ready, it takes the one that is first in its file. This program sorts the
steps in that file by their expected times, puts those that need much memory into a pool, and then runs the real ninja.
Neither changes a command, so nothing that is compiled already becomes outdated.

FACTORY_WEIGHTS names a JSON file with the expected times; a file beside it tells which objects there are. It may also
ask for one group of objects: then only these are compiled, and nothing is linked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

POOL = "factory_large"
GROUP_DONE = 75
"""The status that ends a build after one group of objects."""
_CHECKS = re.compile(r"/CMakeFiles/(CMakeTmp|CMakeScratch)(/|$)")
_BUILD = re.compile(r"^build (.+?\.o)\s*:", re.MULTILINE)
_ASSIGNS = re.compile(r"\w+ *=")


@dataclass(frozen=True)
class Call:
    """The arguments of a call of ninja."""

    folder: Path
    file: Path
    targets: tuple[str, ...]
    options: tuple[str, ...]

    @classmethod
    def read(cls, words: list[str], here: Path) -> Call | None:
        """Parse a call that builds something; return None for any other."""
        options: list[str] = []
        targets: list[str] = []
        values = {"-C": ".", "-f": "build.ninja"}
        rest = iter(words)
        for word in rest:
            if word in ("-t", "-n", "--version", "-h", "--help"):
                return None
            if word[:2] in ("-C", "-f", "-j", "-k", "-l", "-d", "-w"):
                value = word[2:] or next(rest, "")
                values[word[:2]] = value
                options += [word[:2], value]
            elif word.startswith("-"):
                options.append(word)
            else:
                targets.append(word)
        folder = here / values["-C"]
        if _CHECKS.search(str(folder)):
            return None
        return cls(folder, folder / values["-f"], tuple(targets), tuple(options))


def main() -> None:
    """Stand in for ninja."""
    ninja, words = real_ninja(), sys.argv[1:]
    call = Call.read(words, Path.cwd())
    told = os.environ.get("FACTORY_WEIGHTS")
    if call is None or not told or not call.file.exists():
        os.execv(ninja, [ninja, *words])  # noqa: S606 - the program that was asked for
    weights = json.loads(Path(told).read_text("utf-8"))
    objects = {name: weigh(name, weights)[0] for name in objects_of(ninja, call)}
    group = weights.get("group")
    if group:
        number, count = group
        chosen = split(objects, count)[number - 1]
        objects = {name: objects[name] for name in chosen}
    jobs, large, speed = at_once(objects, weights)
    rewrite(call.file, call.folder, weights | {"at_once": large})
    folder = os.path.relpath(call.folder, Path(told).parent)
    record = {"folder": folder, "at_once": speed, "objects": objects}
    Path(told).with_name("objects.json").write_text(json.dumps(record, indent=0), encoding="utf-8")
    print(f"{len(objects)} objects; {jobs} compilers at once, {large} of them with large objects", flush=True)
    if not group:
        os.execv(ninja, [ninja, *words, f"-j{jobs}"])  # noqa: S606 - the program that was asked for
    if objects:
        subprocess.run([ninja, *call.options, f"-j{jobs}", *objects], check=True)  # noqa: S603 - our own words
    print(f"FACTORY-GROUP {number}/{count} is compiled; nothing is linked", flush=True)
    raise SystemExit(GROUP_DONE)


def real_ninja() -> str:
    """Return the next ninja on the path."""
    own = Path(__file__).resolve().parent
    for folder in os.environ["PATH"].split(os.pathsep):
        path = Path(folder) / "ninja"
        if path.resolve().parent != own and os.access(path, os.X_OK):
            return str(path)
    raise SystemExit("ninja is not installed")


def weigh(name: str, weights: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds and gigabytes that an object is expected to take: as learnt, else by the first pattern."""
    seconds, gb = next(rule[1:] for rule in weights["rules"] if fnmatchcase(name, rule[0]))
    return weights["learnt"].get(name, seconds), gb


def is_large(name: str, weights: dict[str, Any]) -> bool:
    """Return whether an object needs more memory than most; without a figure for large ones, all count the same."""
    return bool(weights["large_gb"] > weights["job_gb"] and weigh(name, weights)[1] > weights["job_gb"])


def at_once(objects: dict[str, float], weights: dict[str, Any]) -> tuple[int, int, float]:
    """Return how many compilers run at once, how many of them with large objects, and how much faster than one.

    Memory may suffice for many small objects or for a few large ones; what counts is which choice ends first.
    """
    total = sum(objects.values())
    heavy = sum(seconds for name, seconds in objects.items() if is_large(name, weights))
    small, more = weights["job_gb"], weights["large_gb"] - weights["job_gb"]
    choices = []
    for jobs in range(weights["jobs"], 0, -1):
        fit = int((weights["memory_gb"] - jobs * small) // more) if heavy else jobs
        large = max(1, min(jobs, fit))
        if fit >= 1 or jobs == 1:
            choices.append((max(total / jobs, heavy / large), jobs, large))
    time, jobs, large = min(choices, key=lambda choice: choice[0])
    return jobs, large, total / time if time else float(jobs)


def objects_of(ninja: str, call: Call) -> list[str]:
    """Return the objects that the targets consist of, by name."""
    tool = ["-t", "inputs", *call.targets] if call.targets else ["-t", "targets", "all"]
    command = [ninja, "-C", str(call.folder), "-f", str(call.file), *tool]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words
    names = [line if call.targets else line.rpartition(": ")[0] for line in said.splitlines()]
    return sorted({name for name in (*names, *call.targets) if name.endswith(".o")})


def split(objects: dict[str, float], count: int) -> list[list[str]]:
    """Divide objects into groups of about the same time, always in the same way: the longest first, to the emptiest."""
    groups: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for name in sorted(objects, key=lambda name: (-objects[name], name)):
        emptiest = loads.index(min(loads))
        groups[emptiest].append(name)
        loads[emptiest] += objects[name]
    return groups


def rewrite(file: Path, folder: Path, weights: dict[str, Any]) -> None:
    """Sort a file of ninja and those that it includes; their times stay, so that nobody makes them again."""
    text, times = file.read_text("utf-8"), file.stat()
    for name in re.findall(r"^subninja (.+)$", text, re.MULTILINE):
        rewrite(folder / name, folder, weights)
    arranged = arrange(text, folder, weights)
    if arranged != text:
        writing = file.with_name(f".{file.name}.writing")
        writing.write_text(arranged, encoding="utf-8")
        os.utime(writing, ns=(times.st_atime_ns, times.st_mtime_ns))
        writing.rename(file)


def arrange(text: str, folder: Path, weights: dict[str, Any]) -> str:
    """Sort the steps that compile objects by their time, and put the large ones into a pool.

    Steps only change places with each other. If a variable is assigned between them, they stay where they are, since it
    may have another value elsewhere.
    """
    text = re.sub(rf"^(pool {POOL}\n  depth = .*\n|  pool = {POOL}\n)", "", text, flags=re.MULTILINE)
    blocks = re.split(r"(?<!\$\n)^(?=\S)", text, flags=re.MULTILINE)
    places = [number for number, block in enumerate(blocks) if _moves(block)]
    if places and not any(_ASSIGNS.match(block) for block in blocks[places[0] : places[-1]]):
        steps = [blocks[number] for number in places]
        steps.sort(key=lambda block: -_seconds(block, folder, weights))
        for number, block in zip(places, steps, strict=True):
            blocks[number] = block
    pooled = [_pooled(block, weights) for block in blocks]
    if pooled == blocks:
        return "".join(blocks)
    return "".join([f"pool {POOL}\n  depth = {weights['at_once']}\n", *pooled])


def _moves(block: str) -> bool:
    return _BUILD.match(block) is not None or block.startswith("subninja ")


def _seconds(block: str, folder: Path, weights: dict[str, Any]) -> float:
    """Return the time of a step, or of the longest step in an included file."""
    found = _BUILD.match(block)
    if found:
        return weigh(found[1], weights)[0]
    included = (folder / block.split(maxsplit=1)[1].strip()).read_text("utf-8")
    return max((weigh(name, weights)[0] for name in _BUILD.findall(included)), default=0.0)


def _pooled(block: str, weights: dict[str, Any]) -> str:
    found = _BUILD.match(block)
    if not found or not is_large(found[1], weights):
        return block
    lines = [line for line in block.splitlines(keepends=True) if not line.startswith("  pool = ")]
    step = next((number for number, line in enumerate(lines) if not line.endswith("$\n")), 0) + 1
    return "".join([*lines[:step], f"  pool = {POOL}\n", *lines[step:]])


if __name__ == "__main__":
    main()
