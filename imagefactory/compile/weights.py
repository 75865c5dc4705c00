"""The time and memory that objects are expected to take: from compile.yaml, and better ones from earlier runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from imagefactory.compile.job import Request
from imagefactory.compile.settings import CompileSettings
from imagefactory.resolve.wheelhouse.keep import CompileInputs
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store

FACTORY: Final = Path("/factory")
"""The folder of the compile inside the container."""
WEIGHTS: Final = "build/weights.json"
RECORD: Final = "build/objects.json"
_CACHED: Final = 4
"""An object that takes less than this part of its expected time came out of ccache, and teaches nothing."""


def tell(
    folder: Path,
    settings: CompileSettings,
    request: Request,
    learnt: Mapping[str, float],
    *,
    jobs: int,
    memory_gb: float,
) -> None:
    """Write what images/compile/ninja_in_order.py is told; groups depend on nothing that only this machine knows."""
    cost = settings.costs[request.what]
    told = {
        "rules": [[weight.match, weight.seconds, weight.gb] for weight in settings.weights],
        "learnt": {} if request.group else dict(learnt),
        "jobs": jobs,
        "memory_gb": memory_gb,
        "job_gb": cost.job_gb,
        "large_gb": cost.large_gb or cost.job_gb,
        "group": [int(part) for part in request.group.split("/")] if request.group else None,
    }
    (folder / WEIGHTS).write_text(json.dumps(told), encoding="utf-8")


@dataclass(frozen=True)
class RecordedObjects:
    """The objects of a compile, as its ninja has recorded them."""

    expected: Mapping[str, float]
    """The seconds that each should take."""
    taken: Mapping[str, float]
    """The seconds that those done have taken."""
    at_once: float
    """How much faster than on one core they are compiled."""


def recorded(folder: Path) -> RecordedObjects | None:
    """Return the objects of a compile, or None before ninja has started.

    What is damaged or half written counts as missing.
    """
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        expected = {str(name): float(seconds) for name, seconds in record["objects"].items()}
        tree, at_once = (folder / RECORD).parent / record["folder"], float(record["at_once"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    measured = ninja_log(tree / ".ninja_log")
    done = (name for name in expected if name in measured and _place(folder, tree, name).exists())
    return RecordedObjects(expected, {name: measured[name] for name in done}, at_once)


def _place(folder: Path, tree: Path, name: str) -> Path:
    """Return where an object is on this machine; FlashInfer's have the paths of the container."""
    path = Path(name)
    return folder / path.relative_to(FACTORY) if path.is_relative_to(FACTORY) else tree / path


def ninja_log(path: Path) -> dict[str, float]:
    """Return how many seconds ninja's last run of each step took; lines that a killed run left in half are ignored."""
    found: dict[str, float] = {}
    text = ""
    with suppress(OSError):
        text = path.read_text("utf-8", "replace")
    for line in text.splitlines():
        with suppress(ValueError):
            start, end, _, output, _ = line.split("\t")
            found[output] = (int(end) - int(start)) / 1000
    return found


def is_measured(expected: float, seconds: float) -> bool:
    """Return whether a time is a compiler's, and not that of a copy out of ccache."""
    return seconds * _CACHED >= expected


def learn(store: Store, inputs: CompileInputs, folder: Path) -> dict[str, float]:
    """Remember the times of a compile's objects; return all that are known for its chips, whatever the version."""
    found = recorded(folder)
    taken = found.taken.items() if found else ()
    measured = {
        name: seconds for name, seconds in taken if found and is_measured(found.expected[name], seconds)
    }
    file = store.root / "weights.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        known = _read(file)
        own = known.setdefault(f"{inputs.name} {inputs.arch_list} {inputs.platform}", {})
        if not measured.items() <= own.items():
            own |= measured
            with writing(file) as writer:
                writer.write(json.dumps(known, indent=0, sort_keys=True).encode())
    return own


def _read(file: Path) -> dict[str, dict[str, float]]:
    """Read the known times; a file that cannot be read only makes estimates worse."""
    try:
        data: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return {kind: {str(name): float(value) for name, value in own.items()} for kind, own in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
