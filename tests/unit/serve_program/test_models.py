"""The models of this checkout on a DGX Spark: their drafters, flags and variables, and the checks of a start."""

import json
from typing import Any

import pytest

from imagefactory.project.cells import buildable, usable_drafters
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.site.starts import program_start
from tests.fixtures.serving import READINGS, REPOSITORY, Images


def flag(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def speculative(command: list[str]) -> dict[str, Any]:
    found = json.loads(flag(command, "--speculative-config") or "{}")
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", ["", "@0.33.0"])
def test_every_model_passes_all_checks_on_an_idle_spark(real_image: Images, real_matrix: Matrix, version: str) -> None:
    new = {cell.model for cell in buildable(real_matrix) if f"@{cell.version}" == version and cell.arch == "gb10"}
    for name, model in real_matrix.models.items():
        if model.memory is not None and (name in new or not version):
            cell = select_one(real_matrix, f"{name}{version}")
            # The readings have no cable; what a pair's cable needs is tested by itself.
            node = model.node_settings(0) | {"SKIP_CHECKS": "pair" if model.sparks > 1 else ""}
            shown = real_image(str(cell)).dry_run({"PORT": "18999", **node}, readings=READINGS / "gb10.json")
            assert [check for check in shown["checks"] if check["result"] == "fail"] == [], name
            [told] = [check["detail"] for check in shown["checks"] if check["name"] == "memory"]
            drafter = model.memory.drafter_gb if usable_drafters(real_matrix, cell) else 0
            assert f"weights {model.memory.weights_gb / model.sparks + drafter:.1f} GB" in told, name
            assert model.repo in shown["command"]


def test_a_table_on_the_disk_is_counted_there_and_not_in_memory(real_image: Images) -> None:
    shown = real_image("qwen3.8-flash-next").dry_run({"PORT": "18999"}, readings=READINGS / "gb10.json")
    found = {check["name"]: check["detail"] for check in shown["checks"]}
    assert "needs 186 GB, 51 GB of it for a table" in found["disk"]
    assert "weights 85.9 GB" in found["memory"]


@pytest.mark.parametrize(("quantization", "weights"), [("fp8", "37.0"), ("auto", "67.0")])
def test_weights_that_stay_as_they_are_downloaded_are_counted_so(
    real_image: Images, quantization: str, weights: str
) -> None:
    given = {"PORT": "18999", "QUANTIZATION": quantization}
    checks = real_image("gemma4-31b").dry_run(given, readings=READINGS / "gb10.json")["checks"]
    [told] = [check["detail"] for check in checks if check["name"] == "memory"]
    assert f"weights {weights} GB" in told


@pytest.mark.parametrize(("requests", "tokens"), [("1", "8192"), ("4", "16384")])
def test_a_step_takes_no_more_than_all_requests_hold(real_image: Images, requests: str, tokens: str) -> None:
    given = {"MAX_NUM_SEQS": requests, "MAX_MODEL_LEN": "8k", "MAX_NUM_BATCHED_TOKENS": "16384"}
    shown = real_image("gemma4-31b").dry_run({"PORT": "18999", **given}, readings=READINGS / "gb10.json")
    assert flag(shown["command"], "--max-num-batched-tokens") == tokens
    assert ("MAX_NUM_BATCHED_TOKENS is 8,192" in " ".join(shown["remarks"])) == (requests == "1")


def test_model_that_drafts_by_itself_keeps_its_cache_type_and_a_users_flag_wins(real_image: Images) -> None:
    command = real_image("qwen3.6-35b-a3b-nvfp4").command({"EXTRA_ARGS": "--moe-backend b12x"})
    assert command.count("--moe-backend") == 1
    assert flag(command, "--moe-backend") == "b12x"
    assert flag(command, "--kv-cache-dtype") == "fp8"
    drafting = {"method": "mtp", "num_speculative_tokens": 3, "moe_backend": "triton"}
    assert speculative(command) == {"model": "nvidia/Qwen3.6-35B-A3B-NVFP4", **drafting}


def test_experts_in_nvfp4_take_the_kernels_that_a_version_brings_for_them(real_image: Images) -> None:
    model = "qwen3.6-35b-a3b-nvfp4"
    assert flag(real_image(model).command(), "--moe-backend") == "marlin"
    assert flag(real_image(f"{model}@0.32.0-b12x").command(), "--moe-backend") == "b12x"
    assert flag(real_image("gemma4-31b@0.32.0-b12x").command(), "--moe-backend") is None


@pytest.mark.parametrize(
    ("target", "given", "machine", "refusal"),
    [
        ("qwen3.6-35b-a3b-nvfp4@0.32.0-b12x", {}, "gb10", ""),
        ("qwen3.6-35b-a3b-nvfp4@0.33.0", {"EXTRA_ARGS": "--moe-backend b12x"}, "gb10", "does not have"),
        ("gemma4-31b", {"ATTENTION_BACKEND": "b12x"}, "gb10", "--attention-backend b12x needs the package b12x"),
        ("gemma4-31b", {"EXTRA_ARGS": "--linear-backend=flashinfer_b12x"}, "gb10", ""),
        ("gemma4-31b/h100", {"EXTRA_ARGS": "--linear-backend=flashinfer_b12x"}, "h100", "this GPU has 9.0"),
    ],
)
def test_kernels_of_b12x_are_refused_where_they_are_not_or_cannot_run(
    real_image: Images, target: str, given: dict[str, str], machine: str, refusal: str
) -> None:
    shown = real_image(target).dry_run({"PORT": "18999", **given}, readings=READINGS / f"{machine}.json")
    found = [
        check["detail"] for check in shown["checks"] if (check["name"], check["result"]) == ("combination", "fail")
    ]
    assert bool(found) == bool(refusal), found
    assert refusal in "".join(found)


def test_a_users_drafter_is_handed_on_however_deep_its_text_nests(real_image: Images) -> None:
    deep = '{"a":' * 3000
    command = real_image("qwen3.8-27b-nvfp4").command({"EXTRA_ARGS": f"--speculative-config '{deep}'"})
    assert [flag(command, "--speculative-config"), command.count("--speculative-config")] == [deep, 1]


def test_drafter_keeps_the_keys_of_the_matrix_and_gets_a_cache_of_its_own(real_image: Images) -> None:
    config = speculative(real_image("qwen3.8-27b-nvfp4").command())
    assert (config["method"], config["kv_cache_dtype"]) == ("dflash", "auto")
    config = speculative(real_image("qwen3.8-27b-fp8").command())
    assert (config["method"], config["num_speculative_tokens"]) == ("dspark", 7)
    assert config["draft_sample_method"] == "probabilistic"


def test_flags_of_the_arch_add_to_those_of_the_model(real_image: Images) -> None:
    command = real_image("nemotron-3.5-lightning-nvfp4").command()
    assert flag(command, "--moe-backend") == "marlin"
    assert flag(command, "--mamba-backend") == "flashinfer"
    assert "--enable-mamba-cache-stochastic-rounding" in command
    elsewhere = real_image("nemotron-3.5-lightning-nvfp4@0.32.0/b200").command()
    assert flag(elsewhere, "--moe-backend") is None
    assert flag(elsewhere, "--mamba-backend") == "flashinfer"


def test_windows_hold_what_is_being_computed_as_vllm_counts_it() -> None:
    project = Project(REPOSITORY)
    needs = program_start(project, select_one(project.matrix, "gemma4-26b-a4b@0.33.0/h100")).needs()
    # vLLM 0.33.0 on an H200: 56.37 GiB of cache are 8.20 requests of 32,768 tokens, in steps of as many.
    assert needs.sequence(32768) + needs.computing(32768) == pytest.approx(56.37 * 2**30 / 8.20, rel=0.002)
    assert needs.computing(1024) == 0
    assert needs.computing(10**6) == needs.computing(200_000)


def test_sglang_and_models_without_windows_hold_nothing_more() -> None:
    project = Project(REPOSITORY)
    for target in ("gemma4-31b@sglang-0.5.23", "qwen3.6-35b-a3b-nvfp4", "qwen3-8b/h100"):
        assert program_start(project, select_one(project.matrix, target)).needs().computing(100_000) == 0
