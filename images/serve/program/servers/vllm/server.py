"""vLLM, as the program sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...command import Command, option
from ...image import Image
from ...keys import Secrets
from ...settings import Settings
from ...timeline import Moments
from ..server import Choices, Handover, Server
from . import command, log


class Vllm(Server):
    """vLLM."""

    name = "vllm"
    all_flags = "vllm serve --help=all"
    argument_files = (
        "engine/arg_utils.py",
        "entrypoints/openai/cli_args.py",
        "entrypoints/launchers/cli_args.py",
        "entrypoints/cli/serve.py",
    )
    parallel = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"))
    stretching = ("--hf-overrides", "--rope-scaling")
    stretching_variable = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    # Its message queue takes slightly more than 10 chunks of 16 MiB.
    shared_memory = 256 * 1024 * 1024
    log = log.LINES
    reads_key = True

    def build(self, image: Image, settings: Settings) -> Command:
        """Build the recommended command."""
        return command.build(image, settings)

    def facts(self, settings: Settings, built: Command) -> dict[str, object]:  # noqa: ARG002
        """Return what vLLM's rules say about the KV cache and a drafter."""
        cache, drafter = built.cache_dtype, built.speculative or {}
        return {
            "cache": cache if cache != "auto" else "",
            "drafter": str(drafter.get("model", "")) if drafter.get("method") == "dflash" else "",
            "draft_backend": str(drafter.get("attention_backend", "auto")),
            "draft_cache": str(drafter.get("kv_cache_dtype") or cache),
        }

    def without_api(self, words: Sequence[str]) -> bool:
        """Whether a command is for a node that serves no API."""
        return "--headless" in words or (option(words, "--node-rank", "-r") or "0") != "0"

    def hand_over(self, words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
        """Leave the arguments as they are: vLLM takes its secrets from its environment."""
        return Handover(tuple(words), secrets.environment(variables))

    def help_environment(self) -> dict[str, str]:
        """Have vLLM show its help for a CPU; without a GPU it has no other."""
        return {"VLLM_TARGET_DEVICE": "cpu"}

    def moments(self, lines: Iterable[str], moments: Moments) -> Moments:
        """Add what vLLM's log tells about a start."""
        return log.moments(lines, moments)

    def choices(self, lines: Iterable[str]) -> Choices:
        """Find the backends and kernels in lines of vLLM's log."""
        return log.choices(lines)

    def drafted(self, metrics: bytes) -> tuple[float, float, float]:
        """Read the numbers of drafts, drafted tokens and accepted tokens from vLLM's metrics."""
        return log.counters(metrics)


SERVER = Vllm()
