"""Finds a model's folder, lists missing files, and derives the size of the KV cache from its config."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
INDEX = "model.safetensors.index.json"
SHOWN = 3
MOST_LAYERS, LARGEST = 10_000, 1 << 50
"""Layers, and bytes or tokens, that no model has: a config is somebody else's text."""
GROUPS = {
    "full_attention_interval": "linear_attention",
    "layer_group_size": "linear_attention",
    "sliding_window_pattern": "sliding_attention",
}
"""Keys for the size of a group of layers, of which the last has full attention (Qwen3-Next, Ling, Gemma 3)."""
OTHER_LISTS = {"hybrid_override_pattern", "layers_block_type", "linear_attn_config"}
"""Keys that list kinds of layers in a model's own words (Nemotron, Kimi)."""
_BYTES = 2
"""Bytes per value in an uncompressed KV cache."""


class Shape(NamedTuple):
    """The size of the KV cache in bytes, with 16-bit values."""

    per_token: int
    per_sequence: int
    context: int
    hybrid: bool
    window: int = 0
    """The tokens of a sliding window; then all but `states` of `per_sequence` is theirs."""
    states: int = 0


def hub_cache(environment: dict[str, str] | os._Environ[str]) -> str:
    caches = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    home = environment.get("HF_HOME") or Path(caches, "huggingface")
    return environment.get("HF_HUB_CACHE") or str(Path(home, "hub"))


def is_path(model: str) -> bool:
    """Whether a model is a folder rather than a repository."""
    return model.startswith(("/", ".", "~")) or is_folder(model)


def is_folder(path: str) -> bool:
    """Whether a path is that of a folder; any text may be asked about, also one too long for a path."""
    return os.path.isdir(path)  # noqa: PTH112 - Path raises errors


def locate(model: str, revision: str, cache: str) -> str | None:
    """Return the model if it is a folder, else its snapshot in the download cache; None if there is none."""
    if is_path(model):
        return model
    place = repository(cache, model)
    if not revision:
        try:
            revision = (place / "refs" / "main").read_text("ascii").strip()
        except (OSError, ValueError):
            return None
    folder = str(place / "snapshots" / revision)
    return folder if is_folder(folder) else None


def repository(cache: str, repo: str) -> Path:
    return Path(cache, "models--" + repo.replace("/", "--"))


def missing_files(folder: str, *, weights: bool) -> list[str]:
    """List the files missing from a model's folder; `weights` says whether it needs any."""
    try:
        present = {path.name for path in Path(folder).iterdir()}
    except OSError:
        return [folder]
    missing = [] if present & {"config.json", "params.json"} else ["config.json"]
    if not present & set(TOKENIZERS):
        missing.append("tokenizer.json")
    if not weights:
        return missing
    index = read_json(Path(folder, INDEX))
    if index is not None:
        shards = index.get("weight_map")
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else [INDEX]
        return missing + [name for name in names if name not in present]
    if not any(name.endswith(WEIGHTS) for name in present):
        missing.append("*.safetensors")
    return missing


def some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def weights_size(folder: str) -> int | None:
    try:
        sizes = [path.stat().st_size for path in Path(folder).iterdir() if path.name.endswith(WEIGHTS)]
    except OSError:
        return None
    return sum(sizes) or None


def config_of(folder: str | None) -> dict[str, Any] | None:
    """Read config.json; values of the text model take precedence."""
    config = read_json(Path(folder, "config.json")) if folder else None
    text = config and config.get("text_config")
    return {**config, **text} if config and isinstance(text, dict) else config


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def shape(config: dict[str, Any] | None) -> Shape | None:
    """Compute the size of the KV cache per token and per sequence; None for an unknown kind of config."""
    try:
        found = _shape(config or {})
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return found if all(0 <= size < LARGEST for size in (*found[:3], found.window, found.states)) else None


def _shape(config: dict[str, Any]) -> Shape:
    if config.get("kv_lora_rank"):
        raise KeyError("latent attention, whose cache follows from more than heads")
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    # The full-attention layers of Gemma 4 have other heads than the sliding ones.
    full_heads = int(config.get("num_global_key_value_heads") or heads)
    full_width = int(config.get("global_head_dim") or width)
    kinds = config.get("layer_types") or _grouped(config)
    window = int(config.get("sliding_window") or 0)
    per_token = windows = states = 0
    # The last layers of small Gemma models read the cache of others.
    own = max(0, len(kinds) - int(config.get("num_kv_shared_layers") or 0))
    for kind in kinds[:own]:
        if kind == "full_attention":
            per_token += 2 * full_heads * full_width * _BYTES
        elif kind == "sliding_attention":
            windows += 2 * heads * width * _BYTES * window
        else:
            states += _linear_state(config)
    hybrid = any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds)
    context = int(config.get("max_position_embeddings") or 0)
    return Shape(per_token, windows + states, context, hybrid, window if windows else 0, states)


def _grouped(config: dict[str, Any]) -> list[str]:
    """Return the kinds of the layers of a config that lists none."""
    if OTHER_LISTS & config.keys():
        raise KeyError("kinds of layers that only its own code tells apart")
    layers = range(MOST_LAYERS).index(int(config["num_hidden_layers"]))  # refuses numbers that are out of range
    key = next((key for key in GROUPS if config.get(key)), None)
    group, kind = (int(config[key]), GROUPS[key]) if key else (1, "")
    return ["full_attention" if layer % group == 0 else kind for layer in range(1, layers + 1)]


def _linear_state(config: dict[str, Any]) -> int:
    """Return the size of the recurrent state of a linear attention layer (Gated DeltaNet), in 32-bit values."""
    heads = int(config.get("linear_num_value_heads") or 0)
    keys, values = int(config.get("linear_key_head_dim") or 0), int(config.get("linear_value_head_dim") or 0)
    return heads * keys * values * 4
