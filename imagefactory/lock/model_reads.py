"""Computes what a token reads of weights that it does not read whole: a few experts, a row of each table.

The files have the sizes; config.json says what a token leaves out. So the result is as good as the bits of an expert's
value, and small parts with other ones, such as norms, do not matter. docs/models.md has the formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from imagefactory.serve_program import checkpoint

Config = Mapping[str, Any]
_OF: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN: Final = ("num_experts_per_tok", "top_k_experts", "experts_per_token")
_DRAFT_LAYERS: Final = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_BITS: Final = {"mxfp4": 4 + 8 / 32, "NVFP4": 4 + 8 / 16, "fp8": 8, "FP8": 8}  # 8-bit scales for 32 and 16 values
GB: Final = 1e9
_BYTES: Final = 2  # of a value that is not quantized


@dataclass(frozen=True)
class Experts:
    """The experts of all layers."""

    layers: int
    of: int
    chosen: int
    shape: tuple[int, int, int]
    """Matrices, rows and columns of each."""
    bits: float
    """Of a value, with its part of the scales; 0 if config.json does not say it."""

    def size(self, layers: int, bits: float) -> float:
        """Return the bytes of the experts of so many layers."""
        matrices, rows, columns = self.shape
        return layers * self.of * matrices * rows * columns * bits / 8

    @property
    def bytes(self) -> float:
        return self.size(self.layers, self.bits)

    def __str__(self) -> str:
        return "{} layers of experts of {} x {} x {}".format(self.layers, *self.shape)


@dataclass(frozen=True)
class Reads:
    """What matrix.yaml says about it; nothing for a model that a token reads whole."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """By the keys of `memory`."""
    words: str = ""
    gaps: tuple[str, ...] = ()
    """What cannot be derived."""


def number(config: Config, *names: str) -> int:
    """Return the first of these settings that is a sane count; 0 if none is."""
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and 0 < value < checkpoint.LARGEST), 0)


def experts_of(config: Config) -> Experts | None:
    """Find the experts that a config describes; None if it has none, or leaves out how large they are."""
    gated = "relu2" not in (config.get("mlp_hidden_act"), config.get("hidden_act"))
    shape = (
        3 if gated else 2,
        number(config, "moe_latent_size", "hidden_size"),
        number(config, "moe_intermediate_size", "intermediate_size"),
    )
    found = Experts(_layers(config), number(config, *_OF), number(config, *_CHOSEN), shape, _bits(config))
    return found if all((found.layers, found.of, found.chosen, *shape)) else None


def reads_of(config: Config, weights_gb: float) -> Reads:
    """Compute what a token reads of a model whose files have so many gigabytes."""
    experts = experts_of(config)
    if number(config, *_OF) and (experts is None or not experts.bits):
        return Reads(gaps=("active_gb and experts: config.json does not say how large an expert is",))
    if experts is None and not _tables(config):
        return Reads()  # all of it, but for one table and a tower
    active = round(weights_gb - _left_out(config, experts) / GB, 1)
    values: dict[str, Any] = {"active_gb": max(active, 0.0)}
    if experts:
        values["experts"] = {"gb": round(experts.bytes / GB, 1), "chosen": experts.chosen, "of": experts.of}
    too_small = f"active_gb: a token leaves out more than the {weights_gb} GB of files"
    return Reads(values, str(experts or ""), (too_small,) if weights_gb and active <= 0 else ())


def _left_out(config: Config, experts: Experts | None) -> float:
    """Return the bytes that a token of text does not read without drafts."""
    # Where the head is the table of embeddings, it is read whole.
    tied = bool(config.get("tie_word_embeddings"))
    embeddings = 0 if tied else number(config, "vocab_size") * number(config, "hidden_size")
    unused = (embeddings + _tables(config)) * _BYTES + _tower(config)
    if experts is None:
        return unused
    # Those who quantize name what they spare, and a draft layer is mostly among it.
    spared = "mtp" in str(config.get("quantization_config")).lower()
    draft = experts.size(number(config, *_DRAFT_LAYERS), 8 * _BYTES if spared else experts.bits)
    return unused + draft + experts.bytes * (1 - experts.chosen / experts.of)


def _tables(config: Config) -> int:
    """Count the values in tables of embeddings that each layer has for itself, as in Gemma 4 E4B."""
    rows, columns = number(config, "vocab_size_per_layer_input"), number(config, "hidden_size_per_layer_input")
    return rows * columns * number(config, "num_hidden_layers")


def _layers(config: Config) -> int:
    """Count the layers with experts."""
    kinds, letters = config.get("mlp_layer_types"), config.get("hybrid_override_pattern")
    if isinstance(kinds, list):
        return sum(kind != "dense" for kind in kinds)
    if isinstance(letters, str):
        return letters.count("E")
    blocks = config.get("layers_block_type")
    if isinstance(blocks, list):
        return blocks.count("moe")
    first, step = number(config, "first_k_dense_replace"), number(config, "decoder_sparse_step", "moe_layer_freq") or 1
    layers = range(first, min(number(config, "num_hidden_layers"), checkpoint.MOST_LAYERS))
    dense = config.get("mlp_only_layers")
    others = dense if isinstance(dense, list) else ()
    return sum((layer + 1) % step == 0 and layer not in others for layer in layers)


def _bits(config: Config) -> float:
    """Return the bits of an expert's value with its part of the scales; 0 if they are unknown."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return 8 * _BYTES
    if config.get("expert_dtype"):  # DeepSeek V4: the quantization is of all but experts
        return 0
    name = str(quantization.get("quant_algo") or quantization.get("quant_method"))
    if name in _BITS:
        return _BITS[name]
    groups = quantization.get("config_groups")  # compressed-tensors; others say it at once
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else quantization
    if not isinstance(weights, dict) or not (bits := number(weights, "num_bits", "bits")):
        return 0
    of_group = number(weights, "group_size")
    scale = 8 if weights.get("type") == "float" else 16 + bits  # with a zero point
    return bits + (scale / of_group if of_group else 0)


def _tower(config: Config) -> float:
    """Return the bytes of the layers that read images."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    size, inner = number(vision, "hidden_size"), number(vision, "intermediate_size")
    matrices = 3 if str(vision.get("model_type")).startswith(("gemma", "pixtral")) else 2  # with a gate, or without
    return number(vision, "depth", "num_hidden_layers") * (4 * size * size + matrices * size * inner) * _BYTES
