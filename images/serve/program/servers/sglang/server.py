"""SGLang, as the program sees it."""

from functools import partial

from ...command import Command, option
from ...settings import Settings
from ..server import Server, work
from . import command, keys, log


def _facts(settings: Settings, built: Command) -> dict[str, object]:
    drafter, extra = built.speculative or {}, settings.extra
    return {
        "attention": command.spelled("ATTENTION_BACKEND", settings.text("ATTENTION_BACKEND")),
        "draft_backend": str(drafter.get("attention_backend", "")),
        "drafter": str(drafter.get("model", "")),
        "method": drafter.get("method", ""),
        "stages": option(extra, "--pp-size", "--pipeline-parallel-size") or "1",
        "grammar": option(extra, "--grammar-backend") or "",
    }


SERVER = Server(
    name="sglang",
    all_flags="sglang serve --model-type llm --help",
    argument_files=("srt/server_args.py", "srt/arg_groups/fields", "cli/serve.py"),
    parallel=command.PARALLEL,
    stretching=("--json-model-override-args",),
    stretching_variable="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    # Its processes talk over sockets; NCCL needs room for several GPUs.
    shared_memory=64 * 1024 * 1024,
    log=log.LINES,
    reads_key=False,
    help_environment={},  # without a driver its kernels cannot even be imported
    # Its /health asks the engine for a token: it would call a step of some seconds unhealthy, and keep the GPU awake.
    watched={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"},
    address_variable="SGLANG_HOST_IP",
    node_words=command.node_words,
    build=command.build,
    facts=_facts,
    without_api=lambda words: (option(words, "--node-rank") or "0") != "0",
    hand_over=keys.hand_over,
    moments=log.moments,
    choices=log.choices,
    work=partial(work, log.WORK),
    drafted=log.drafted,
)
