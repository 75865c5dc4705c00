"""Runs the checks on recorded machines."""

import json
import math
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagefactory.project.project import Project
from images.serve.program import checkpoint, private_files, rules, state
from images.serve.program.checks import CHECKS
from images.serve.program.image import TITLES
from tests.fixtures.failures import raises, refused
from tests.fixtures.serve_process import QuickStart
from tests.fixtures.serving import READINGS, REPOSITORY, SIZES, Images

QWEN = "qwen3.5-27b-nvfp4"
DRAFT = "DRAFT_ATTENTION_BACKEND"
OWN_DRAFTER = """--speculative-config '{"method": "dflash", "model": "x/y", "attention_backend": "flash_attn"}'"""
MEDUSA = """--speculative-config '{"method": "medusa", "model": "x/y"}'"""
FP8_ON_TRITON = {"KV_CACHE_DTYPE": "fp8", "ATTENTION_BACKEND": "triton_attn"}


@pytest.fixture
def checks(served_image: Images) -> Callable[..., dict[str, dict[str, Any]]]:
    """Run the checks of a target on a recorded machine; return the worst finding of each."""

    def run(target: str, machine: str, given: dict[str, str] | None = None, **options: Any) -> Any:
        found = served_image(target, **options).dry_run(
            {"PORT": "18999"} | (given or {}), readings=READINGS / f"{machine}.json"
        )["checks"]
        order = ("ok", "skipped", "warn", "fail")
        worst: dict[str, dict[str, Any]] = {}
        for finding in found:
            name = finding["name"]
            if name not in worst or order.index(finding["result"]) > order.index(worst[name]["result"]):
                worst[name] = finding
        return worst

    return run


Checks = Callable[..., dict[str, dict[str, Any]]]


def test_every_check_reports_a_fact(checks: Checks) -> None:
    found = checks("gemma4-31b", "gb10")
    assert found.keys() == CHECKS.keys()
    assert all(finding["detail"] for finding in found.values())
    assert found["gpu"]["detail"] == "NVIDIA GB10, compute capability 12.1"
    assert re.fullmatch(r"[0-9.]+, needs [0-9.]+ or newer", found["driver"]["detail"])
    assert found["shm"]["detail"] == "size of shared memory unknown"
    assert found["kernels"]["detail"].endswith("for 12.1, GPU is 12.1")


def test_a_gpu_that_is_too_hot_is_a_warning(checks: Checks, tmp_path: Path) -> None:
    recorded = json.loads((READINGS / "gb10.json").read_text())
    for reasons, result, words in (
        ("0x20", "warn", "by heat, at 91 °C"),
        ("0x0", "ok", "12.1; 91 °C, 44 W, 96 % busy"),
    ):
        recorded["state"] = f"NVIDIA GB10, 91, 44.10, 96, 1800, {reasons}\n"
        (tmp_path / "hot.json").write_text(json.dumps(recorded))
        found = checks("gemma4-31b", str(tmp_path / "hot"))["gpu"]
        assert found["result"] == result
        assert words in found["detail"]


def test_a_share_that_would_freeze_a_gb10_is_refused_with_one_that_fits(checks: Checks) -> None:
    found = checks(QWEN, "gb10", {"MAX_MODEL_LEN": "262144", "GPU_MEMORY_UTILIZATION": "0.95"})["memory"]
    assert found["result"] == "fail"
    assert found["exit_code"] == 67
    assert found["setting"] == "GPU_MEMORY_UTILIZATION"
    assert found["allowed"] == "up to 0.87"
    assert "GPU_MEMORY_UTILIZATION=0.87" in found["remedy"]
    fitting = {"MAX_MODEL_LEN": "262144", "GPU_MEMORY_UTILIZATION": "0.87"}
    fits = checks(QWEN, "gb10", fitting)["memory"]
    assert fits["result"] == "ok"
    assert re.search(r"about [\d,]+,\d{3} tokens \(.* of 262,144\)", fits["detail"])


def test_a_context_that_does_not_fit_is_refused_with_the_longest_that_fits(checks: Checks) -> None:
    long = SIZES | {"kv_per_token": 819_200}
    given = {"MAX_MODEL_LEN": "262144", "GPU_MEMORY_UTILIZATION": "0.85"}
    found = checks(QWEN, "gb10", given, sizes=long)["memory"]
    assert found["setting"] == "MAX_MODEL_LEN"
    longest = found["allowed"].removeprefix("up to ")
    assert int(longest) % 1024 == 0
    again = checks(QWEN, "gb10", given | {"MAX_MODEL_LEN": longest}, sizes=long)["memory"]
    assert again["result"] == "ok"


