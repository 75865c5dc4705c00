"""Settings: what is accepted, and one named error for everything that is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from images.serve.program import errors
from images.serve.program import settings as read_settings
from images.serve.program.image import Image
from images.serve.program.servers.known import server_of
from tests.fixtures.failures import refuses

TARGET = "qwen3.5-27b-nvfp4"
Images = Callable[..., Image]


@pytest.mark.parametrize(
    ("environment", "name", "setting"),
    [
        ({"MAX_MODEL_LEN": "64q"}, "bad-value", "MAX_MODEL_LEN"),
        ({"MAX_MODEL_LEN": "0"}, "out-of-range", "MAX_MODEL_LEN"),
        ({"GPU_MEMORY_UTILIZATION": "nan"}, "out-of-range", "GPU_MEMORY_UTILIZATION"),
        ({"ATTENTION_BACKEND": "flash_atn"}, "bad-value", "ATTENTION_BACKEND"),
        ({"ENFORCE_EAGER": "perhaps"}, "bad-value", "ENFORCE_EAGER"),
        ({"LIMIT_MM_PER_PROMPT": '{"image": "none"}'}, "bad-value", "LIMIT_MM_PER_PROMPT"),
        ({"EXTRA_ARGS": "--seed '1"}, "bad-value", "EXTRA_ARGS"),
        ({"EXTRA_ARGS": "--max-model-len"}, "bad-value", "EXTRA_ARGS"),
        ({"SERVED_MODEL_NAME": "a\nb"}, "bad-value", "SERVED_MODEL_NAME"),
        ({"MAX_NUM_SEQS": "64", "MAX_NUM_BATCHED_TOKENS": "32"}, "contradiction", "MAX_NUM_BATCHED_TOKENS"),
        ({"MODEL": "a/b", "MODEL_PATH": "/models/c"}, "contradiction", "MODEL_PATH"),
        ({"DFLASH_DRAFTER": "off", "DFLASH_NUM_SPEC_TOKENS": "7"}, "contradiction", "DFLASH_NUM_SPEC_TOKENS"),
        ({"ENABLE_TURBOQUANT": "1", "KV_CACHE_DTYPE": "fp8"}, "contradiction", "KV_CACHE_DTYPE"),
        ({"MAX_MODEL_LEN": "1024", "EXTRA_ARGS": "--max-model-len 2048"}, "contradiction", "MAX_MODEL_LEN"),
        (
            {"DFLASH_NUM_SPEC_TOKENS": "7", "EXTRA_ARGS": "--speculative-config '{}'"},
            "contradiction",
            "DFLASH_NUM_SPEC_TOKENS",
        ),
        ({"VLLM_API_KEY_FILE": "/nowhere/key"}, "bad-key-file", "VLLM_API_KEY_FILE"),
    ],
)
def test_bad_input_is_refused_with_setting_value_range_and_remedy(
    program_image: Images, environment: dict[str, str], name: str, setting: str
) -> None:
    image = program_image(TARGET)
    with pytest.raises(errors.StartError) as caught:
        server_of(image).build(image, read_settings.read(image, environment))
    assert (caught.value.name, caught.value.setting) == (name, setting)
    assert caught.value.value
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize("character", "\r\n\t\0\x1b\x7f\x85\u2028\u2029\ufeff\ufffe\uffff\ud800", ids=ascii)
def test_a_character_that_may_end_a_line_is_refused(program_image: Images, character: str) -> None:
    names = "SERVED_MODEL_NAME MODEL HOST EXTRA_ARGS MODS_PATH MODS LIMIT_MM_PER_PROMPT"
    for name in names.split():
        with pytest.raises(errors.StartError, match="line break") as caught:
            read_settings.read(program_image("gemma4-31b"), {name: f"a{character}b"})
        assert caught.value.name == "bad-value"
    spaced = read_settings.read(
        program_image("gemma4-31b"), {"SERVED_MODEL_NAME": "größe \N{NO-BREAK SPACE}\U0001f600"}
    )
    assert spaced.text("SERVED_MODEL_NAME") == "größe \N{NO-BREAK SPACE}\U0001f600"


def test_a_setting_or_value_of_a_newer_vllm_is_refused(program_image: Images) -> None:
    old = program_image("gemma4-31b@0.20.2")
    with refuses("not-in-this-server", match=r"needs vLLM 0\.21\.0"):
        read_settings.read(old, {"DRAFT_ATTENTION_BACKEND": "triton_attn"})
    with refuses("bad-value", match="flash_atn") as caught:
        read_settings.read(old, {"ATTENTION_BACKEND": "flash_atn"})
    assert "flash_attn" in caught.value.remedy
    with refuses("not-in-this-server", match=r"needs vLLM 0\.32\.0"):
        read_settings.read(old, {"ATTENTION_BACKEND": "b12x"})


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe"])
def test_a_key_file_without_exactly_one_word_is_refused(program_image: Images, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with refuses("bad-key-file"):
        read_settings.read(program_image(TARGET), {"VLLM_API_KEY_FILE": str(file)})


def test_a_flag_in_extra_args_changes_its_setting_and_the_default_counts_as_not_given(program_image: Images) -> None:
    image = program_image(TARGET)
    chosen = read_settings.read(image, {"EXTRA_ARGS": "--max_model_len=4096 --seed 7 --enforce-eager"})
    built = server_of(image).build(image, chosen)
    assert chosen.number("MAX_MODEL_LEN") == 4096
    assert built.arguments.count("--max-model-len") == 1
    assert "--enforce-eager" in built.arguments
    assert built.arguments[-2:] == ("--seed", "7")
    default = image.settings["MAX_MODEL_LEN"].default
    assert default
    assert "MAX_MODEL_LEN" not in read_settings.read(image, {"MAX_MODEL_LEN": default}).given


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("MAX_MODEL_LEN", {"32k": 32768, "32K": 32768, "32 k": 32768, "1.5k": 1536, "1M": 1048576, "1.3k": 1331}),
        ("KV_DISK_GB", {"100GB": 100, "100 GB": 100, "100 gb": 100, "1.5 TB": 1500, "100": 100}),
        ("MEMORY_FLOOR", {"2GB": 2}),
        ("HANG_LIMIT", {"5min": 300, "5m": 300, "90 s": 90, "1h": 3600}),
        ("GPU_MEMORY_UTILIZATION", {"57%": 0.57, "80 %": 0.8, "0.8": 0.8}),
    ],
)
def test_a_number_may_have_a_unit(program_image: Images, name: str, values: dict[str, float]) -> None:
    image = program_image(TARGET)
    assert {text: read_settings.read(image, {name: text}).values[name] for text in values} == values
    for odd in ("k", "32kk", "3 2k", "32_0k", "0.5GB", "32GiB", "nank", "infk", "1e999k", "٣k", "32k tokens", "-1GB"):
        with pytest.raises(errors.StartError) as refusal:
            read_settings.read(image, {name: odd})
        assert refusal.value.name in {"bad-value", "out-of-range"}


def test_a_switch_that_vllm_decides_can_be_switched_off(program_image: Images) -> None:
    image = program_image(TARGET)
    chosen = read_settings.read(image, {"ENABLE_PREFIX_CACHING": "0"})
    assert "--no-enable-prefix-caching" in server_of(image).build(image, chosen).arguments


def test_another_model_is_served_without_the_drafter(program_image: Images) -> None:
    image = program_image(TARGET)
    built = server_of(image).build(image, read_settings.read(image, {"MODEL": "Qwen/Qwen3-0.6B"}))
    assert built.speculative is None
    assert any("drafter" in remark for remark in built.remarks)
