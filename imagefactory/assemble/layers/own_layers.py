"""Lists the files of layers that the factory writes itself: the serve program, links to the CUDA toolkit, models."""

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import Environment, ModelSettings, ServeLayer
from imagefactory.plan.serve.description import settings_bytes
from imagefactory.plan.serve.image_paths import CACHES, CUDA_HOME, SETTINGS, SHARE
from imagefactory.store.digests import Sha256


def serve_entries(layer: ServeLayer, files: Mapping[Sha256, Path]) -> Iterable[Entry]:
    """List the entries of the layer; any user may write to the cache folder, since a container can run as anyone."""
    for item in layer.inputs:
        path = ImagePath(layer.settings.files[item.name])
        yield Entry(path, EntryKind.FILE, 0o644, Bytes(files[item.sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), EntryKind.DIRECTORY, 0o1777)
    if layer.settings.toolkit is not None:
        yield from toolkit_links(layer.settings.toolkit)
    yield from _links(layer.settings.links)


_LIBRARIES = {
    "cublas": 13,
    "cublasLt": 13,
    "cudart": 13,
    "cufft": 12,
    "curand": 10,
    "cusolver": 12,
    "cusparse": 12,
    "nvJitLink": 13,
    "nvrtc": 13,
}
"""The libraries of CUDA 13 and their major versions."""


def toolkit_links(environment: Environment) -> list[Entry]:
    wheels = f"{environment.site}/nvidia/cu13"
    links = {CUDA_HOME: f"/{wheels}", f"{wheels}/lib64": "lib"}
    links |= {f"{wheels}/lib/lib{name}.so": f"lib{name}.so.{major}" for name, major in _LIBRARIES.items()}
    return _links(links)


def _links(targets: Mapping[str, str]) -> list[Entry]:
    return [Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target) for path, target in sorted(targets.items())]


MODEL = f"{SHARE}/model.json"
MODELS = "opt/models"


def model_entries(settings: ModelSettings) -> list[Entry]:
    text = json.dumps(settings.model, indent=2, sort_keys=True) + "\n"
    files = {MODEL: text.encode(), SETTINGS: settings_bytes(settings.description)}
    if settings.model.get("generated") == "tiny":
        files |= {f"{MODELS}/tiny/{name}": data for name, data in tiny_model().items()}
    return [Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(data)) for path, data in sorted(files.items())]


HIDDEN = 64
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BYTE_LEVEL = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model() -> dict[str, bytes]:
    """Return a model small enough for any machine: two layers, a tokenizer of single bytes, no weights.

    vLLM makes random weights (`--load-format dummy`), so the output is noise; what matters is that a real server
    produces it.
    """
    vocabulary = {symbol: index for index, symbol in enumerate(_byte_symbols())}
    special = {token: len(vocabulary) + index for index, token in enumerate(_SPECIAL)}
    end = special["<|im_end|>"]
    files: dict[str, object] = {
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "vocab_size": 384,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "torch_dtype": "float32",
            "bos_token_id": special["<|endoftext|>"],
            "eos_token_id": end,
        },
        "generation_config.json": {"eos_token_id": end, "pad_token_id": special["<|endoftext|>"]},
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": index,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token, index in special.items()
            ],
            "normalizer": None,
            "pre_tokenizer": {**_BYTE_LEVEL, "add_prefix_space": False},
            "post_processor": None,
            "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 512,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": _CHAT_TEMPLATE,
        },
    }
    return {name: (json.dumps(data, indent=1, sort_keys=True) + "\n").encode() for name, data in files.items()}


def _byte_symbols() -> list[str]:
    """Return the printable characters that byte-level tokenizers use for the 256 bytes, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