def test_a_context_longer_than_the_models_is_refused(checks: Checks) -> None:
    found = checks(QWEN, "gb10", {"MAX_MODEL_LEN": "300000"})["model"]
    assert (found["exit_code"], found["allowed"]) == (66, "up to 262144")
    assert "limited to 262,144" in found["detail"]
    stretched = {"MAX_MODEL_LEN": "300000", "EXTRA_ARGS": "--hf-overrides '{}'"}
    assert checks(QWEN, "gb10", stretched)["model"]["result"] == "ok"


@pytest.mark.parametrize(
    ("target", "extra", "expected"),
    [
        ("tiny", "", ("fail", 67)),
        ("gemma4-31b", "", ("warn", 0)),
        ("gemma4-31b", "--tensor-parallel-size 2", ("fail", 67)),
    ],
)
def test_dockers_default_shared_memory_is_refused_where_it_is_needed(
    checks: Checks, tmp_path: Path, target: str, extra: str, expected: tuple[str, int]
) -> None:
    recorded = json.loads((READINGS / "gb10.json").read_text()) | {"shared_memory": 67_108_864}
    (tmp_path / "small.json").write_text(json.dumps(recorded))
    found = checks(target, str(tmp_path / "small"), {"EXTRA_ARGS": extra})["shm"]
    assert (found["result"], found["exit_code"]) == expected


def test_a_busy_gb10_and_an_rtx_5090_with_an_old_driver_and_too_long_a_context_are_refused(checks: Checks) -> None:
    busy = checks(QWEN, "gb10-busy")
    assert busy["memory"]["allowed"] == "up to 0.46", "the memory of other programs counts"
    assert busy["disk"]["exit_code"] == 67
    given = {"MAX_MODEL_LEN": "65536", "GPU_MEMORY_UTILIZATION": "0.85"}
    found = checks(f"{QWEN}@0.32.0/rtx5090", "rtx5090", given)
    assert found["driver"]["exit_code"] == 67
    assert found["memory"]["setting"] == "MAX_MODEL_LEN"
    assert found["gpu"]["result"] == "ok"
    unknown = checks("gemma4-31b", "gb10", {"GPU_MEMORY_UTILIZATION": "0.95"}, sizes=None)["memory"]
    assert (unknown["result"], unknown["allowed"]) == ("fail", "up to 0.87")


def test_the_gpu_of_another_chip_family_or_container_is_judged(checks: Checks) -> None:
    assert checks("gemma4-31b", "rtx5090")["gpu"]["result"] == "warn", "of the same family"
    assert checks("gemma4-31b", "rtx5090", kernels="compiled")["gpu"]["result"] == "fail"
    other = checks("gemma4-31b", "h100")["gpu"]
    assert (other["result"], other["exit_code"]) == ("fail", 67)
    assert "9.0" in other["detail"]
    assert "12.1" in other["detail"]
    none = checks("gemma4-31b", "no-gpu")["gpu"]
    assert none["exit_code"] == 67
    assert "--gpus all" in none["remedy"]


@pytest.mark.parametrize(
    ("target", "given", "result", "words"),
    [
        (QWEN, {"KV_CACHE_DTYPE": "fp8"}, "fail", "version 2"),
        (f"{QWEN}@0.28.0", FP8_ON_TRITON | {"EXTRA_ARGS": OWN_DRAFTER}, "fail", "drafter gets the model's fp8"),
        (f"{QWEN}@0.28.0", FP8_ON_TRITON | {DRAFT: "flash_attn"}, "ok", ""),
        (f"{QWEN}@0.20.2", {"ENABLE_TURBOQUANT": "1"}, "fail", "exclude each other"),
        (f"{QWEN}@0.20.2", {"ENABLE_TURBOQUANT": "1", "DFLASH_DRAFTER": "off"}, "fail", "linear attention"),
        (QWEN, {"ENABLE_TURBOQUANT": "1"}, "warn", "open bug"),
        (QWEN, {"ENABLE_TURBOQUANT": "1", "ATTENTION_BACKEND": "triton_attn"}, "fail", "itself an attention"),
        ("qwen3.5-35b-a3b-int4", {}, "warn", "INT4-AutoRound"),
        ("gemma4-31b@0.20.2", {"DFLASH_DRAFTER": "z-lab/gemma-4-31B-it-DFlash"}, "fail", "0.26.0"),
        ("gemma4-31b", {"EXTRA_ARGS": "--enable_sleep_mode"}, "fail", "from its sleep"),
        ("gemma4-31b@0.33.0", {"DFLASH_DRAFTER": "off", "EXTRA_ARGS": MEDUSA}, "fail", "removed drafting by medusa"),
        ("gemma4-31b@0.32.0", {"DFLASH_DRAFTER": "off", "EXTRA_ARGS": MEDUSA}, "ok", ""),
        ("gemma4-31b@0.33.0", {"KV_DISK": "/kv"}, "fail", "for which KV_DISK was not made"),
        ("gemma4-31b@0.32.0", {"KV_DISK": "/kv"}, "ok", ""),
    ],
)
def test_known_bad_combinations_are_reported(
    checks: Checks, target: str, given: dict[str, str], result: str, words: str
) -> None:
    found = checks(target, "gb10", given)["combination"]
    assert found["result"] == result
    assert words in found["detail"] or not words
    if result == "fail":
        assert found["exit_code"] == 64
        assert found["remedy"]


