"""The one list of settings: what a user may set, what it means, and which flag of vLLM it becomes.

Everything else is rendered from it: settings.json in the image (by which the serve program validates), the image's
environment, the `settings` command, the README's table, compose.yaml, the `docker run` line and the recipes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SettingKind = Literal[
    "text", "path", "whole", "fraction", "switch", "choice", "counts", "list", "flags", "secret"
]
MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting as the factory declares it; a cell adds the default."""

    name: str
    kind: SettingKind
    description: str
    flag: str = ""
    """The flag of `vllm serve` that it becomes; empty for what the serve program itself heeds."""
    serve: str = ""
    """The key of a model's `serve` in matrix.yaml that gives the default."""
    default: str = ""
    """The default of every image, where the model does not say otherwise."""
    vllm_default: str = ""
    """What vLLM does without the flag: then the flag is left out."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""
    """The first vLLM that has it."""
    since_of: dict[str, str] = field(default_factory=dict)
    """The first vLLM that has a single choice."""
    unset: str = ""
    """The word by which a user says: none."""


BACKENDS = ("auto", "flash_attn", "triton_attn", "flashinfer", "flex_attention", "torch_sdpa", "cpu_attn")
DRAFT_BACKENDS = ("auto", "flash_attn", "triton_attn", "flashinfer", "flex_attention")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")

SCHEMA: tuple[Setting, ...] = (
    Setting(
        name="MODEL",
        kind="text",
        description="What to serve: a repository on the model hub, or a folder in the container.",
    ),
    Setting(
        name="MODEL_PATH",
        kind="path",
        description="A folder in the container that holds the model; then nothing is downloaded for it.",
    ),
    Setting(
        name="SERVED_MODEL_NAME",
        kind="text",
        serve="served_model_name",
        description='The name that clients put into `"model"`; several are separated by commas. '
        "Without it, what MODEL says.",
    ),
    Setting(
        name="DFLASH_DRAFTER",
        kind="text",
        unset="off",
        description="The drafter for speculative decoding: a repository or a folder; `off` goes without.",
    ),
    Setting(
        name="DFLASH_NUM_SPEC_TOKENS",
        kind="whole",
        minimum=1,
        maximum=64,
        description="Tokens that the drafter proposes at a time.",
    ),
    Setting(
        name="DRAFT_ATTENTION_BACKEND",
        kind="choice",
        choices=DRAFT_BACKENDS,
        since="0.21.0",
        description="The attention kernels of the drafter; it does not inherit those of the model.",
    ),
    Setting(
        name="ATTENTION_BACKEND",
        kind="choice",
        choices=BACKENDS,
        flag="--attention-backend",
        serve="attention_backend",
        vllm_default="auto",
        description="The attention kernels of the model.",
    ),
    Setting(
        name="MAX_MODEL_LEN",
        kind="whole",
        minimum=1,
        maximum=MOST,
        unset="auto",
        flag="--max-model-len",
        serve="max_model_len",
        description="The longest context in tokens, prompt and answer together; `auto` takes the model's own.",
    ),
    Setting(
        name="MAX_NUM_SEQS",
        kind="whole",
        minimum=1,
        maximum=65536,
        unset="auto",
        flag="--max-num-seqs",
        serve="max_num_seqs",
        description="Requests that are worked on at the same time; more wait in a queue.",
    ),
    Setting(
        name="MAX_NUM_BATCHED_TOKENS",
        kind="whole",
        minimum=1,
        maximum=MOST,
        unset="auto",
        flag="--max-num-batched-tokens",
        serve="max_num_batched_tokens",
        description="Tokens that one step works on, over all requests.",
    ),
    Setting(
        name="GPU_MEMORY_UTILIZATION",
        kind="fraction",
        minimum=0.01,
        maximum=1,
        unset="auto",
        flag="--gpu-memory-utilization",
        serve="gpu_memory_utilization",
        description="The share of the GPU's memory that vLLM takes. On a DGX Spark this is the host's memory too.",
    ),
    Setting(
        name="QUANTIZATION",
        kind="choice",
        choices=(
            "auto",
            "awq",
            "awq_marlin",
            "bitsandbytes",
            "compressed-tensors",
            "experts_int8",
            "fp8",
            "gpt_oss_mxfp4",
            "gptq",
            "gptq_marlin",
            "inc",
            "modelopt",
            "modelopt_fp4",
            "modelopt_mixed",
            "moe_wna16",
            "mxfp4",
            "mxfp8",
            "quark",
            "torchao",
        ),
        flag="--quantization",
        serve="quantization",
        vllm_default="auto",
        description="How the weights are quantized; `auto` reads it from the model.",
    ),
    Setting(
        name="DTYPE",
        kind="choice",
        choices=("auto", "bfloat16", "float16", "float32", "half", "float"),
        flag="--dtype",
        serve="dtype",
        vllm_default="auto",
        description="The number format of weights and activations that are not quantized.",
    ),
    Setting(
        name="KV_CACHE_DTYPE",
        kind="choice",
        choices=(
            "auto",
            "bfloat16",
            "fp8",
            "fp8_e4m3",
            "fp8_e5m2",
            *TURBOQUANT,
        ),
        since_of=dict.fromkeys(TURBOQUANT, "0.20.0"),
        flag="--kv-cache-dtype",
        serve="kv_cache_dtype",
        vllm_default="auto",
        description="The number format of the KV cache.",
    ),
    Setting(
        name="ENFORCE_EAGER",
        kind="switch",
        flag="--enforce-eager",
        serve="enforce_eager",
        description="Start without compiling and without CUDA graphs: ready in half the time.",
    ),
    Setting(
        name="ENABLE_PREFIX_CACHING",
        kind="switch",
        flag="--enable-prefix-caching",
        serve="enable_prefix_caching",
        description="Keep the KV cache of prompts that begin alike; unset leaves it to vLLM.",
    ),
    Setting(
        name="LOAD_FORMAT",
        kind="choice",
        choices=(
            "auto",
            "dummy",
            "fastsafetensors",
            "hf",
            "mistral",
            "npcache",
            "pt",
            "runai_streamer",
            "safetensors",
            "sharded_state",
            "tensorizer",
        ),
        flag="--load-format",
        serve="load_format",
        vllm_default="auto",
        description="How weights are read from the disk.",
    ),
    Setting(
        name="TRUST_REMOTE_CODE",
        kind="switch",
        flag="--trust-remote-code",
        serve="trust_remote_code",
        description="Run Python code that comes with the model.",
    ),
    Setting(
        name="CHAT_TEMPLATE",
        kind="path",
        flag="--chat-template",
        serve="chat_template",
        description="A Jinja file in the container that replaces the model's chat template.",
    ),
    Setting(
        name="ENABLE_AUTO_TOOL_CHOICE",
        kind="switch",
        flag="--enable-auto-tool-choice",
        serve="enable_auto_tool_choice",
        description="Let the model decide to call tools; needs TOOL_CALL_PARSER.",
    ),
    Setting(
        name="TOOL_CALL_PARSER",
        kind="text",
        unset="off",
        flag="--tool-call-parser",
        serve="tool_call_parser",
        description="How tool calls are read from the model's answer.",
    ),
    Setting(
        name="REASONING_PARSER",
        kind="text",
        unset="off",
        flag="--reasoning-parser",
        serve="reasoning_parser",
        description="How the model's thinking is told from its answer.",
    ),
    Setting(
        name="LIMIT_MM_PER_PROMPT",
        kind="counts",
        flag="--limit-mm-per-prompt",
        serve="limit_mm_per_prompt",
        description="Images and videos that a prompt may hold, as JSON; zeros make the server text-only.",
    ),
    Setting(
        name="VLLM_API_KEY",
        kind="secret",
        description="The key that clients must send. It stays out of commands and logs, "
        "but `docker inspect` shows variables: prefer the file.",
    ),
    Setting(
        name="VLLM_API_KEY_FILE",
        kind="path",
        description="A file in the container that holds the key, such as a mounted secret.",
    ),
    Setting(
        name="HOST",
        kind="text",
        default="0.0.0.0",  # noqa: S104 - a container's server is for outside
        vllm_default="0.0.0.0",  # noqa: S104
        flag="--host",
        description="The address to listen on.",
    ),
    Setting(
        name="PORT",
        kind="whole",
        minimum=1,
        maximum=65535,
        default="8000",
        vllm_default="8000",
        flag="--port",
        description="The port to listen on.",
    ),
    Setting(
        name="WARMUP",
        kind="whole",
        minimum=0,
        maximum=20,
        default="1",
        description="Requests that the image sends to itself when it is ready, so that the first user does not wait "
        "for kernels; 0 sends none.",
    ),
    Setting(
        name="MODS",
        kind="list",
        description="Mods to apply before the start, from MODS_PATH; a mod that fails stops the start.",
    ),
    Setting(
        name="MODS_PATH", kind="path", default="/mods", description="The folder that mods are mounted to."
    ),
    Setting(
        name="ENABLE_TURBOQUANT",
        kind="switch",
        default="0",
        since="0.20.0",
        description="Compress the KV cache with TurboQuant: more context and more requests, a little slower.",
    ),
    Setting(
        name="TQ_MODE",
        kind="choice",
        choices=("off", "capture_only", "hybrid", "full_tq"),
        default="hybrid",
        description="`off` and `capture_only` leave the cache as it is; the others compress it.",
    ),
    Setting(
        name="TQ_KEY_BITS",
        kind="whole",
        minimum=3,
        maximum=8,
        default="4",
        description="Bits per number of the keys. vLLM has 8/4, 4/4, 3/4 and 3/3; "
        "what lies between becomes the next larger one.",
    ),
    Setting(
        name="TQ_VALUE_BITS",
        kind="whole",
        minimum=2,
        maximum=8,
        default="4",
        description="Bits per number of the values.",
    ),
    Setting(
        name="TQ_RING_CAPACITY",
        kind="whole",
        minimum=0,
        maximum=MOST,
        default="128",
        description="Accepted for the sake of old scripts; vLLM's TurboQuant has no such option.",
    ),
    Setting(
        name="TQ_INITIAL_LAYERS",
        kind="whole",
        minimum=0,
        maximum=1000,
        default="4",
        description="Accepted for the sake of old scripts; vLLM's TurboQuant keeps first and last layers exact anyway.",
    ),
    Setting(
        name="EXTRA_ARGS",
        kind="flags",
        description="More flags for `vllm serve`, quoted as in a shell.",
    ),
    Setting(
        name="CHECKS",
        kind="choice",
        choices=("enforce", "warn", "off"),
        default="enforce",
        description="What a failed check does: stop the start, or only warn.",
    ),
    Setting(
        name="SKIP_CHECKS",
        kind="list",
        description="Checks to leave out: gpu, driver, kernels, model, drafter, disk, memory, shm, flags, combination, "
        "port, api-key.",
    ),
)

NAMES = tuple(setting.name for setting in SCHEMA)
