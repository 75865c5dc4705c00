"""SGLang, as the program sees it."""

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
from . import combinations, command, keys, log


class Sglang(Server):
    """SGLang."""

    name = "sglang"
    title = "SGLang"
    all_flags = "sglang serve --model-type llm --help"
    argument_files = ("srt/server_args.py", "srt/arg_groups/fields", "cli/serve.py")
    parallel = (
        ("--tp-size", "--tensor-parallel-size", "--tp"),
        ("--pp-size", "--pipeline-parallel-size", "--pp"),
    )
    stretching = ("--json-model-override-args",)
    stretching_variable = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    # Its processes talk over sockets; NCCL needs room for several GPUs.
    shared_memory = 64 * 1024 * 1024
    log = log.LINES
    # --mem-fraction-static: weights and KV cache, as a share of what is free before they are loaded.
    share = Share(default=0.9, of_free=True, holds_working=False)
    reads_key = False
    kills_itself = True

    def build(self, image: Image, settings: Settings) -> Command:
        """Build the recommended command."""
        return command.build(image, settings)

    def contradictions(self, values: Mapping[str, Value], given: set[str]) -> Iterator[Contradiction]:  # noqa: ARG002
        """Yield nothing: the contradictions that every server has are all."""
        yield from ()

    def combinations(self, case: Case) -> Iterator[Finding]:
        """Find combinations of settings that are known to fail."""
        return combinations.found(case)

    def unloadable(self, image: Image, capability: str) -> tuple[str, str]:  # noqa: ARG002
        """Say nothing: its wheels have kernels for 12.0a and 12.1a."""
        return "", ""

    def without_api(self, words: Sequence[str]) -> bool:
        """Whether a command is for a node that serves no API."""
        return (option(words, "--node-rank") or "0") != "0"

    def hand_over(self, words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
        """Pass the key in a file, and hide it in the log."""
        return keys.hand_over(self, words, secrets, variables)

    def help_environment(self) -> dict[str, str]:
        """Return nothing: without a driver its kernels cannot even be imported."""
        return {}

    def moments(self, lines: Iterable[str], moments: Moments) -> Moments:
        """Add what SGLang's log tells about a start."""
        return log.moments(lines, moments)

    def choices(self, lines: Iterable[str]) -> Choices:
        """Find the backends in lines of SGLang's log."""
        return log.choices(lines)

    def drafted(self, metrics: bytes) -> tuple[float, float, float]:
        """Read the numbers of drafts, drafted tokens and accepted tokens from SGLang's metrics."""
        return log.drafted(metrics)


SERVER = Sglang()
