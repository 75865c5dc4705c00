"""Models with generated weights: their shapes, their tokenizers, and how results tell them from real ones."""

import json
from pathlib import Path

import pytest

from imagefactory.check.bench.generated import SETTINGS, folder_name, shapes, write_model
from imagefactory.check.bench.profiles import MIXED, load_prompts
from imagefactory.check.weights import weights_of
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises


@pytest.mark.parametrize("shape", shapes(REPOSITORY))
def test_every_token_of_a_shape_is_a_word_and_our_prompts_have_few(shape: str, tmp_path: Path) -> None:
    assert folder_name(shape) == f"generated-{shape}"
    write_model(REPOSITORY, shape, tmp_path)
    config, tokenizer = (json.loads((tmp_path / name).read_text()) for name in ("config.json", "tokenizer.json"))
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert special.items() <= vocabulary.items()
    assert {config["bos_token_id"], config["eos_token_id"]} <= set(special.values())
    text = load_prompts(REPOSITORY).of(MIXED)[0]
    words = [word for word in text.replace(" ", " Ġ").split() if word.lstrip("Ġ").isalpha()]
    assert words
    assert all(word in vocabulary for word in words)
    assert len(config.get("layer_types", range(config["num_hidden_layers"]))) == config["num_hidden_layers"]


def test_a_config_of_a_model_that_sees_becomes_one_that_writes(tmp_path: Path) -> None:
    text = {"vocab_size": 1000, "max_position_embeddings": 4096, "model_type": "x_text"}
    config = {"architectures": ["XForConditionalGeneration"], "model_type": "x", "text_config": text}
    (tmp_path / "x-7b").mkdir()
    path = tmp_path / "x-7b" / "config.json"
    path.write_text(json.dumps(config))
    write_model(REPOSITORY, str(path), tmp_path / folder_name(str(path)))
    written = json.loads((tmp_path / "generated-x-7b" / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == (["XForCausalLM"], "x_text")
    for wrong in ("{}", "[]", "x", json.dumps({**config, "text_config": {"vocab_size": "1"}})):
        path.write_text(wrong)
        with raises("bad-model-config"):
            write_model(REPOSITORY, str(path), tmp_path / "out")
    with raises("unknown-name", "gemma4-26b-a4b"):
        write_model(REPOSITORY, "gemma5", tmp_path / "out")


def test_random_weights_are_known_by_the_setting_or_by_the_folder() -> None:
    assert weights_of(SETTINGS) == "generated"
    assert weights_of({"MODEL_PATH": "/root/.cache/huggingface/generated-small"}) == "generated"
    assert weights_of({}, "/models/generated-small") == "generated"
    assert weights_of({"MODEL_PATH": "/models/gemma", "LOAD_FORMAT": "auto"}) == ""
