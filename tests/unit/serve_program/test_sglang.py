"""SGLang behind the settings: its command, what it refuses, its memory, log and metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagefactory.launch.preview import Preview
from imagefactory.project.servers.known import SERVERS
from images.serve.program import errors, flags, watch
from images.serve.program import settings as read_settings
from images.serve.program.command import Command
from images.serve.program.image import Image, load
from images.serve.program.servers.known import server_of
from images.serve.program.servers.server import Drafts
from images.serve.program.servers.sglang import SERVER
from images.serve.program.timeline import Moments, describe
from tests.fixtures.failures import raises, refuses
from tests.fixtures.serving import READINGS, start_of

Images = Callable[..., Image]
Previews = Callable[..., Preview]
GEMMA, QWEN = "gemma4-31b@sglang-0.5.21", "qwen3.5-27b-nvfp4@sglang-0.5.21"


def build(image: Image, **environment: str) -> Command:
    return server_of(image).build(image, read_settings.read(image, environment))


def test_the_launch_of_the_model_card_is_what_the_settings_give(served_image: Previews) -> None:
    words = served_image(GEMMA, revision="0" * 40).command()
    assert words == [
        *("sglang", "serve", "--model-path", "google/gemma-4-31B-it", "--revision", "0" * 40),
        *("--attention-backend", "triton", "--context-length", "16384", "--chunked-prefill-size", "16384"),
        *("--mem-fraction-static", "0.8", "--quantization", "fp8"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        *("--trust-remote-code", "--limit-mm-data-per-request", '{"image": 0, "video": 0}'),
        *("--host", "0.0.0.0", "--port", "8000"),  # noqa: S104
        *("--speculative-algorithm", "DFLASH"),
        *("--speculative-draft-model-path", "z-lab/gemma-4-31B-it-DFlash"),
        # A block of 16: 15 drafted tokens, and the one that verifies them.
        *("--speculative-num-draft-tokens", "16", "--speculative-draft-attention-backend", "fa4"),
        *("--model-type", "llm", "--enable-metrics"),
    ]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MAX_NUM_SEQS": "4"}, "--max-running-requests 4"),
        ({"KV_CACHE_DTYPE": "fp8"}, "--kv-cache-dtype fp8_e4m3"),
        ({"ATTENTION_BACKEND": "torch_sdpa"}, "--attention-backend torch_native"),
        ({"DFLASH_NUM_SPEC_TOKENS": "7"}, "--speculative-num-draft-tokens 8"),
        ({"ENABLE_PREFIX_CACHING": "0"}, "--disable-radix-cache"),
        ({"TOOL_CALL_PARSER": "qwen3_xml"}, "--tool-call-parser qwen3_coder"),
        ({"EXTRA_ARGS": "--context-length=2048"}, "--context-length 2048"),
    ],
    ids=str,
)
def test_settings_keep_their_names_and_get_sglangs_flags(
    program_image: Images, environment: dict[str, str], words: str
) -> None:
    assert f" {words} " in f" {' '.join(build(program_image(QWEN), **environment).arguments)} "


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DFLASH_DRAFTER": "off"}, "--speculative"),
        ({"ENABLE_PREFIX_CACHING": "1"}, "radix"),
        ({"TOOL_CALL_PARSER": "hermes", "ENABLE_AUTO_TOOL_CHOICE": "1"}, "auto-tool"),
        ({"ENFORCE_EAGER": "0"}, "--cuda-graph"),
        ({"EXTRA_ARGS": "--speculative-algorithm NGRAM"}, "--speculative-draft-model-path"),
    ],
    ids=str,
)
def test_what_sglang_does_by_itself_gets_no_flag(
    program_image: Images, environment: dict[str, str], words: str
) -> None:
    assert words not in " ".join(build(program_image(QWEN), **environment).arguments)


def test_a_setting_that_sglang_lacks_is_refused_by_name(program_image: Images) -> None:
    image = program_image(QWEN)
    for name in SERVERS["sglang"].refused:
        with refuses("not-in-this-server", match=rf"{name} is not a setting of SGLang") as caught:
            build(image, **{name: "1"})
        assert caught.value.setting == name
        why = "names the files" if name.startswith("KV_DISK") else "TurboQuant"
        assert why in caught.value.remedy


@pytest.mark.parametrize(
    ("environment", "name", "setting"),
    [
        ({"SERVED_MODEL_NAME": "one,two"}, "bad-value", "SERVED_MODEL_NAME"),
        ({"ATTENTION_BACKEND": "cpu_attn"}, "bad-value", "ATTENTION_BACKEND"),
        ({"KV_CACHE_DTYPE": "turboquant_k8v4"}, "bad-value", "KV_CACHE_DTYPE"),
        (
            {"DFLASH_NUM_SPEC_TOKENS": "7", "EXTRA_ARGS": "--speculative-algorithm NGRAM"},
            "contradiction",
            "DFLASH_NUM_SPEC_TOKENS",
        ),
        ({"EXTRA_ARGS": "--admin-api-key x"}, "bad-value", "EXTRA_ARGS"),
        ({"EXTRA_ARGS": "--api-key one two"}, "bad-value", "--api-key"),
        ({"VLLM_API_KEY": "-dashed"}, "bad-value", "--api-key"),
        ({"VLLM_API_KEY": "key", "EXTRA_ARGS": "--config mine.yaml"}, "contradiction", "EXTRA_ARGS"),
        ({"SGLANG_API_KEY": "key"}, "unprotected", "SGLANG_API_KEY"),
    ],
    ids=str,
)
def test_bad_input_is_refused(program_image: Images, environment: dict[str, str], name: str, setting: str) -> None:
    with pytest.raises(errors.StartError) as caught:
        build(program_image(QWEN), **environment)
    assert (caught.value.name, caught.value.setting) == (name, setting)
    assert caught.value.remedy
    assert "dashed" not in str(caught.value)


def test_a_drafter_method_that_sglang_lacks_is_refused(program_image: Images) -> None:
    image = program_image(QWEN, drafters=[{"repo": "z-lab/Qwen3.5-27B-DFlash", "method": "eagle3", "tokens": 3}])
    with refuses("not-in-this-server", match="does not draft by the method 'eagle3'"):
        build(image)


def test_a_models_own_layers_draft_a_chain(program_image: Images) -> None:
    own = str(program_image(QWEN).model["model"])
    for repo, path in ((own, ""), ("a/b", " --speculative-draft-model-path a/b")):
        image = program_image(QWEN, drafters=[{"repo": repo, "method": "mtp", "tokens": 3}])
        words = " ".join(build(image, DFLASH_DRAFTER=repo).arguments)
        chain = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
        assert f"--speculative-algorithm NEXTN{path} {chain}" in words


def test_every_setting_is_known_or_refused_by_every_server() -> None:
    names = [setting.name for setting in SERVERS["vllm"].settings]
    for server in SERVERS.values():
        own = [setting.name for setting in server.settings]
        assert [name for name in names if name not in server.refused] == own
        assert set(server.refused) <= set(names)


def test_invoke_run_refuses_a_setting_of_the_other_server_as_the_image_does(served_image: Previews) -> None:
    with raises("bad-setting", match="ENABLE_TURBOQUANT is not a setting of SGLang"):
        served_image(QWEN).dry_run({"ENABLE_TURBOQUANT": "1"})
    with raises("bad-setting", match="There is no setting MAX_LEN"):
        served_image(QWEN).dry_run({"MAX_LEN": "1"})


def check(preview: Preview, name: str, machine: str = "gb10", **given: str) -> dict[str, Any]:
    found = preview.dry_run({"PORT": "18999"} | given, readings=READINGS / f"{machine}.json")["checks"]
    return next(finding for finding in found if finding["name"] == name)


def test_the_share_is_one_of_the_free_memory_beside_the_working_memory(served_image: Previews) -> None:
    """Of 128.5 GB, 122.4 are free; the host keeps 16, and 4 are for activations and graphs: 108.5 of 122.4 is 0.88."""
    found = check(served_image(QWEN), "memory", GPU_MEMORY_UTILIZATION="0.95")
    assert (found["result"], found["allowed"], found["exit_code"]) == ("fail", "up to 0.88", 67)
    assert "0.95 of 122.4 GB" in found["detail"]
    assert check(served_image(QWEN), "memory", GPU_MEMORY_UTILIZATION="0.88")["result"] == "ok"
    # vLLM takes its share of everything, and its working memory from that.
    of_vllm = check(served_image("qwen3.5-27b-nvfp4"), "memory", GPU_MEMORY_UTILIZATION="0.88")
    assert of_vllm["allowed"] == "up to 0.87"


def test_a_share_that_does_not_hold_the_weights_is_refused_with_one_that_does(served_image: Previews) -> None:
    found = check(served_image(QWEN), "memory", GPU_MEMORY_UTILIZATION="0.1")
    assert found["result"] == "fail"
    assert found["detail"] == "weights need 24.0 GB; 0.1 of 122.4 GB is 12.2 GB"
    assert found["remedy"] == "Set GPU_MEMORY_UTILIZATION to 0.2 or more."


def test_combinations_that_are_known_to_fail_are_refused(served_image: Previews) -> None:
    for target, given, words in (
        (QWEN, {"ATTENTION_BACKEND": "fa3"}, "FlashAttention 3 is for compute capability 9.0"),
        (QWEN.replace("21", "17"), {"DRAFT_ATTENTION_BACKEND": "flash_attn"}, "since SGLang 0.5.18"),
        ("gemma4-31b@sglang-0.5.12", {}, "DFlash for Gemma 4 needs SGLang 0.5.14"),
        (QWEN, {"EXTRA_ARGS": "--pp-size 2"}, "pipeline parallelism"),
        (QWEN, {"ATTENTION_BACKEND": "flash_attn"}, "models with linear attention by triton"),
        (GEMMA, {"EXTRA_ARGS": "--grammar-backend outlines"}, "Outlines does not work"),
    ):
        found = served_image(target).dry_run({"PORT": "18999"} | given, readings=READINGS / "gb10.json")
        failed = [one for one in found["checks"] if (one["name"], one["result"]) == ("combination", "fail")]
        assert any(words in finding["detail"] for finding in failed), words
    for extra in ("", *(f"--grammar-backend {backend}" for backend in ("xgrammar", "llguidance", "none"))):
        assert check(served_image(QWEN), "combination", EXTRA_ARGS=extra)["result"] == "ok", extra


def test_the_flags_of_sglang_are_read_from_its_sources(tmp_path: Path) -> None:
    fields = tmp_path / "srt" / "arg_groups" / "fields"
    fields.mkdir(parents=True)
    (fields / "schedule.py").write_text("class Schedule:\n    mem_fraction_static: A[\n        float,\n    ] = None\n")
    (fields / "parallel.py").write_text('class P:\n    tp_size: A[int, Arg(aliases=["--tensor-parallel-size"])] = 1\n')
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "serve.py").write_text('if arg == "--model-type":\n')
    known = flags.known(str(tmp_path), SERVER.argument_files)
    words = ("--mem-fraction-static", "--tensor-parallel-size", "1", "--model-type", "--max-model-len")
    assert flags.unknown(words, known) == ["--max-model-len"]


def test_the_steps_of_a_start_are_read_from_sglangs_log() -> None:
    lines = [
        "22.500 server_args=",
        "23.000 Attention backend not specified. Use triton backend by default.",
        "30.000 Load weight begin",
        "31.000 Load weight begin",
        "34.500 Load weight end",
        "58.500 max_total_num_tokens=",
    ]
    ends = Moments(began=10.0, became_server=10.5, listening=60.0, warm=62.0, ready=62.5)
    assert describe(SERVER.moments(lines, ends), warm_up=True) == (
        "start in seconds: checks 0.5, imports 12.0, engine 7.5, weights 4.5, graphs 24.0, server 1.5, "
        "warm-up 2.0; ready 52.5"
    )
    assert SERVER.choices(lines).attention == ("triton",)
    gemma = ["1.0 Use triton as default attention backend for Gemma4"]
    assert SERVER.choices(gemma).attention == ("triton",)
    assert all(any(line.partition(" ")[2].startswith(step) for line in lines) for step in SERVER.log.steps)


def test_draft_acceptance_is_computed_from_sglangs_metrics() -> None:
    metrics = b"""# HELP sglang:spec_verify_calls_total Number of speculative decoding verification calls.
sglang:spec_verify_calls_total{model_name="m"} 100.0
sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 16.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 300.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 280.0
"""
    assert SERVER.drafted(metrics) == Drafts(100.0, 1500.0, 480.0, 580.0)
    assert SERVER.drafted(b"") == Drafts()


@pytest.mark.parametrize(("target", "port"), [(QWEN, 30000), ("qwen3.5-27b-nvfp4", 8000)])
def test_the_health_check_of_a_command_without_a_port_asks_at_the_servers_own(
    program_image: Images, target: str, port: int
) -> None:
    start = start_of(program_image(target))
    for words, wanted in ((("org/model",), port), (("org/model", "--port", "9000"), 9000)):
        assert watch.address(start._replace(command=start.command._replace(arguments=words))).port == wanted


def test_an_image_of_an_unknown_server_is_broken(program_image: Images, tmp_path: Path) -> None:
    program_image(QWEN)
    described = tmp_path / "share" / "model.json"
    described.write_text(described.read_text("utf-8").replace('"sglang"', '"other"'), "utf-8")
    with refuses("broken-image", match="model.json lacks"):
        load(str(described.parent))
