"""vLLM, the first server. The settings of its images are the vocabulary of all: other servers know some of them."""

from dataclasses import replace
from typing import Any, Final

from imagefactory.project.matrix import Arch
from imagefactory.project.served_model import Drafter
from imagefactory.project.server_versions import VLLM, ServerVersion
from imagefactory.project.servers.server import MOST, Server, Setting, choice, flag, limit, whole

TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")

SCHEMA: tuple[Setting, ...] = (
    Setting("MODEL", "text", "The model to serve: a Hugging Face repository or a folder in the container."),
    Setting("MODEL_PATH", "path", "A folder in the container with the model, to serve without a download."),
    Setting(
        "SERVED_MODEL_NAME",
        "text",
        'The name that clients send as `"model"`, or several, separated by commas. Defaults to MODEL, or the end of '
        "MODEL_PATH.",
    ),
    Setting(
        "DFLASH_DRAFTER",
        "text",
        "The draft model for speculative decoding: a repository or a folder. `off` disables it.",
        unset="off",
    ),
    whole("DFLASH_NUM_SPEC_TOKENS", "Tokens drafted per step.", 1, 64),
    Setting(
        "DRAFT_ATTENTION_BACKEND",
        "choice",
        "Attention kernels of the drafter, independent of ATTENTION_BACKEND.",
        choices=("auto", "flash_attn", "triton_attn", "flashinfer", "flex_attention"),
        since="0.21.0",
    ),
    choice(
        "ATTENTION_BACKEND",
        "Attention kernels of the model.",
        "flash_attn triton_attn flashinfer triton_mla b12x flex_attention torch_sdpa cpu_attn",
        {"b12x": "0.32.0"},
    ),
    limit(
        "MAX_MODEL_LEN",
        "Maximum context in tokens, prompt plus output. `auto` uses the model's own limit.",
        MOST,
    ),
    limit("MAX_NUM_SEQS", "Requests processed at the same time; others queue.", 65536),
    limit("MAX_NUM_BATCHED_TOKENS", "Tokens processed per step, over all requests.", MOST),
    Setting(
        "GPU_MEMORY_UTILIZATION",
        "fraction",
        "Share of the GPU memory for vLLM. On a DGX Spark the host uses the same memory.",
        passed=True,
        minimum=0.01,
        maximum=1,
        unset="auto",
        unit="share",
    ),
    choice(
        "QUANTIZATION",
        "Quantization of the weights. `auto` reads it from the model.",
        "awq awq_marlin bitsandbytes compressed-tensors experts_int8 fp8 fp8_per_tensor gpt_oss_mxfp4 gptq gptq_marlin "
        "inc modelopt modelopt_fp4 modelopt_mixed moe_wna16 mxfp4 mxfp8 quark torchao",
    ),
    choice(
        "DTYPE",
        "Data type of weights and activations that are not quantized.",
        "bfloat16 float16 float32 half float",
    ),
    choice(
        "KV_CACHE_DTYPE",
        "Data type of the KV cache.",
        f"bfloat16 fp8 fp8_e4m3 fp8_e5m2 {' '.join(TURBOQUANT)}",
    ),
    flag("ENFORCE_EAGER", "switch", "Skip compilation and CUDA graphs: the server is ready in half the time."),
    replace(
        flag(
            "ENABLE_PREFIX_CACHING",
            "switch",
            "Reuse the KV cache of common prompt prefixes. If unset, vLLM decides.",
        ),
        server_default="None",
    ),
    choice(
        "LOAD_FORMAT",
        "How to load the weights. The default gives way to `auto` where it cannot load the model's files.",
        "dummy fastsafetensors hf instanttensor mistral npcache pt runai_streamer safetensors sharded_state tensorizer",
        {"instanttensor": "0.32.0"},
    ),
    flag("TRUST_REMOTE_CODE", "switch", "Run Python code from the model repository."),
    flag("CHAT_TEMPLATE", "path", "A Jinja file in the container to use instead of the model's chat template."),
    flag(
        "ENABLE_AUTO_TOOL_CHOICE",
        "switch",
        "Let the model decide when to call tools. Requires TOOL_CALL_PARSER.",
    ),
    flag("TOOL_CALL_PARSER", "text", "Parser for tool calls in the output.", unset="off"),
    flag("REASONING_PARSER", "text", "Parser that separates reasoning from the answer.", unset="off"),
    flag(
        "LIMIT_MM_PER_PROMPT",
        "counts",
        "Maximum images and videos per prompt, as JSON. Zeros make the server text-only.",
    ),
    Setting(
        "VLLM_API_KEY",
        "secret",
        "The API key that clients must send. Commands and logs never show it, but `docker inspect` does: "
        "prefer VLLM_API_KEY_FILE.",
    ),
    Setting("VLLM_API_KEY_FILE", "path", "A file in the container with the API key, such as a mounted secret."),
    Setting("PROTECT_METRICS", "switch", "Require the API key for /metrics too.", default="0"),
    Setting(
        "HOST",
        "text",
        "Address to listen on.",
        passed=True,
        default="0.0.0.0",  # noqa: S104 - a container's server is for outside
        server_default="0.0.0.0",  # noqa: S104
    ),
    replace(whole("PORT", "Port to listen on.", 1, 65535, "8000"), passed=True, server_default="8000"),
    Setting(
        "KV_DISK",
        "path",
        "A folder in the container, on a volume, that keeps the KV cache of prompts: after a restart they are read, "
        "not computed again.",
        since="0.32.0",
    ),
    replace(
        whole("KV_DISK_GB", "GB that KV_DISK may take; the least recently used go first.", 1, 100_000, "64", unit="GB"),
        since="0.32.0",
    ),
    replace(
        whole(
            "KV_DISK_STAGE_GB",
            "GB of the host's memory through which KV_DISK is read and written; no more of a prompt is read.",
            1,
            512,
            "4",
            unit="GB",
        ),
        since="0.32.0",
    ),
    whole(
        "WARMUP",
        "Rounds of requests to send before the server is ready, so that users do not wait for kernels; 0 for none.",
        0,
        20,
        "1",
    ),
    replace(
        whole(
            "COMPILERS",
            "Compilers that may run at once. By default as many as cores and memory allow; 0 compiles nothing beside "
            "the start.",
            0,
            64,
        ),
        unset="auto",
    ),
    whole(
        "HANG_LIMIT",
        "Seconds after which a server whose engine is stuck is ended, so that Docker starts it again; 0 for never.",
        0,
        86400,
        "300",
        unit="seconds",
    ),
    whole(
        "MEMORY_FLOOR",
        "GB that the host keeps where it shares its memory with the GPU: with less, the server is ended, not the "
        "host; 0 for never.",
        0,
        64,
        "2",
        unit="GB",
    ),
    Setting(
        "ALLOCATOR",
        "choice",
        "How PyTorch takes GPU memory: `native`, or `expandable` segments that grow. These leave more after long "
        "prompts of some models, and break others.",
        choices=("native", "expandable"),
    ),
    whole("NODES", "Machines that share the model (docs/two-sparks.md).", 1, 8, "1"),
    whole("NODE_RANK", "This machine's rank: 0 for the head, which serves the API, 1, 2 … for the others.", 0, 7),
    Setting("HEAD_ADDRESS", "text", "The head's IPv4 address on the cable, or its name, the same on all machines."),
    Setting("CABLE", "text", "The interface of the cable. By default the one whose network has HEAD_ADDRESS."),
    whole(
        "HEAD_PORT",
        "The head's port for the other machines' processes; the next one is used too. Both must be free.",
        1024,
        65534,
        "29501",
    ),
    Setting(
        "PAIR_SECRET_FILE",
        "path",
        "A file in the container with a secret that all machines know; without it, any machine on the cable can pose "
        "as one of them.",
    ),
    Setting("MODS", "list", "Mods in MODS_PATH to apply at start-up. If one fails, the server does not start."),
    Setting("MODS_PATH", "path", "The folder where mods are mounted.", default="/mods"),
    Setting(
        "ENABLE_TURBOQUANT",
        "switch",
        "Compress the KV cache with TurboQuant: room for more context and requests, slightly slower.",
        default="0",
    ),
    Setting(
        "TQ_MODE",
        "choice",
        "`hybrid` and `full_tq`, today the same, compress the KV cache; `off` does not; `capture_only` is refused.",
        choices=("off", "capture_only", "hybrid", "full_tq"),
        default="hybrid",
    ),
    whole(
        "TQ_KEY_BITS",
        "Bits per key. vLLM supports 8/4, 4/4, 3/4 and 3/3 (key/value); others use the next larger pair, or 8/4.",
        3,
        8,
        "4",
    ),
    whole("TQ_VALUE_BITS", "Bits per value.", 2, 8, "4"),
    whole(
        "TQ_RING_CAPACITY",
        "Ignored; accepted for old scripts. vLLM's TurboQuant has no such option.",
        0,
        MOST,
        "128",
    ),
    whole(
        "TQ_INITIAL_LAYERS",
        "Ignored; accepted for old scripts. vLLM's TurboQuant never compresses the first and last layers.",
        0,
        1000,
        "4",
    ),
    Setting("EXTRA_ARGS", "flags", "More flags for `vllm serve`, quoted as in a shell."),
    Setting(
        "CHECKS",
        "choice",
        "What a failed check does: `enforce` stops the start, `strict` also stops it for a warning, `warn` only "
        "warns, `off` skips all checks.",
        choices=("enforce", "strict", "warn", "off"),
        default="enforce",
    ),
    Setting(
        "SKIP_CHECKS",
        "list",
        "Checks to skip: gpu, driver, host, kernels, model, drafter, disk, memory, shm, kv-disk, settings, flags, "
        "combination, port, api-key, pair.",
    ),
)