def test_checks_can_be_skipped_by_name_made_warnings_or_turned_off(checks: Checks) -> None:
    too_much = {"GPU_MEMORY_UTILIZATION": "0.95"}
    assert checks("gemma4-31b", "gb10", too_much | {"SKIP_CHECKS": "memory"})["memory"]["result"] == "skipped"
    assert checks("gemma4-31b", "gb10", too_much | {"CHECKS": "warn"})["memory"]["result"] == "warn"
    assert checks("gemma4-31b", "gb10", too_much | {"CHECKS": "off"})["gpu"]["result"] == "skipped"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_num_seqs", "MAX_NUM_SEQS"), ("MAX_MODEL_LENGTH", "MAX_MODEL_LEN"), ("MODLE", "MODEL")],
)
def test_a_misspelt_setting_is_named_and_refused_if_checks_are_strict(
    served_image: Images, name: str, meant: str
) -> None:
    given = {name: "8", "SKIP_CHECKS": ",".join(CHECKS.keys() - {"settings"})}
    ran = served_image("tiny").run("check", variables=given)
    assert re.search(rf"WARN  settings +there is no setting {name}: .*\n +Did you mean {meant}\?", ran.stdout)
    assert ran.returncode == 0
    strict = served_image("tiny").run("check", variables={**given, "CHECKS": "strict"})
    assert "FAIL  settings" in strict.stdout
    assert strict.returncode == 64


FOREIGN = """
    PATH HOME HOSTNAME TERM USER SHELL LANG PWD SHLVL OLDPWD TZ VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD
    HTTP_PROXY http_proxy NO_PROXY no_proxy HF_HOME HF_TOKEN HF_HUB_OFFLINE HF_ENDPOINT NVIDIA_VISIBLE_DEVICES
    NVIDIA_DRIVER_CAPABILITIES CUDA_HOME CUDA_VISIBLE_DEVICES CUDA_CACHE_PATH CUDA_DEVICE_MAX_CONNECTIONS
    NCCL_DEBUG NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME OMP_NUM_THREADS MASTER_ADDR MASTER_PORT RANK LOCAL_RANK
    WORLD_SIZE NODE_RANK TOKENIZERS_PARALLELISM TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR
    FLASHINFER_WORKSPACE_BASE MAX_JOBS VLLM_PORT VLLM_HOST_IP VLLM_MODEL_PATH VLLM_ATTENTION_BACKEND
    VLLM_LOGGING_LEVEL SGLANG_PORT SGLANG_HOST_IP SGLANG_CACHE_DIR PYTHONPATH S3_ENDPOINT_URL KUBERNETES_PORT
    KUBERNETES_SERVICE_HOST HOST_IP POD_NAME MODEL_NAME MODEL_ID
"""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("gemma4-31b@sglang-0.5.21", "SGLANG_ENABLE_SPEC_V2"),
        ("gemma4-31b@sglang-0.5.21", "SGLANG_ENABLE_DFLASH_SPEC_V2"),
        ("gemma4-31b", "TURBOQUANT_KV_BITS"),
    ],
)
def test_a_variable_that_is_gone_is_named(served_image: Images, target: str, name: str) -> None:
    image = served_image(target)
    ran = image.run("check", variables={name: "1"})
    assert f"WARN  settings     {name} has no effect" in ran.stdout
    ran = image.run("check", variables={"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"})
    assert "ok    settings" in ran.stdout


