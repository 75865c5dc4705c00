"""Reports of the companion, from vLLM's log and metrics."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from images.serve.program import timeline
from images.serve.program.servers.server import hook_variables
from images.serve.program.servers.vllm import SERVER, choices, moments
from images.serve.program.watch import report

HEALTHY = [
    "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
    "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['FLASHINFER_CUTLASS', 'MARLIN'].",
    "Using backend FLASH_ATTN for vit attention",
    "Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN', 'FLEX_ATTENTION'].",
    "Using AttentionBackendEnum.FLASH_ATTN backend.",
    "world_size=1 rank=0 local_rank=0 backend=nccl",
]
SLOW = [
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being used.",
    "Using MarlinNvFp4LinearKernel for NVFP4 GEMM",
]


def test_kernels_and_both_attention_backends_are_reported_and_slow_ones_are_a_warning() -> None:
    assert list(report(choices(HEALTHY), drafting=True)) == [
        "attention by TRITON_ATTN, draft attention by FLASH_ATTN",
        "NVFP4 GEMM by FlashInferCutlassNvFp4LinearKernel; NvFp4 MoE by FLASHINFER_CUTLASS",
    ]
    shared = ["Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."]
    both = "attention by FLASH_ATTN, draft attention by FLASH_ATTN"
    assert list(report(choices(shared), drafting=True)) == [both]
    assert list(report(choices([]), drafting=True)) == []
    kernels, warning = report(choices(SLOW), drafting=False)
    assert kernels == "NVFP4 GEMM by MarlinNvFp4LinearKernel"
    assert warning.startswith("WARNING: FP4 runs through Marlin")


def with_hook(program: str, note: Path | str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | hook_variables(SERVER.name, SERVER.log, str(note), {}) | variables
    return subprocess.run([sys.executable, "-B", "-c", program], env=environment, check=True, capture_output=True)


def test_the_hook_notes_vllms_kernels_and_steps_without_their_arguments(tmp_path: Path) -> None:
    note = tmp_path / "choices"
    program = (
        "import logging\n"
        "log = logging.getLogger('vllm.x').warning\n"
        "log('Using %s for NVFP4 GEMM', 'Kernel')\n"
        "log('nothing of interest')\n"
        "log('non-default args: %s', {'api_key': 's3cret'})\n"
        "log('init engine (%s) took %.2f s', 'profile', 1.5)\n"
        "logging.getLogger('other').warning('Using A attention backend.')\n"
    )
    with_hook(program, note)
    lines = note.read_text().splitlines()
    assert re.fullmatch(r"\d+\.\d{3} Using Kernel for NVFP4 GEMM", lines[0])
    assert len(lines) == 3
    assert "s3cret" not in note.read_text()
    assert choices(lines).kernels == ("NVFP4 GEMM by Kernel",)
    found = moments(lines, timeline.Moments(None, None))
    assert found.imported is not None
    assert found.captured is not None
    assert found.imported <= found.captured <= time.monotonic()


def test_the_hook_follows_no_link_and_does_not_fail_if_it_cannot_write(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    (tmp_path / "choices").symlink_to(victim)
    with_hook("import logging; logging.getLogger('vllm').warning('Using X backend')", tmp_path / "choices")
    assert victim.read_text() == "precious\n"
    program = "import logging; logging.getLogger('vllm').warning('Using %s backend', 'X', 'too many')"
    assert with_hook(program, tmp_path / "no" / "folder").returncode == 0


def test_the_hook_hides_the_key_wherever_a_server_logs_it() -> None:
    program = (
        "import logging\n"
        "args = {'api_key': 's3cret-key', 'other': 1}\n"
        "logging.getLogger('any').warning(f'server_args={args}')\n"
        "logging.getLogger('any').warning('args %s of %d', args, 1)\n"
        "logging.getLogger('any').warning('key %s', 's3cret-key')\n"
    )
    said = with_hook(program, "", VLLM_API_KEY="s3cret-key").stderr.decode()
    assert "s3cret-key" not in said
    assert said.count("(hidden)") == 3
    assert "s3cret-key" in with_hook(program, "").stderr.decode()
