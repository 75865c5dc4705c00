"""vLLM, as the program sees it."""

from collections.abc import Mapping, Sequence
from functools import partial

from ...command import Command, option
from ...hiding import is_flag
from ...keys import Secrets
from ...settings import Settings
from ..server import Handover, Server, hook_variables, work
from . import command, log


def _facts(settings: Settings, built: Command) -> dict[str, object]:
    cache, drafter = built.cache_dtype, built.speculative or {}
    return {
        "cache": cache if cache != "auto" else "",
        "drafter": str(drafter.get("model", "")) if drafter.get("method") == "dflash" else "",
        "draft_backend": str(drafter.get("attention_backend", "auto")),
        "draft_cache": str(drafter.get("kv_cache_dtype") or cache),
        "sleeps": any(is_flag(word, "--enable-sleep-mode") for word in settings.extra),
    }


def _without_api(words: Sequence[str]) -> bool:
    return "--headless" in words or (option(words, "--node-rank", "-r") or "0") != "0"


def _hand_over(words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
    """Leave the arguments as they are: vLLM takes its secrets from its environment."""
    environment = secrets.environment(variables)
    if secrets.api_key:
        environment |= hook_variables("vllm", log.LINES, "", environment)
    return Handover(tuple(words), environment)


SERVER = Server(
    name="vllm",
    all_flags="vllm serve --help=all",
    argument_files=(
        "engine/arg_utils.py",
        "entrypoints/openai/cli_args.py",
        "entrypoints/launchers/cli_args.py",
        "entrypoints/cli/serve.py",
    ),
    parallel=command.PARALLEL,
    stretching=("--hf-overrides", "--rope-scaling"),
    stretching_variable="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    # Its message queue takes slightly more than 10 chunks of 16 MiB.
    shared_memory=256 * 1024 * 1024,
    log=log.LINES,
    reads_key=True,
    # Without a GPU it has no help but that for a CPU.
    help_environment={"VLLM_TARGET_DEVICE": "cpu"},
    watched={},
    address_variable="VLLM_HOST_IP",
    node_words=command.node_words,
    build=command.build,
    facts=_facts,
    without_api=_without_api,
    hand_over=_hand_over,
    moments=log.moments,
    choices=log.choices,
    work=partial(work, log.WORK),
    drafted=log.counters,
)
