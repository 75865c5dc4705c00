"""Tests describing a model's memory from its config and its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagefactory.lock import hub
from imagefactory.lock.model_memory import describe_model, memory_of
from imagefactory.lock.model_reads import experts_of, reads_of
from imagefactory.project.matrix import load_matrix
from imagefactory.project.served_model import Memory
from imagefactory.serve_program import WeightFile
from imagefactory.store.http import Retry
from images.shipped.yamlfile import parse_yaml
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.inv import Inv
from tests.fixtures.model_hub import COMMIT, ModelHub

GB = 1_000_000_000
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

# What the makers' configs say about layers; text_config and the spelling of layers are as published.
GEMMA_4_31B = {
    "text_config": {
        "num_hidden_layers": 60,
        "layer_types": ([SLIDING] * 5 + [FULL]) * 10,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "num_global_key_value_heads": 4,
        "global_head_dim": 512,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
    }
}
GEMMA_4_E4B = {
    "text_config": {
        "num_hidden_layers": 42,
        "layer_types": ([SLIDING] * 5 + [FULL]) * 7,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_global_key_value_heads": None,
        "global_head_dim": 512,
        "num_kv_shared_layers": 18,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
    }
}
GEMMA_4_E2B = {
    "text_config": {
        **GEMMA_4_E4B["text_config"],
        "num_hidden_layers": 35,
        "layer_types": ([SLIDING] * 4 + [FULL]) * 7,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
    }
}
QWEN_3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_position_embeddings": 40960,
}
QWEN_35_27B = {
    "text_config": {
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "layer_types": ([LINEAR] * 3 + [FULL]) * 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
    }
}
QWEN_3_CODER_NEXT = {  # has no list of its layers
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
GPT_OSS_120B = {
    "num_hidden_layers": 36,
    "layer_types": [SLIDING, FULL] * 18,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
}
NEMOTRON_3_NANO = {
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 2688,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "max_position_embeddings": 262144,
}
LING_3_FLASH = {
    "num_hidden_layers": 42,
    "layer_group_size": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 262144,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
}


# Mixtures of experts: sizes as in the configurations of Transformers 5.19, whose defaults most of them are.
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "mtp*", "model.visual*"]}
GEMMA_4_TOWER = {
    "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
}  # fmt: skip
GEMMA_4_26B = {
    "text_config": {
        "vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "tie_word_embeddings": True,
        "hidden_size_per_layer_input": 0,
    },
    "vision_config": GEMMA_4_TOWER,
}  # fmt: skip
QWEN_36_35B: dict[str, Any] = {
    "text_config": {
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304},
    "quantization_config": NVFP4,
}  # fmt: skip
GPT_OSS_MIXTURE = {
    "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
    "num_local_experts": 128, "num_experts_per_tok": 4, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GEMMA_4_E2B_TABLES = {
    "text_config": {
        "vocab_size": 262144, "hidden_size": 1536, "num_hidden_layers": 35, "tie_word_embeddings": True,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_experts": None,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("gemma4-31b", GEMMA_4_31B),
        ("qwen3.5-27b-nvfp4", QWEN_35_27B),
        ("qwen3.8-27b-fp8", QWEN_35_27B),
        ("qwen3-coder-next-nvfp4", QWEN_3_CODER_NEXT),
        ("gpt-oss-120b", GPT_OSS_120B),
        ("gpt-oss-20b", {**GPT_OSS_120B, "num_hidden_layers": 24, "layer_types": [SLIDING, FULL] * 12}),
        ("gemma4-31b-nvfp4-turbo", GEMMA_4_31B),
        ("gemma4-e4b", GEMMA_4_E4B),
        ("gemma4-e2b", GEMMA_4_E2B),
        ("qwen3-8b", QWEN_3_8B),
        ("nemotron-3-nano-nvfp4", NEMOTRON_3_NANO),
        ("nemotron-3-nano-omni-nvfp4", {"llm_config": NEMOTRON_3_NANO}),
        ("ling-3.0-flash-mxfp4", LING_3_FLASH),
    ],
)
def test_the_configs_of_models_give_the_numbers_in_the_matrix(model: str, config: dict[str, Any]) -> None:
    memory = load_matrix(REPOSITORY / "matrix.yaml").models[model].memory
    assert memory is not None
    described = memory_of(config, [WeightFile("model.safetensors", 7 * GB, "")])
    assert described.gaps == ()
    names = ("kv_bytes_per_token", "kv_bytes_per_sequence", "hybrid", "latent")
    assert {name: described.values[name] for name in names} == {name: getattr(memory, name) for name in names}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("gemma4-26b-a4b", GEMMA_4_26B),
        ("gemma4-26b-a4b-nvfp4", GEMMA_4_26B | {"quantization_config": NVFP4}),
        ("qwen3.6-35b-a3b-nvfp4", QWEN_36_35B),
        ("ornith-1.5-35b-a3b-nvfp4", QWEN_36_35B),
        ("gpt-oss-120b", GPT_OSS_MIXTURE),
        ("gpt-oss-120b-dflash", GPT_OSS_MIXTURE),
        ("gpt-oss-20b", {**GPT_OSS_MIXTURE, "num_hidden_layers": 24, "num_local_experts": 32}),
    ],
)
def test_what_a_token_reads_of_experts_is_that_of_the_matrix(model: str, config: dict[str, Any]) -> None:
    memory = load_matrix(REPOSITORY / "matrix.yaml").models[model].memory
    assert memory is not None
    assert memory.experts is not None
    files = [WeightFile("model.safetensors", round((memory.download_gb or memory.weights_gb) * GB), "")]
    described = memory_of(config, files).values
    assert described["experts"] == memory.experts.model_dump()
    assert described["active_gb"] == memory.active_gb


@pytest.mark.parametrize(
    ("config", "layers", "gigabytes"),
    [
        ({"hybrid_override_pattern": "MEM*E", "mlp_hidden_act": "relu2"}, 2, 2 * 8 * 2 * 1000 * 500 * 2e-9),
        ({"layers_block_type": ["mamba", "moe", "moe"], "moe_latent_size": 100}, 2, 2 * 8 * 3 * 100 * 500 * 2e-9),
        ({"mlp_layer_types": ["dense", "sparse", "sparse"]}, 2, 2 * 8 * 3 * 1000 * 500 * 2e-9),
        ({"num_hidden_layers": 6, "first_k_dense_replace": 2}, 4, 4 * 8 * 3 * 1000 * 500 * 2e-9),
        ({"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1]}, 2, 2 * 8 * 3 * 1000 * 500 * 2e-9),
        (
            {"num_hidden_layers": 6, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
            6,
            6 * 8 * 3 * 1000 * 500 * (4 + 20 / 128) / 8e9,
        ),
        (
            {
                "num_hidden_layers": 6,
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
                },
            },
            6,
            6 * 8 * 3 * 1000 * 500 * 4.5 / 8e9,
        ),
        ({"num_hidden_layers": 6, "quantization_config": {"quant_method": "fp8"}}, 6, 6 * 8 * 3 * 1000 * 500 * 1e-9),
    ],
)
def test_layers_of_experts_as_makers_describe_them(config: dict[str, Any], layers: int, gigabytes: float) -> None:
    common = {"hidden_size": 1000, "moe_intermediate_size": 500, "n_routed_experts": 8, "num_experts_per_tok": 2}
    experts = experts_of(common | config)
    assert experts is not None
    assert experts.layers == layers
    assert experts.bytes / GB == pytest.approx(gigabytes)


def test_a_draft_layer_and_tables_of_embeddings_are_not_read() -> None:
    plain = reads_of({**QWEN_36_35B["text_config"], "quantization_config": NVFP4, "mtp_num_hidden_layers": 0}, 23.4)
    drafts = reads_of({**QWEN_36_35B["text_config"], "quantization_config": NVFP4}, 23.4)
    layer = 256 * 3 * 2048 * 512 * 2 / GB
    assert plain.values["active_gb"] - drafts.values["active_gb"] == pytest.approx(layer, abs=0.11)
    tables = memory_of(GEMMA_4_E2B_TABLES, [WeightFile("model.safetensors", round(10.2 * GB), "")])
    assert tables.values["active_gb"] == round(10.2 - 262144 * 35 * 256 * 2 / GB, 1)
    assert "experts" not in tables.values


@pytest.mark.parametrize(
    ("more", "gap"),
    [
        ({"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}, "how large an expert is"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "how large an expert is"),
        ({"quantization_config": {"config_groups": [1]}}, "how large an expert is"),
        ({"num_experts_per_tok": None}, "how large an expert is"),
        ({"mlp_only_layers": 5, "hidden_size": [1]}, "how large an expert is"),
        ({}, "leaves out more than the 1.0 GB of files"),
    ],
)
def test_experts_that_a_config_leaves_open_are_named(more: dict[str, Any], gap: str) -> None:
    described = memory_of(GPT_OSS_MIXTURE | more, [WeightFile("model.safetensors", GB, "")])
    assert [text for text in described.gaps if gap in text]


@pytest.mark.parametrize(
    ("config", "per_token", "per_sequence"),
    [
        (DEEPSEEK_V3, 61 * (512 + 64) * 2, 0),
        (LLAMA_3_8B, 32 * 2 * 8 * 128 * 2, 0),
        (  # the last twelve layers read the cache of earlier ones
            {"text_config": {**GEMMA_4_31B["text_config"], "num_kv_shared_layers": 12}},
            8 * 2 * 4 * 512 * 2,
            40 * 2 * 16 * 256 * 2 * 1024,
        ),
        (  # Kimi Linear: latent attention beside linear layers
            {
                **DEEPSEEK_V3,
                "num_hidden_layers": 4,
                "linear_attn_config": {"full_attn_layers": [4], "num_heads": 32, "head_dim": 128},
            },
            (512 + 64) * 2,
            3 * 32 * 128 * 128 * 4,
        ),
        (  # Granite 4
            {
                **LLAMA_3_8B,
                "layer_types": ["mamba", "attention"],
                "mamba_n_heads": 48,
                "mamba_d_head": 64,
                "mamba_d_state": 128,
            },
            2 * 8 * 128 * 2,
            48 * 64 * 128 * 4,
        ),
        ({**LLAMA_3_8B, "num_hidden_layers": 6, "sliding_window_pattern": 6, "sliding_window": 512},
         2 * 8 * 128 * 2, 5 * 2 * 8 * 128 * 2 * 512),
    ],
    ids=["latent", "dense", "shared", "kimi", "granite", "gemma3"],
)  # fmt: skip
def test_other_kinds_of_layers(config: dict[str, Any], per_token: int, per_sequence: int) -> None:
    described = memory_of(config, [WeightFile("model.safetensors", GB, "")])
    assert (described.gaps, described.values["kv_bytes_per_token"]) == ((), per_token)
    assert described.values["kv_bytes_per_sequence"] == per_sequence


@pytest.mark.parametrize(
    ("more", "gap"),
    [
        ({"compress_ratios": [0, 4, 128]}, "compress_ratios"),
        ({"layer_types": [FULL, "chunked_attention"]}, "1 layers of the kind 'chunked_attention'"),
        ({"layer_types": [FULL, "mamba"]}, "state of the mamba layers"),
        ({"layer_types": [FULL, LINEAR]}, "state of the linear_attention layers"),
        ({"sliding_window": 4096}, "all count as full"),
        ({"index_head_dim": 128}, "index_head_dim"),
        ({"max_position_embeddings": None}, "context"),
        ({"num_attention_heads": None, "num_key_value_heads": "x"}, "no heads"),
        ({"num_hidden_layers": -1}, "kv_bytes_per_token"),
        ({"num_hidden_layers": 1e300}, "kv_bytes_per_token"),
    ],
)
def test_what_a_config_leaves_open_is_named(more: dict[str, Any], gap: str) -> None:
    described = memory_of(LLAMA_3_8B | more, [WeightFile("model.safetensors", GB, "")])
    assert [text for text in described.gaps if gap in text]
    assert f"    # Not derived: {described.gaps[0]}.\n" in described.as_yaml()


def test_a_model_without_a_window_has_none() -> None:
    assert memory_of(LLAMA_3_8B | {"sliding_window": 4096, "use_sliding_window": False}, []).gaps == (
        "weights_gb: nothing says it",
    )


def test_only_the_files_that_servers_read_are_weights() -> None:
    sizes = {"model-1.safetensors": 30, "model-2.safetensors": 3, "original/model.safetensors": 33, "pytorch.bin": 40}
    files = [WeightFile(path, size * GB, "") for path, size in {**sizes, "tokenizer.json": 1}.items()]
    drafter = [WeightFile("model.safetensors", 900_000_000, "")]
    described = memory_of(GEMMA_4_31B, files, drafter)
    assert described.as_yaml() == (
        "    # 10 full attention layers of 4 heads of 512; 50 sliding ones of 16 heads of 256 over 1024 tokens.\n"
        "    memory: {weights_gb: 33.0, drafter_gb: 0.9, kv_bytes_per_token: 81920, kv_bytes_per_sequence: 838860800,"
        " window: 1024, context: 262144}"
    )


@pytest.mark.parametrize(
    "config", [GEMMA_4_31B, LING_3_FLASH, NEMOTRON_3_NANO, DEEPSEEK_V3, GPT_OSS_120B | GPT_OSS_MIXTURE]
)
def test_the_lines_are_those_of_a_matrix(config: dict[str, Any]) -> None:
    lines = memory_of(config, [WeightFile("model.safetensors", 7 * GB, "")]).as_yaml()
    written: Any = parse_yaml(lines, "matrix.yaml").data
    Memory.model_validate(written["memory"])


def test_a_repository_and_a_folder_give_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_hub: ModelHub, inv: Inv
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", model_hub.url)
    files = {"config.json": json.dumps(GPT_OSS_120B).encode(), "model.safetensors": bytes(60_000_000)}
    model_hub.repositories["openai/gpt-oss-120b"] = files
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    expected = (
        "    memory: {weights_gb: 0.1, kv_bytes_per_token: 36864, kv_bytes_per_sequence: 4718592, window: 128,"
        " context: 131072}"
    )
    assert inv("models.describe", "openai/gpt-oss-120b").stdout.splitlines()[-1] == expected
    assert inv("models.describe", str(tmp_path)).stdout.splitlines()[-1] == expected
    asked = [each.target for each in model_hub.server.log]
    assert asked[1:] == [f"/openai/gpt-oss-120b/resolve/{COMMIT}/config.json"]
    assert "drafter_gb: 0.1" in inv("models.describe", str(tmp_path), "--drafter", str(tmp_path)).stdout


def test_a_model_without_a_config_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_hub: ModelHub
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", model_hub.url)
    monkeypatch.setattr(hub, "RETRY", Retry(attempts=1))
    model_hub.repositories["mistralai/x"] = {"params.json": b"{}"}
    with raises("hub-unreachable", match="no such file"):
        describe_model("mistralai/x")
    with raises("hub-unreachable", match="no such repository"):
        describe_model("nobody/nothing")
    with pytest.raises(FileNotFoundError):
        describe_model(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("[1]")
    with raises("bad-model-config", match="JSON"):
        describe_model(str(tmp_path))
