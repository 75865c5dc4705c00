"""Measures what the serve program takes before it becomes vLLM, beside a Python that does nothing.

Run `.venv/bin/python -m tools.bench.serve_start [RUNS]`. Prints medians and ratios; nothing is asserted. The last line
is a fresh container, where no compiled modules exist yet.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import timeit
from functools import partial
from pathlib import Path

from imagefactory.plan.serve.description import describe_image, image_environment, write_description
from imagefactory.plan.serve.image_paths import program_folder
from imagefactory.project.matrix import load_matrix
from imagefactory.project.targets import select
from tests.fixtures.serving import model_document

ROOT = Path(__file__).resolve().parents[2]
BUDGET_MS = 150


def median_ms(command: list[str], environment: dict[str, str], runs: int) -> float:
    # Not captured: the companion would hold a pipe open a little longer than the start takes.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = partial(subprocess.run, command, env=environment, check=True, **quiet)
    return 1000 * statistics.median(timeit.repeat(run, number=1, repeat=runs))


def main(runs: int) -> None:
    matrix = load_matrix(ROOT / "matrix.yaml")
    cell = select(matrix, ["qwen3.5-27b-nvfp4"])[0]
    model = model_document(matrix, cell)
    description = describe_image(matrix, cell, model)
    python = next(filter(None, (shutil.which("python3", path="/usr/bin"), sys.executable)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_description(description, model, folder)
        shutil.copytree(program_folder(ROOT), folder / "serve", ignore=shutil.ignore_patterns("__pycache__"))
        # `true` in place of vLLM: what is measured is everything up to the exec.
        (folder / "bin").mkdir()
        (folder / "bin" / "vllm").symlink_to("/bin/true")
        program = folder / "serve" / "program" / "image.py"
        program.write_text(program.read_text("utf-8").replace("/opt/venv", name), "utf-8")
        environment = {
            **image_environment(description),
            "PATH": os.defpath,
            "FACTORY_SHARE": name,
            "PORT": "18997",
            "CHECKS": "warn",
        }
        start = [python, "-I", "-S", str(folder / "serve")]
        nothing = median_ms([python, "-I", "-S", "-c", "pass"], environment, runs)
        fresh = median_ms([python, "-I", "-S", "-B", str(folder / "serve")], environment, runs)
        median_ms(start, environment, 1)
        warm = median_ms(start, environment, runs)
    print(f"python that does nothing  {nothing:6.1f} ms")
    print(f"start, compiled before    {warm:6.1f} ms  {warm / nothing:.1f} times")
    print(f"start, fresh container    {fresh:6.1f} ms  {fresh / nothing:.1f} times  (budget {BUDGET_MS} ms)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