def test_more_memory_for_coder_next_than_a_spark_stood_is_a_warning(real_image: Images) -> None:
    for share, result in (("0.6", "ok"), ("0.85", "warn")):
        given = {"GPU_MEMORY_UTILIZATION": share, "PORT": "18999"}
        found = real_image("qwen3-coder-next-nvfp4").dry_run(given, readings=READINGS / "gb10.json")["checks"]
        [combination] = [check for check in found if check["name"] == "combination"]
        assert combination["result"] == result
    assert (combination["allowed"], "twice" in combination["detail"]) == ("up to 0.60", True)


def test_a_mode_of_the_turboquant_plugin_is_refused_or_said_to_be_the_same(real_image: Images) -> None:
    image, given = real_image("qwen3.5-27b-nvfp4"), {"ENABLE_TURBOQUANT": "1"}
    with raises("bad-setting", match="capture_only was a mode of a plugin"):
        image.dry_run(given | {"TQ_MODE": "capture_only"})
    remarks = image.dry_run(given | {"TQ_MODE": "full_tq"}, readings=READINGS / "gb10.json")["remarks"]
    assert any("full_tq: as hybrid" in remark for remark in remarks)


def test_a_folder_is_served_by_its_own_name(real_image: Images) -> None:
    for path, name in (("/models/target", "target"), ("/models/target/", "target"), ("/", None)):
        command = real_image("gemma4-31b").command({"MODEL_PATH": path, "CHECKS": "off"})
        found = command[command.index("--served-model-name") + 1] if "--served-model-name" in command else None
        assert found == name


def test_variables_of_others_are_not_taken_for_misspelt_settings(served_image: Images) -> None:
    others = dict.fromkeys(FOREIGN.split(), "1")
    for target in ("gemma4-31b", "gpt-oss-120b@sglang-0.5.21"):
        ran = served_image(target).run("check", variables=others)
        assert "ok    settings     none is misspelt or without effect" in ran.stdout


@pytest.mark.parametrize(
    ("machine", "given", "other", "why"),
    [
        ("no-gpu", {"MEMORY_FLOOR": "13"}, {"MEMORY_FLOOR": "0"}, "does not share its memory with a GPU"),
        ("gb10", {"KV_DISK_GB": "13"}, {"KV_DISK": "/kv"}, "KV_DISK is not set"),
        ("gb10", {"TQ_KEY_BITS": "8"}, {"ENABLE_TURBOQUANT": "1"}, "ENABLE_TURBOQUANT is not set"),
        ("gb10", {"PROTECT_METRICS": "1"}, {"VLLM_API_KEY": "s3cret-key"}, "has no API key"),
    ],
    ids=str,
)
def test_a_setting_that_nothing_reads_is_named(
    checks: Checks, machine: str, given: dict[str, str], other: dict[str, str], why: str
) -> None:
    found = checks("gemma4-31b", machine, given)["settings"]
    assert (found["result"], found["setting"]) == ("warn", next(iter(given)))
    assert why in found["detail"]
    assert checks("gemma4-31b", machine, given | other)["settings"]["result"] == "ok"


def test_beside_its_own_server_a_check_does_not_blame_it(
    quick_start: QuickStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104
        port = str(server.getsockname()[1])
        assert quick_start("check", PORT=port).returncode == 67
        monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
        state.promise(60)
        ran = quick_start("check", PORT=port)
    assert ran.returncode == 0
    assert "skip  port         this container's own server runs" in ran.stdout


def test_no_key_is_a_warning_unless_only_this_machine_reaches_the_server(checks: Checks) -> None:
    assert checks("gemma4-31b", "gb10")["api-key"]["result"] == "warn"
    for given in ({"HOST": "127.0.0.1"}, {"EXTRA_ARGS": "--host ::1"}, {"VLLM_API_KEY": "s3cret-key"}):
        assert checks("gemma4-31b", "gb10", given)["api-key"]["result"] == "ok"


def test_a_port_in_use_is_refused(checks: Checks) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104
        port = server.getsockname()[1]
        found = checks("gemma4-31b", "gb10", {"PORT": str(port)})["port"]
    assert (found["result"], found["exit_code"], found["value"]) == ("fail", 67, str(port))


@pytest.mark.parametrize("host", ["é", "é" * 70, "a..b", "x" * 5000, "nowhere.invalid"])
def test_a_host_that_is_no_address_is_refused(checks: Checks, host: str) -> None:
    found = checks("gemma4-31b", "gb10", {"HOST": host})["port"]
    assert (found["result"], found["setting"]) == ("fail", "HOST")


def test_a_model_folder_must_exist_and_be_complete(checks: Checks, tmp_path: Path) -> None:
    missing = checks("gemma4-31b", "gb10", {"MODEL_PATH": str(tmp_path / "none")})["model"]
    assert missing["exit_code"] == 66
    folder = model_folder(tmp_path / "model", {"vocab_size": 10, "hidden_size": 8})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    )
    (folder / "model-1.safetensors").write_bytes(b"1")
    found = checks("gemma4-31b", "gb10", {"MODEL_PATH": str(folder)})["model"]
    assert found["detail"] == f"{folder} lacks model-2.safetensors"
    (folder / "model-2.safetensors").write_bytes(b"2")
    assert checks("gemma4-31b", "gb10", {"MODEL_PATH": str(folder)})["model"]["result"] == "ok"