class VllmServer(Server):
    """vLLM, which has distributions of their own for machines without a GPU."""

    def distribution_on(self, arch: Arch) -> str:
        return arch.distribution

    def model_document(self, drafter: Drafter, version: ServerVersion) -> dict[str, Any]:
        """Return the value of --speculative-config, without a revision."""
        config: dict[str, Any] = {
            "method": drafter.method,
            "model": drafter.repo,
            "num_speculative_tokens": drafter.tokens,
        }
        # The key exists since vLLM 0.21.0.
        if drafter.attention_backend and version.within(">=0.21.0.dev0"):
            config["attention_backend"] = drafter.attention_backend
        return {"speculative_config": config | drafter.config}

    def in_words_of(self, version: ServerVersion, serve: dict[str, Any], weights: str) -> dict[str, Any]:
        """Name the quantization of 16-bit weights at the start, which `fp8` stands for, as the version does."""
        renamed = weights == "bf16" and serve.get("quantization") == "fp8" and version.within(">=0.32.0.dev0")
        return serve | {"quantization": "fp8_per_tensor"} if renamed else serve

    def start_variables(self, version: ServerVersion, arch: Arch) -> dict[str, str]:
        """Have the engine take over what the front end imported: on an H200 its step takes 4 s, not 10.

        Before 0.33.0 a forked engine hangs in OpenMP if its parent used that. WSL and Ray are excluded by vLLM itself.
        """
        forks = arch.capability and version.within(">=0.33.0.dev0")
        return {"VLLM_WORKER_MULTIPROC_METHOD": "fork"} if forks else {}


