"""Describes the memory of a model for matrix.yaml, from its config.json and the sizes of its files.

The container's own code sums up the layers that it knows; here are the other spellings and kinds. docs/models.md has
the formula.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from imagefactory.errors import InputError
from imagefactory.lock.hub import ask_hub, read_hub_file
from imagefactory.lock.model_reads import Config, number, reads_of
from imagefactory.serve_program import WeightFile, checkpoint, needed_files
from imagefactory.store.digests import parse_json
from imagefactory.store.paths import open_regular

CONFIG: Final = "config.json"
FULL, SLIDING, LINEAR, MAMBA, NONE = "full_attention", "sliding_attention", "linear_attention", "mamba", "none"
_KINDS: Final = {
    **{kind: kind for kind in (FULL, SLIDING, LINEAR, MAMBA)},
    "attention": FULL,
    "mlp": NONE,
    "moe": NONE,  # Nemotron and Granite
}
_LETTERS: Final = {"M": MAMBA, "*": FULL, "E": NONE, "-": NONE}  # Nemotron's hybrid_override_pattern
_LINEAR_STATE: Final = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")  # as Qwen names it
_MAMBA_STATE: Final = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")  # as Nemotron names it
_GRANITE_STATE: Final = ("mamba_n_heads", "mamba_d_head", "mamba_d_state")
_UNKNOWN: Final = ("compress_ratios", "attn_type_list", "attn_layer_period", "mamba_d_ssm", "attention_chunk_size")
"""Keys of other arrangements of layers: DeepSeek V4, MiniMax, Jamba, Falcon-H1, Llama 4."""
_BYTES, _STATE_BYTES = 2, 4  # of a value in a cache that is not compressed, and of one in a state
_LARGEST: Final = 16 * 1024 * 1024  # bytes of a config; large ones list the quantized layers


@dataclass(frozen=True)
class ModelMemory:
    """What matrix.yaml says about a model's memory, and what its config leaves open."""

    values: Mapping[str, object]
    """By the keys of `memory`."""
    layers: str
    """The layers with a cache and those with experts, in words."""
    gaps: tuple[str, ...]
    """What cannot be derived."""

    def as_yaml(self) -> str:
        """Return the lines for matrix.yaml."""
        remarks = [self.layers] * bool(self.layers) + [f"Not derived: {gap}" for gap in self.gaps]
        return "\n".join([*(f"    # {remark}." for remark in remarks), f"    memory: {_flow(self.values)}"])


def _flow(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value).lower()
    return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items() if each) + "}"


def describe_model(model: str, drafter: str = "") -> ModelMemory:
    """Describe the memory of a model, and of its drafter; each is a folder, or a repository of the hub."""
    files, config = _read(model)
    drafts = _read(drafter)[0] if drafter else []
    return memory_of(config, files, drafts)


def memory_of(config: Config, files: Iterable[WeightFile], drafter: Iterable[WeightFile] = ()) -> ModelMemory:
    """Compute what a model needs from its config and its files."""
    # A model that sees or hears has a text model, whose layers count.
    text = config.get("text_config") or config.get("llm_config")
    config = {**config, **text} if isinstance(text, dict) else config
    kinds, gaps = _layers(config)
    layers, latent, linear, mamba = Counter(kinds), _latent(config), _linear_state(config), _mamba_state(config)
    # One compressed key and value for all heads, and one key that holds the position.
    per_token = layers[FULL] * latent * _BYTES
    per_sequence, window = layers[MAMBA] * prod(mamba) * _STATE_BYTES, 0
    if plain := [kind for kind in kinds if kind in {SLIDING, LINEAR} or (kind == FULL and not latent)]:
        of_linear = dict(zip(_LINEAR_STATE, linear, strict=True))
        known = {"layer_types": plain, "num_kv_shared_layers": 0, "kv_lora_rank": 0, **of_linear}
        if shape := checkpoint.shape({**config, **known}):
            per_token, per_sequence = per_token + shape.per_token, per_sequence + shape.per_sequence
            window = shape.window
        else:
            gaps.append("the cache: config.json has no heads, or odd numbers")
    for kind, state in ((LINEAR, linear), (MAMBA, mamba)):
        if layers[kind] and not prod(state):
            gaps.append(f"kv_bytes_per_sequence: config.json does not say how large a state of the {kind} layers is")
    if config.get("index_head_dim"):
        gaps.append("the cache of the index that chooses tokens (index_head_dim)")
    weights = _gigabytes(files)
    values: dict[str, object] = {
        "weights_gb": weights,
        "drafter_gb": _gigabytes(drafter),
        "kv_bytes_per_token": per_token,
        "kv_bytes_per_sequence": per_sequence,
        "window": window if LINEAR not in layers and MAMBA not in layers else 0,
        "context": number(config, "max_position_embeddings"),
        "hybrid": LINEAR in layers or MAMBA in layers,
        "latent": bool(latent),
    }
    read = reads_of(config, weights)
    values |= read.values
    gaps += read.gaps
    gaps += [f"{name}: nothing says it" for name in ("weights_gb", "kv_bytes_per_token", "context") if not values[name]]
    return ModelMemory(values, ". ".join(filter(None, (_in_words(config, layers), read.words))), tuple(gaps))


