"""The settings of vLLM images, which are the vocabulary of all: other servers know some of them."""

from __future__ import annotations

from imagefactory.project.servers.setting import MOST, Setting, choice, limit

BACKENDS = (
    "auto",
    "flash_attn",
    "triton_attn",
    "flashinfer",
    "triton_mla",
    "b12x",
    "flex_attention",
    "torch_sdpa",
    "cpu_attn",
)
DRAFT_BACKENDS = ("auto", "flash_attn", "triton_attn", "flashinfer", "flex_attention")
TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
QUANTIZATIONS = (
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
)
LOAD_FORMATS = (
    "auto",
    "dummy",
    "fastsafetensors",
    "hf",
    "instanttensor",
    "mistral",
    "npcache",
    "pt",
    "runai_streamer",
    "safetensors",
    "sharded_state",
    "tensorizer",
)


SCHEMA: tuple[Setting, ...] = (
    Setting("MODEL", "text", "The model to serve: a Hugging Face repository or a folder in the container."),
    Setting("MODEL_PATH", "path", "A folder in the container with the model, to serve without a download."),
    Setting(
        "SERVED_MODEL_NAME",
        "text",
        'The name that clients send as `"model"`, or several, separated by commas. Defaults to MODEL.',
    ),
    Setting(
        "DFLASH_DRAFTER",
        "text",
        "The draft model for speculative decoding: a repository or a folder. `off` disables it.",
        unset="off",
    ),
    Setting("DFLASH_NUM_SPEC_TOKENS", "whole", "Tokens drafted per step.", minimum=1, maximum=64),
    Setting(
        "DRAFT_ATTENTION_BACKEND",
        "choice",
        "Attention kernels of the drafter, independent of ATTENTION_BACKEND.",
        choices=DRAFT_BACKENDS,
        since="0.21.0",
    ),
    choice("ATTENTION_BACKEND", "Attention kernels of the model.", BACKENDS, {"b12x": "0.32.0"}),
    limit(
        "MAX_MODEL_LEN",
        "Maximum context in tokens, prompt plus output. `auto` uses the model's own limit.",
        "whole",
        1,
        MOST,
    ),
    limit("MAX_NUM_SEQS", "Requests processed at the same time; others queue.", "whole", 1, 65536),
    limit("MAX_NUM_BATCHED_TOKENS", "Tokens processed per step, over all requests.", "whole", 1, MOST),
    limit(
        "GPU_MEMORY_UTILIZATION",
        "Share of the GPU memory for vLLM. On a DGX Spark the host uses the same memory.",
        "fraction",
        0.01,
        1,
    ),
    choice("QUANTIZATION", "Quantization of the weights. `auto` reads it from the model.", QUANTIZATIONS),
    choice(
        "DTYPE",
        "Data type of weights and activations that are not quantized.",
        ("auto", "bfloat16", "float16", "float32", "half", "float"),
    ),
    choice(
        "KV_CACHE_DTYPE",
        "Data type of the KV cache.",
        ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", *TURBOQUANT),
        dict.fromkeys(TURBOQUANT, "0.20.0"),
    ),
    Setting(
        "ENFORCE_EAGER",
        "switch",
        "Skip compilation and CUDA graphs: the server is ready in half the time.",
        passed=True,
    ),
    Setting(
        "ENABLE_PREFIX_CACHING",
        "switch",
        "Reuse the KV cache of common prompt prefixes. If unset, vLLM decides.",
        passed=True,
    ),
    choice("LOAD_FORMAT", "How to load the weights.", LOAD_FORMATS, {"instanttensor": "0.32.0"}),
    Setting("TRUST_REMOTE_CODE", "switch", "Run Python code from the model repository.", passed=True),
    Setting(
        "CHAT_TEMPLATE",
        "path",
        "A Jinja file in the container to use instead of the model's chat template.",
        passed=True,
    ),
    Setting(
        "ENABLE_AUTO_TOOL_CHOICE",
        "switch",
        "Let the model decide when to call tools. Requires TOOL_CALL_PARSER.",
        passed=True,
    ),
    Setting("TOOL_CALL_PARSER", "text", "Parser for tool calls in the output.", passed=True, unset="off"),
    Setting(
        "REASONING_PARSER",
        "text",
        "Parser that separates reasoning from the answer.",
        passed=True,
        unset="off",
    ),
    Setting(
        "LIMIT_MM_PER_PROMPT",
        "counts",
        "Maximum images and videos per prompt, as JSON. Zeros make the server text-only.",
        passed=True,
    ),
    Setting(
        "VLLM_API_KEY",
        "secret",
        "The API key that clients must send. Commands and logs never show it, but `docker inspect` does: "
        "prefer VLLM_API_KEY_FILE.",
    ),
    Setting(
        "VLLM_API_KEY_FILE", "path", "A file in the container with the API key, such as a mounted secret."
    ),
    Setting(
        "HOST",
        "text",
        "Address to listen on.",
        passed=True,
        default="0.0.0.0",  # noqa: S104 - a container's server is for outside
        server_default="0.0.0.0",  # noqa: S104
    ),
    Setting(
        "PORT",
        "whole",
        "Port to listen on.",
        passed=True,
        minimum=1,
        maximum=65535,
        default="8000",
        server_default="8000",
    ),
    Setting(
        "WARMUP",
        "whole",
        "Requests to send once the server is ready, so that the first user does not wait for kernels; 0 for none.",
        minimum=0,
        maximum=20,
        default="1",
    ),
    Setting(
        "MODS",
        "list",
        "Mods in MODS_PATH to apply at start-up. If one fails, the server does not start.",
    ),
    Setting("MODS_PATH", "path", "The folder where mods are mounted.", default="/mods"),
    Setting(
        "ENABLE_TURBOQUANT",
        "switch",
        "Compress the KV cache with TurboQuant: room for more context and requests, slightly slower.",
        default="0",
        since="0.20.0",
    ),
    Setting(
        "TQ_MODE",
        "choice",
        "`hybrid` and `full_tq` compress the KV cache; `off` and `capture_only` do not.",
        choices=("off", "capture_only", "hybrid", "full_tq"),
        default="hybrid",
    ),
    Setting(
        "TQ_KEY_BITS",
        "whole",
        "Bits per key. vLLM supports 8/4, 4/4, 3/4 and 3/3 (key/value); others use the next larger pair, or 8/4.",
        minimum=3,
        maximum=8,
        default="4",
    ),
    Setting("TQ_VALUE_BITS", "whole", "Bits per value.", minimum=2, maximum=8, default="4"),
    Setting(
        "TQ_RING_CAPACITY",
        "whole",
        "Ignored; accepted for old scripts. vLLM's TurboQuant has no such option.",
        minimum=0,
        maximum=MOST,
        default="128",
    ),
    Setting(
        "TQ_INITIAL_LAYERS",
        "whole",
        "Ignored; accepted for old scripts. vLLM's TurboQuant never compresses the first and last layers.",
        minimum=0,
        maximum=1000,
        default="4",
    ),
    Setting("EXTRA_ARGS", "flags", "More flags for `vllm serve`, quoted as in a shell."),
    Setting(
        "CHECKS",
        "choice",
        "What a failed check does: `enforce` stops the start, `warn` only warns, `off` skips all checks.",
        choices=("enforce", "warn", "off"),
        default="enforce",
    ),
    Setting(
        "SKIP_CHECKS",
        "list",
        "Checks to skip: gpu, driver, kernels, model, drafter, disk, memory, shm, flags, combination, port, api-key.",
    ),
)

NAMES = tuple(setting.name for setting in SCHEMA)
