"""Computes what a whole compile of vLLM costs, and how it divides into jobs, from the weights in compile.yaml.

    .venv/bin/python -m tests.bench.compile_cost

Compiles nothing, and prints the same figures on every machine: it lets the objects of vLLM 0.32.0 for 12.1a
(tests/golden/objects) run through as many compilers as cores and memory allow.
"""

from __future__ import annotations

import heapq
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imagefactory.compile.capacity import HOSTED, BuildMachine, groups_for, jobs_for
from imagefactory.compile.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = "tests/golden/objects/vllm-0.32.0-12.1a.txt"
MACHINES = {
    "2 cores, 22 GB": BuildMachine(2, 22),
    "GitHub's, 4 cores, 16 GB": HOSTED,
    "DGX Spark, 20 cores, 115 GB": BuildMachine(20, 115),
    "64 cores, 250 GB": BuildMachine(64, 250),
}
HIT_SECONDS = 0.6
"""For an object out of ccache: the slowest of twelve of vLLM 0.28.0, measured in a fresh tree."""

sys.path.insert(0, str(ROOT / "images" / "compile"))
order: Any = importlib.import_module("ninja_in_order")


def main() -> None:
    settings = load_settings(ROOT)
    cost = settings.costs["vllm"]
    rules = [[weight.match, weight.seconds, weight.gb] for weight in settings.weights]
    weights = {"rules": rules, "learnt": {}, "job_gb": cost.job_gb, "large_gb": cost.large_gb or cost.job_gb}
    names = (ROOT / OBJECTS).read_text("utf-8").split()
    whole = {name: order.weigh(name, weights)[0] for name in names}
    lines = [
        f"{len(whole)} objects, {sum(whole.values()) / 60:.0f} core-minutes, the longest {max(whole.values()) / 60:.0f}"
    ]
    without = {
        "without FlashAttention 3": ("_sm90",),
        "and without CUTLASS 2": ("_sm90", "scaled_mm_c2x"),
        "and without FlashAttention 2 (the extensions of a graft)": ("flash_", "scaled_mm_c2x"),
    }
    sets = {"all": whole}
    for title, parts in without.items():
        sets[title] = {name: own for name, own in whole.items() if not any(part in name for part in parts)}
    for title, objects in sets.items():
        lines.append(f"\n{title}: {len(objects)} objects, {sum(objects.values()) / 60:.0f} core-minutes")
        for machine, room in MACHINES.items():
            told = weights | {"jobs": jobs_for(room, cost), "memory_gb": room.memory_gb}
            first, last = (ends(own, told) for own in (longest_first(objects), objects.items()))
            lines.append(f"  {machine:<28}{first / 60:6.0f} min, in the order of CMake {last / 60:.0f} min")
    count = groups_for(cost)
    told = weights | {"jobs": jobs_for(HOSTED, cost), "memory_gb": HOSTED.memory_gb}
    groups = [{name: whole[name] for name in group} for group in order.split(whole, count)]
    times = [ends(longest_first(group), told) / 60 for group in groups]
    link = ends(dict.fromkeys(whole, HIT_SECONDS).items(), told) / 60
    lines.append(f"\n{count} groups on GitHub's machines: {', '.join(f'{time:.0f}' for time in times)} min")
    lines.append(f"the job that links them: {link:.0f} min with {HIT_SECONDS} s per object out of ccache")
    sys.stdout.write("\n".join(lines) + "\n")


def longest_first(objects: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(objects.items(), key=lambda item: -item[1])


def ends(objects: Iterable[tuple[str, float]], told: dict[str, Any]) -> float:
    """Return when the last object is done, if each free compiler takes the next one that may begin."""
    waiting = list(objects)
    jobs, large, _ = order.at_once(dict(waiting), told)
    running: list[tuple[float, bool]] = []
    now, heavy = 0.0, 0
    while waiting or running:
        for item in list(waiting):
            is_large = order.is_large(item[0], told)
            if len(running) < jobs and (not is_large or heavy < large):
                heapq.heappush(running, (now + item[1], is_large))
                heavy += is_large
                waiting.remove(item)
        now, was_large = heapq.heappop(running)
        heavy -= was_large
    return now


if __name__ == "__main__":
    main()
