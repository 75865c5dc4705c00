"""The timeline of a start, from log lines of vLLM and from the clock."""

import os
import subprocess
import sys
import time

from images.serve.program.servers.vllm import moments as read
from images.serve.program.timeline import Moments, describe, process_start
from tests.fixtures.checkouts import REPOSITORY

ENDS = Moments(began=10.0, became_server=10.5, listening=60.0, warm=62.0, ready=62.5)
LOG = [
    "15.000 Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].",
    "22.500 non-default args: %s",
    "30.000 Starting to load model %s...",
    "58.500 init engine (profile, create kv cache, warmup model) took 24.00 s (compilation: 9.00 s)",
]


def test_every_step_of_a_start_gets_its_seconds_and_what_vllm_did_not_log_is_unknown() -> None:
    assert describe(read(LOG, ENDS), warm_up=True) == (
        "start in seconds: checks 0.5, imports 12.0, engine 7.5, weights 4.5, compile 9.0, graphs 15.0, "
        "server 1.5, warm-up 2.0; ready 52.5"
    )
    assert describe(read(["", "9 non-default args"], ENDS), warm_up=True) == (
        "start in seconds: checks 0.5, imports unknown, engine unknown, weights unknown, graphs unknown, "
        "server unknown, warm-up 2.0; ready 52.5"
    )
    without_loading = describe(read([line for line in LOG if "to load" not in line], ENDS), warm_up=True)
    assert "imports 12.0, engine unknown, weights unknown, compile 9.0, graphs 15.0" in without_loading


def test_without_compiling_there_is_no_such_step() -> None:
    eager = [line.replace(" (compilation: 9.00 s)", "") for line in LOG]
    assert "weights 4.5, graphs 24.0, server" in describe(read(eager, ENDS), warm_up=True)
    encoder = [line.replace("9.00 s)", "9.00 s — language_model: 8.00 s, encoder: 1.00 s)") for line in LOG]
    assert read(encoder, ENDS) == read(LOG, ENDS)


def test_of_several_processes_the_first_to_begin_and_the_last_to_end_count() -> None:
    lines = [
        "21.000 Starting to load model %s...",
        "22.000 Loading model from scratch...",
        "35.000 init engine (profile, create kv cache, warmup model) took 3.00 seconds",
        "36.000 init engine (profile, create kv cache, warmup model) took 2.00 seconds",
    ]
    found = read(lines, ENDS)
    assert (found.loading, found.loaded, found.captured) == (21.0, 34.0, 36.0)


def test_a_start_without_a_known_beginning_or_end_says_so() -> None:
    text = describe(ENDS._replace(began=None, warm=None), warm_up=True)
    assert "checks unknown" in text
    assert text.endswith("warm-up unknown; ready unknown")
    assert describe(ENDS, warm_up=False).endswith("warm-up off; ready 52.5")
    compiled = describe(ENDS._replace(kernels=61.5), warm_up=True)
    assert compiled.endswith("kernels 1.5, warm-up 0.5; ready 52.5"), "the warm-up follows what was compiled"
    late = read(["70.000 init engine (profile) took 2.00 s"], ENDS)
    assert "server unknown" in describe(late, warm_up=True)


def test_a_process_knows_when_it_started() -> None:
    before = time.monotonic()
    code = f"from {process_start.__module__} import process_start; print(process_start())"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    tick = 1 / os.sysconf("SC_CLK_TCK")  # the kernel counts a process's start in whole ones
    assert before - tick <= float(done.stdout) <= time.monotonic()
