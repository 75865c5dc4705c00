"""Computes what the matrix costs: the bytes that the locks name, with and without layers that images share.

    .venv/bin/python -m tools.bench.matrix_cost

Reads only locks and plans, downloads nothing, and prints the same figures on every machine. Processor time is computed:
bytes times the measured time of one assembly (tools/bench/README.md).
"""

import sys
from pathlib import Path

from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, buildable, compiled_distributions
from imagefactory.project.project import Project

ASSEMBLY_SECONDS, ASSEMBLY_BYTES = 60, 4_120_000_000
"""Measured: processor time and input bytes of one cold assembly, gemma4-31b@0.32.0/gb10, of layers not on record."""
GB = 1e9


def main() -> None:
    project = Project(Path(__file__).resolve().parents[2])
    cells = buildable(project.matrix)
    compiled = [cell for cell in cells if compiled_distributions(project.matrix, cell)]
    plans = locked_plans(project)
    unique = {layer.key: layer.download for plan in plans for layer in plan.layers}
    named = sum(layer.download for plan in plans for layer in plan.layers)
    left = sum(unique.values())
    lines = [
        f"targets {len(cells)}, sets of wheels {len({_lock(cell) for cell in cells})}",
        f"of these to be compiled: targets {len(compiled)}, sets of wheels {len({_lock(cell) for cell in compiled})}",
        f"locked: targets {len(plans)}, sets of wheels {len({_lock(plan) for plan in plans})}",
        f"inputs of all locked images {named / GB:.1f} GB, each layer once {left / GB:.1f} GB",
        f"assembling each once, computed: {left / ASSEMBLY_BYTES * ASSEMBLY_SECONDS:.0f} s of processor time",
        "",
        f"{'set of wheels':<24}{'inputs':>10}{'new':>10}",
    ]
    seen: set[str] = set()
    for plan in sorted({_lock(plan): plan for plan in plans}.values(), key=_lock):
        total = sum(layer.download for layer in plan.layers)
        new = sum(layer.download for layer in plan.layers if layer.key not in seen)
        seen |= {layer.key for layer in plan.layers}
        lines.append(f"{plan.version + ' ' + plan.arch:<24}{total / GB:>7.2f} GB{new / GB:>7.2f} GB")
    sys.stdout.write("\n".join(lines) + "\n")


def _lock(cell: Cell | Plan) -> tuple[str, str, str]:
    """Name the lock that a cell's wheels come from."""
    return cell.version, cell.arch, cell.platform


if __name__ == "__main__":
    main()
