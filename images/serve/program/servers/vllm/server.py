"""vLLM, as the program sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...command import Command, option
from ...findings import Case, Finding
from ...image import Image
from ...keys import Secrets
from ...memory import Share
from ...settings import Settings, Value
from ...timeline import Moments
from ..server import Choices, Contradiction, Handover, Server
from . import combinations, command, log


class Vllm(Server):
    """vLLM."""

    name = "vllm"
    title = "vLLM"
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
    # Its own default is 0.9 (0.92 since 0.20).
    share = Share(default=0.9)
    reads_key = True

    def build(self, image: Image, settings: Settings) -> Command:
        """Build the recommended command."""
        return command.build(image, settings)

    def contradictions(self, values: Mapping[str, Value], given: set[str]) -> Iterator[Contradiction]:
        """Yield settings that contradict each other in vLLM."""
        tokens, sequences = values.get("MAX_NUM_BATCHED_TOKENS"), values.get("MAX_NUM_SEQS")
        if isinstance(tokens, int) and isinstance(sequences, int) and tokens < sequences:
            yield (
                "MAX_NUM_BATCHED_TOKENS",
                "MAX_NUM_SEQS",
                "every sequence of a batch needs at least one token",
                f"Set MAX_NUM_BATCHED_TOKENS to {sequences} or more, or lower MAX_NUM_SEQS to {tokens}.",
            )
        dtype = str(values.get("KV_CACHE_DTYPE") or "auto")
        compresses = values.get("ENABLE_TURBOQUANT") is True
        if compresses and "KV_CACHE_DTYPE" in given and not dtype.startswith("turboquant_"):
            yield (
                "KV_CACHE_DTYPE",
                "ENABLE_TURBOQUANT",
                "TurboQuant is itself a data type of the KV cache",
                "Leave KV_CACHE_DTYPE out, or set ENABLE_TURBOQUANT=0.",
            )

    def combinations(self, case: Case) -> Iterator[Finding]:
        """Find combinations of settings that are known to fail."""
        return combinations.found(case)

    def unloadable(self, image: Image, capability: str) -> tuple[str, str]:
        """Say that the kernels of old releases are for 12.0a, which does not load on 12.1."""
        if capability != "12.1" or image.at_least("0.20"):
            return "", ""
        return (
            f"the kernels of vLLM {image.version} are built for 12.0a and do not load on 12.1",
            "Use an image with vLLM 0.20 or newer, or one with compiled kernels.",
        )

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
