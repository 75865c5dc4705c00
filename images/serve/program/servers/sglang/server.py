"""SGLang, as the program sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...command import Command, option
from ...image import Image
from ...keys import Secrets
from ...settings import Settings
from ...timeline import Moments
from ..server import Choices, Handover, Server
from . import command, keys, log


class Sglang(Server):
    """SGLang."""

    name = "sglang"
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
    reads_key = False
    kills_itself = True

    def build(self, image: Image, settings: Settings) -> Command:
        """Build the recommended command."""
        return command.build(image, settings)

    def facts(self, settings: Settings, built: Command) -> dict[str, object]:
        """Return what SGLang's rules say about backends, a drafter and flags of the user's own."""
        drafter, extra = built.speculative or {}, settings.extra
        return {
            "attention": command.spelled("ATTENTION_BACKEND", settings.text("ATTENTION_BACKEND")),
            "draft_backend": str(drafter.get("attention_backend", "")),
            "drafter": str(drafter.get("model", "")),
            "method": drafter.get("method", ""),
            "stages": option(extra, "--pp-size", "--pipeline-parallel-size") or "1",
            "grammar": option(extra, "--grammar-backend") or "",
        }

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