@pytest.mark.parametrize(("shape", "weights"), [("qwen3.8-27b", "20.0 GB"), ("small", "1.5 GB")])
def test_a_folder_whose_cache_has_another_size_is_not_the_images_own_model(
    checks: Checks, tmp_path: Path, shape: str, weights: str
) -> None:
    folder = model_folder(tmp_path / shape, json.loads((REPOSITORY / f"data/shapes/{shape}.json").read_text()))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(1_500_000_000)
    given = {"MODEL_PATH": str(folder), "DFLASH_DRAFTER": "off", "MAX_MODEL_LEN": "32k"}
    assert f"weights {weights}" in checks(QWEN, "gb10", given)["memory"]["detail"]


def test_a_drafter_for_another_model_is_refused(checks: Checks, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", {"text_config": {"vocab_size": 248320, "hidden_size": 5120}})
    (model / "model.safetensors").write_bytes(b"1")
    for config, words in (
        ({"vocab_size": 151936, "hidden_size": 5120}, "vocabulary"),
        ({"vocab_size": 248320, "hidden_size": 2048}, "hidden size"),
    ):
        drafter = model_folder(tmp_path / words, config)
        given = {"MODEL_PATH": str(model), "DFLASH_DRAFTER": str(drafter)}
        found = checks(QWEN, "gb10", given)["drafter"]
        assert found["exit_code"] == 66
        assert words in found["detail"]
    fitting = model_folder(tmp_path / "fitting", {"vocab_size": 248320, "hidden_size": 5120})
    given = {"MODEL_PATH": str(model), "DFLASH_DRAFTER": str(fitting)}
    assert checks(QWEN, "gb10", given)["drafter"]["result"] == "ok"
    assert checks(QWEN, "gb10", {"DFLASH_DRAFTER": "some/other"})["drafter"]["result"] == "warn"


def test_unknown_checks_and_unreadable_readings_are_refused(served_image: Images, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"gpus": 3}')
    for name, value, word in (
        ("SKIP_CHECKS", "memori", "memory"),
        ("FACTORY_READINGS", str(tmp_path / "bad.json"), "FACTORY_READINGS"),
    ):
        ran = served_image("gemma4-31b").run("check", variables={name: value})
        assert refused(ran, "bad-value")
        assert word in ran.stderr


def model_folder(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("key", "kind", "per_sequence"),
    [
        ("full_attention_interval", "linear_attention", 6 * 4 * 16 * 8 * 4),
        ("sliding_window_pattern", "sliding_attention", 6 * 2 * 2 * 64 * 2 * 128),
    ],
)
def test_layers_in_groups_count_as_those_that_are_listed(key: str, kind: str, per_sequence: int) -> None:
    config = {
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "sliding_window": 128,
    }
    found = checkpoint.shape(config | {key: 4})
    assert found == checkpoint.shape(config | {"layer_types": ([kind] * 3 + ["full_attention"]) * 2})
    assert found is not None
    assert (found.per_token, found.per_sequence) == (2 * 2 * 2 * 64 * 2, per_sequence)
    assert checkpoint.shape(config | {key: "four"}) is None


@pytest.mark.parametrize("own", [{"hybrid_override_pattern": "MEM*"}, {"layers_block_type": ["mamba"] * 4}])
def test_kinds_of_layers_in_a_models_own_words_have_no_shape(own: dict[str, Any]) -> None:
    config = {"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 4}
    assert checkpoint.shape(config | own) is None
    assert checkpoint.shape(config | own | {"layer_types": ["full_attention"] * 4}) is not None


@pytest.mark.parametrize("odd", [{"num_hidden_layers": 1 << 40}, {"head_dim": math.inf}, {"head_dim": 10**400}])
def test_an_absurd_config_has_no_shape(odd: dict[str, Any]) -> None:
    config = {"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 4}
    assert checkpoint.shape(config) is not None
    assert checkpoint.shape(config | odd) is None


def test_layers_that_read_the_cache_of_others_count_nothing() -> None:
    config = {"num_key_value_heads": 2, "num_attention_heads": 8, "head_dim": 256, "global_head_dim": 512}
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 7
    gemma = config | {"layer_types": kinds, "sliding_window": 512, "num_kv_shared_layers": 18}
    found = checkpoint.shape(gemma)
    assert found is not None
    assert (found.per_token, found.per_sequence) == (16384, 20971520)
    nothing = checkpoint.shape(gemma | {"num_kv_shared_layers": 99})
    assert nothing is not None
    assert nothing.per_token == 0


def test_a_cache_of_latent_attention_is_not_guessed_from_heads() -> None:
    config = {"num_attention_heads": 64, "head_dim": 128, "num_hidden_layers": 42, "max_position_embeddings": 4096}
    assert checkpoint.shape(config) is not None
    assert checkpoint.shape(config | {"kv_lora_rank": 512}) is None


@pytest.mark.parametrize(
    ("target", "given", "parser"),
    [
        ("gemma4-31b", {"ENABLE_AUTO_TOOL_CHOICE": "1"}, "gemma4"),
        ("gemma4-31b", {"EXTRA_ARGS": "--enable-auto-tool-choice"}, "gemma4"),
        ("qwen3-coder-next-nvfp4", {"TOOL_CALL_PARSER": "off"}, "qwen3_coder"),
        ("gemma4-31b", {"ENABLE_AUTO_TOOL_CHOICE": "1", "MODEL": "openai/gpt-oss-20b"}, "openai"),
        ("gemma4-31b", {"ENABLE_AUTO_TOOL_CHOICE": "1", "MODEL": "somebody/unheard-of"}, ""),
        ("gemma4-31b@sglang-0.5.21", {"ENABLE_AUTO_TOOL_CHOICE": "1"}, "gemma4"),
    ],
)
def test_tool_choice_without_a_parser_is_refused_and_the_model_s_is_named(
    checks: Checks, target: str, given: dict[str, str], parser: str
) -> None:
    found = checks(target, "gb10", given)["flags"]
    assert (found["result"], found["exit_code"], found["setting"]) == ("fail", 64, "TOOL_CALL_PARSER")
    assert found["allowed"] == parser
    assert found["remedy"].startswith(
        f"Set TOOL_CALL_PARSER={parser}," if parser else "Set TOOL_CALL_PARSER to the one"
    )
    again = checks(target, "gb10", given | {"TOOL_CALL_PARSER": parser or "hermes"})["flags"]
    assert again["result"] != "fail"


def test_the_parsers_of_models_are_those_of_the_matrix() -> None:
    known = rules.common()["parsers"].items()
    for model in Project(REPOSITORY).matrix.models.values():
        named = {shape.tool_call_parser for server in TITLES for shape in model.shapes(server, "gb10")} - {None}
        guessed = next((parser for part, parser in known if model.repo and part in model.repo.lower()), None)
        assert not named or guessed in named, model.repo


NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""


def test_the_image_s_drafter_may_be_off_beside_another_one_that_flags_describe(served_image: Images) -> None:
    image, machine = served_image("gemma4-31b"), READINGS / "gb10.json"
    found = image.dry_run({"DFLASH_DRAFTER": "off", "EXTRA_ARGS": NGRAM}, readings=machine)
    assert found["command"].count("--speculative-config") == 1
    words = {check["name"]: check["detail"] for check in found["checks"]}
    assert words["drafter"] == "none"
    off = image.dry_run({"DFLASH_DRAFTER": "off"}, readings=machine)["checks"]
    assert words["memory"] == next(check["detail"] for check in off if check["name"] == "memory"), (
        "n-grams weigh nothing"
    )
    assert refused(image.run(variables={"DFLASH_NUM_SPEC_TOKENS": "5", "EXTRA_ARGS": NGRAM}), "contradiction")