def _read(model: str) -> tuple[list[WeightFile], Config]:
    if checkpoint.is_path(model):
        folder = Path(model).expanduser()
        files = [WeightFile(path.name, path.stat().st_size, "") for path in sorted(folder.iterdir()) if path.is_file()]
        where = str(folder / CONFIG)
        with open_regular(folder / CONFIG) as file:
            text = file.read(_LARGEST)
    else:
        revision = ask_hub(model)
        files = [WeightFile(path, file.size, file.hash) for path, file in revision.files.items()]
        where = f"{CONFIG} of {model}"
        text = read_hub_file(revision, CONFIG)
    try:
        config = parse_json(text)
    except ValueError:
        config = None
    if isinstance(config, dict):
        return files, config
    raise InputError(
        "bad-model-config",
        "The config of the model cannot be read.",
        where=where,
        why="It is not an object in JSON.",
        fix="Name a repository or a folder with a model in the format of Transformers.",
    )


def _gigabytes(files: Iterable[WeightFile]) -> float:
    weights = (file.size for file in needed_files(files, "vllm") if file.path.endswith(checkpoint.WEIGHTS))
    return round(sum(weights) / 1e9, 1)


def _layers(config: Config) -> tuple[list[str], list[str]]:
    """Return the kinds of the layers that have a cache of their own, and what is not known about them."""
    if other := next((key for key in _UNKNOWN if config.get(key)), ""):
        return [], [f"the cache of layers with {other}: measure it"]
    kinds, gaps = _kinds_of_all(config)
    shared = number(config, "num_kv_shared_layers")  # the last ones read the cache of others
    kinds = kinds[: len(kinds) - shared][: checkpoint.MOST_LAYERS]
    unknown = Counter(kind for kind in kinds if kind not in {FULL, SLIDING, LINEAR, MAMBA, NONE})
    gaps += [f"the cache of {count} layers of the kind {kind[:40]!r}" for kind, count in unknown.items()]
    return kinds, gaps


def _kinds_of_all(config: Config) -> tuple[list[str], list[str]]:
    listed = config.get("layer_types") or config.get("layers_block_type")
    letters, kimi = config.get("hybrid_override_pattern"), config.get("linear_attn_config")
    layers = range(1, min(number(config, "num_hidden_layers"), checkpoint.MOST_LAYERS) + 1)
    if isinstance(listed, list):
        return [_KINDS.get(str(kind), str(kind)) for kind in listed], []
    if isinstance(letters, str):
        return [_LETTERS.get(letter, letter) for letter in letters if letter != "|"], []
    if isinstance(kimi, dict) and isinstance(kimi.get("full_attn_layers"), list):
        return [FULL if layer in kimi["full_attn_layers"] else LINEAR for layer in layers], []
    for key, kind in checkpoint.GROUPS.items():
        if group := number(config, key):
            return [FULL if layer % group == 0 else kind for layer in layers], []
    windows = config.get("sliding_window") and config.get("use_sliding_window") is not False
    return [FULL] * len(layers), ["which layers have the sliding_window: all count as full"] if windows else []


def _latent(config: Config) -> int:
    """Return the values per token of a layer with latent attention; 0 without it."""
    latent = number(config, "kv_lora_rank")
    return latent and latent + number(config, "qk_rope_head_dim")


def _linear_state(config: Config) -> list[int]:
    """Return the heads of a linear layer's state, its rows and its columns."""
    kimi = config.get("linear_attn_config")
    if isinstance(kimi, dict):
        return [number(kimi, name) for name in ("num_heads", "head_dim", "head_dim")]
    if config.get("layer_group_size"):  # Ling
        return [number(config, name) for name in ("num_attention_heads", "head_dim", "head_dim")]
    return [number(config, name) for name in _LINEAR_STATE]


def _mamba_state(config: Config) -> list[int]:
    names = zip(_MAMBA_STATE, _GRANITE_STATE, strict=True)
    return [number(config, nemotron) or number(config, granite) for nemotron, granite in names]


def _in_words(config: Config, layers: Mapping[str, int]) -> str:
    """Describe the layers, as comments in matrix.yaml do."""
    queries = number(config, "num_attention_heads")
    heads = number(config, "num_key_value_heads") or queries
    size = number(config, "head_dim") or number(config, "hidden_size") // max(1, queries)
    full = (number(config, "num_global_key_value_heads") or heads, number(config, "global_head_dim") or size)
    latent, state = _latent(config), "with a 32-bit state of {} heads of {} x {}"
    words = {
        FULL: f"latent attention layers of {latent} values"
        if latent
        else "full attention layers of {} heads of {}".format(*full),
        SLIDING: f"sliding ones of {heads} heads of {size} over {number(config, 'sliding_window')} tokens",
        LINEAR: f"linear ones {state.format(*_linear_state(config))}",
        MAMBA: f"Mamba layers {state.format(*_mamba_state(config))}",
    }
    return "; ".join(f"{layers[kind]} {text}" for kind, text in words.items() if layers[kind])