_ON_GPU: Final = {
    "HF_HUB_OFFLINE": "1",
    "SKIP_CHECKS": "disk,memory",
    "SERVED_MODEL_NAME": "tiny",
    "DFLASH_DRAFTER": "off",
    "ATTENTION_BACKEND": "auto",
    "MAX_MODEL_LEN": "256",
    "MAX_NUM_SEQS": "4",
    # No more than all requests hold: vLLM tries a full step before the first request.
    "MAX_NUM_BATCHED_TOKENS": "1024",
    "GPU_MEMORY_UTILIZATION": "0.2",
    "QUANTIZATION": "auto",
    "DTYPE": "bfloat16",
    "KV_CACHE_DTYPE": "auto",
    "ENFORCE_EAGER": "1",
    "LOAD_FORMAT": "dummy",
    "TRUST_REMOTE_CODE": "0",
    "ENABLE_AUTO_TOOL_CHOICE": "0",
    "TOOL_CALL_PARSER": "off",
    "REASONING_PARSER": "off",
}

SERVER: Final = VllmServer(
    name=VLLM,
    distribution="vllm",
    settings=SCHEMA,
    tensor_parallel="-tp",
    cache="VLLM_CACHE_ROOT",
    on_gpu=_ON_GPU,
    recipes=("eugr", "sparkrun"),
    kernel_wheels=("flashinfer*",),
    kernel_files=("vllm/*", "flashinfer*/*"),
)
