"""Models of a real shape with generated weights: what servers do with them can be measured without a download.

The folder has no weights: with `LOAD_FORMAT=dummy` the server makes the same random ones at every start, which takes no
disk. Their answers are noise, so results say that they are generated.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.check.bench.profiles import MIXED, load_prompts
from imagefactory.check.weights import PREFIX
from imagefactory.errors import InputError, unknown_name
from imagefactory.project.data import DATA
from imagefactory.store.atomic import writing
from imagefactory.store.digests import parse_json
from imagefactory.store.paths import read_text

SETTINGS: Final = {
    "LOAD_FORMAT": "dummy",
    "DFLASH_DRAFTER": "off",
    "TOOL_CALL_PARSER": "off",
    "ENABLE_AUTO_TOOL_CHOICE": "0",
    "REASONING_PARSER": "off",
}
"""What an image needs to serve one: parsers look for words that the tokenizer lacks."""
_SHAPES: Final = Path(DATA, "shapes")


def folder_name(shape: str) -> str:
    """Return the name of the model's folder; `shape` is a name in data/shapes, or the path of a config."""
    path = Path(shape)
    return f"{PREFIX}{path.parent.name if path.name == 'config.json' else path.name.removesuffix('.json')}"


def shapes(root: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((root / _SHAPES).glob("*.json"))}


def write_model(root: Path, shape: str, folder: Path) -> None:
    """Write the files of a model: a config, and a tokenizer that has a word for every token of the vocabulary."""
    known = shapes(root)
    path = known.get(shape, Path(shape).expanduser())
    if not path.is_file():
        hint = " Or name a file: the config.json of a model."
        raise unknown_name("shape", shape, known, _SHAPES.as_posix(), hint=hint)
    files = tiny_model()
    tokens = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}  # those of the tiny model's tokenizer
    config = _config(path) | tokens
    files["config.json"] = json.dumps(config, indent=1).encode()
    files["tokenizer.json"] = _tokenizer(files["tokenizer.json"], config["vocab_size"], load_prompts(root).of(MIXED))
    about = parse_json(files["tokenizer_config.json"]) | {"model_max_length": config["max_position_embeddings"]}
    files["tokenizer_config.json"] = json.dumps(about, indent=1).encode()
    for name, data in files.items():
        with writing(folder / name) as file:
            file.write(data)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = parse_json(read_text(path))
        # Of a model that sees, the part that writes: images would need its processor.
        text = config.get("text_config", config)
        if isinstance(text["vocab_size"], int) and isinstance(text["max_position_embeddings"], int):
            architecture = re.sub("ForConditionalGeneration$", "ForCausalLM", config["architectures"][0])
            return {"torch_dtype": "bfloat16", **text, "architectures": [architecture]}
        why = "`vocab_size` or `max_position_embeddings` is no number"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it lacks what every config has ({type(error).__name__}: {error})"
    raise InputError(
        "bad-model-config",
        "The config of the model cannot be read.",
        where=path,
        why=f"{why[:1].upper()}{why[1:]}.",
        fix="Name the config.json of a language model.",
    )


def _tokenizer(tiny: bytes, size: int, texts: tuple[str, ...]) -> bytes:
    """Give the tokenizer of single bytes the words of our prompts, so that they have as many tokens as elsewhere."""
    document = parse_json(tiny)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    # A special token that the vocabulary lacks would get the number after its last word, and not its own.
    vocabulary |= {token["content"]: token["id"] for token in document["added_tokens"]}
    taken = set(vocabulary.values())
    free = (number for number in range(size) if number not in taken)
    words = dict.fromkeys(word for text in texts for word in re.findall(r" ?[A-Za-z]+", text))
    # Ġ is a space: https://huggingface.co/docs/tokenizers/api/pre-tokenizers, ByteLevel.
    for piece in (word.replace(" ", "Ġ") for word in words):
        if piece not in vocabulary:
            vocabulary[piece] = next(free)
    # The rest, so that whatever a random model says is a word.
    for number in free:
        vocabulary[f"Ġt{number}"] = number
    # A word that the vocabulary has is taken as it is; there are no merges that could lead to it.
    document["model"]["ignore_merges"] = True
    return json.dumps(document).encode()
