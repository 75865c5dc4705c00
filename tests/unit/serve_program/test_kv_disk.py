"""KV_DISK: what vLLM is told, when it is refused, and what the memory and the log say of it."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.serve.program import kv_disk, kv_disk_checks
from images.serve.program.findings import Finding
from images.serve.program.image import Image
from images.serve.program.readings import Gpu, Readings
from images.serve.program.servers.vllm import SERVER
from tests.fixtures.failures import refuses
from tests.fixtures.serving import READINGS, Images, prepared, start_of

TARGET = "qwen3.5-27b-nvfp4"
MACHINE = Readings((Gpu("NVIDIA H200", "9.0", 150 * 10**9, 150 * 10**9),), memory_available=100 * 10**9)

Programs = Callable[..., Image]


def told(image: Image, **given: str) -> dict[str, Any]:
    words = start_of(image, MACHINE, "", **given).command.arguments
    config: dict[str, Any] = json.loads(words[words.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    return config


def found(image: Image, **given: str) -> list[Finding]:
    return list(kv_disk_checks.kv_disk(start_of(image, MACHINE, "", **given)))


def test_without_it_vllm_is_told_nothing(program_image: Programs) -> None:
    start = start_of(program_image(TARGET))
    assert "--kv-transfer-config" not in start.command.arguments
    assert [finding.detail for finding in kv_disk_checks.kv_disk(start)] == ["off"]


def test_vllm_is_told_of_the_disk_and_finds_the_classes_for_it(program_image: Programs) -> None:
    image = program_image(TARGET)
    start = start_of(image, KV_DISK="/kv", KV_DISK_GB="200", KV_DISK_STAGE_GB="2")
    config = told(image, KV_DISK="/kv", KV_DISK_GB="200", KV_DISK_STAGE_GB="2")
    assert (config["disk"]["folder"], config["disk"]["bytes"], config["cpu_bytes_to_use"]) == (
        "/kv",
        200 * 10**9,
        2 * 10**9,
    )
    assert start.command.arguments.count("--enable-prefix-caching") == 1
    hook = SERVER.hand_over(start.command.arguments, start.settings.secrets, {}).environment["PYTHONPATH"]
    assert (Path(hook) / f"{config['spec_module_path']}.py").is_file()
    assert f"class {config['spec_name']}(" in (Path(hook) / f"{config['spec_module_path']}.py").read_text()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"PORT": "8001", "SERVED_MODEL_NAME": "a,b", "GPU_MEMORY_UTILIZATION": "0.5", "MAX_NUM_SEQS": "3"}, "same"),
        ({"KV_DISK_GB": "3", "KV_DISK_STAGE_GB": "9", "KV_DISK": "/other", "TOOL_CALL_PARSER": "off"}, "same"),
        ({"KV_CACHE_DTYPE": "fp8_e5m2"}, "another"),
        ({"DTYPE": "float16"}, "another"),
        ({"EXTRA_ARGS": "--block-size 64"}, "another"),
        ({"EXTRA_ARGS": "--tensor-parallel-size 2"}, "another"),
        ({"EXTRA_ARGS": "--revision abc"}, "another"),
        ({"EXTRA_ARGS": "--hf-overrides '{\"rope_theta\": 1}'"}, "another"),
        ({"QUANTIZATION": "fp8"}, "another"),
        ({"LOAD_FORMAT": "dummy"}, "another"),
        ({"MODS": "mine"}, "another"),
        ({"DFLASH_DRAFTER": "off"}, "another"),
    ],
)
def test_only_what_changes_the_cache_changes_its_place(
    program_image: Programs, given: dict[str, str], place: str
) -> None:
    image = program_image(TARGET)
    one, other = (told(image, **{"KV_DISK": "/kv", **more})["disk"]["about"] for more in ({}, given))
    assert place == ("same" if one == other else "another")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"NODES": "2", "NODE_RANK": "0", "HEAD_ADDRESS": "10.0.0.1"}, "never reaches this machine's disk"),
        ({"EXTRA_ARGS": "--kv-transfer-config '{}'"}, "another place for the KV cache"),
        ({"EXTRA_ARGS": "--enable-lora"}, "by the adapter's name alone"),
        ({"EXTRA_ARGS": "--data-parallel-size=2"}, "several engines"),
        ({"EXTRA_ARGS": "--prefix-caching-hash-algo xxhash"}, "the wrong text"),
        ({"KV_DISK": "relative"}, "is not a path from /"),
        ({"KV_DISK": "/proc/kv"}, "cannot be written"),
    ],
)
def test_what_would_give_wrong_answers_or_fail_is_refused_before_the_start(
    program_image: Programs, given: dict[str, str], why: str
) -> None:
    if given.get("KV_DISK") == "/proc/kv" and os.access("/proc", os.W_OK):
        given = {"KV_DISK": "/proc/1/comm/kv"}  # no folder can be made there, not even by root
    findings = found(program_image(TARGET), **{"KV_DISK": "/kv", **given})
    assert any(finding.result == "fail" and why in finding.detail for finding in findings), findings


def test_memory_that_may_move_a_cpu_and_a_folder_in_use_are_refused(
    program_image: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = program_image(TARGET)
    assert [finding.result for finding in found(image, KV_DISK=str(tmp_path))][-1] == "ok"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"another server uses {tmp_path}" in found(image, KV_DISK=str(tmp_path))[0].detail
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "memory may move" in found(image, KV_DISK=str(tmp_path))[0].detail
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert "from GPUs only" in found(program_image("tiny"), KV_DISK=str(tmp_path))[0].detail


def test_a_check_makes_no_folder_and_warns_of_one_that_is_lost_or_too_small(program_image: Programs) -> None:
    findings = found(program_image(TARGET), KV_DISK="/kv-of-nobody", KV_DISK_GB="99999")
    assert not Path("/kv-of-nobody").exists()
    assert [finding.result for finding in findings] == ["warn", "warn", "ok"]
    assert "GB in all" in findings[0].detail
    assert "is lost with it" in findings[1].detail


def test_a_stage_larger_than_the_hosts_memory_is_refused(program_image: Programs) -> None:
    findings = found(program_image(TARGET), KV_DISK="/kv", KV_DISK_STAGE_GB="101")
    assert [finding.setting for finding in findings if finding.result == "fail"] == ["KV_DISK_STAGE_GB"]


@pytest.mark.parametrize("setting", ["KV_DISK", "KV_DISK_GB", "KV_DISK_STAGE_GB"])
def test_other_servers_and_versions_refuse_it_by_name(program_image: Programs, setting: str) -> None:
    given = {setting: "/kv" if setting == "KV_DISK" else "9"}
    with refuses("not-in-this-server", "needs vLLM 0.32.0; this image has 0.2"):
        start_of(program_image("gemma4-31b@0.28.0"), MACHINE, "", **given)
    with refuses("not-in-this-server", f"{setting} is not a setting of SGLang"):
        start_of(program_image("gemma4-31b@sglang-0.5.21"), MACHINE, "", **given)


def test_the_stage_counts_where_the_gpu_shares_the_hosts_memory(served_image: Images, tmp_path: Path) -> None:
    def check(name: str, machine: Path, **given: str) -> Any:
        checks = served_image(TARGET).dry_run({"PORT": "18999", **given}, readings=machine)["checks"]
        return next(finding for finding in checks if finding["name"] == name)

    tight = {"GPU_MEMORY_UTILIZATION": "0.87", "MAX_MODEL_LEN": "262144"}
    gb10 = READINGS / "gb10.json"
    assert check("memory", gb10, **tight)["result"] == "ok"
    staged = check("memory", gb10, **tight, KV_DISK="/kv")
    assert staged["result"] == "fail"
    assert "the stage of KV_DISK 4.0 GB" in staged["detail"]
    assert staged["allowed"] == "up to 0.84"
    small = json.loads(gb10.read_text()) | {"shared_memory": 1_000_000_000}
    (tmp_path / "small.json").write_text(json.dumps(small))
    assert check("shm", tmp_path / "small.json")["result"] == "ok"
    shm = check("shm", tmp_path / "small.json", KV_DISK="/kv")
    assert (shm["result"], "--shm-size 5g" in shm["remedy"]) == ("fail", True)


def test_the_stage_of_a_killed_start_is_removed_and_no_other(program_image: Programs, tmp_path: Path) -> None:
    image, kv, shared = program_image(TARGET), tmp_path / "kv", tmp_path / "shm"
    kv.mkdir()
    shared.mkdir()
    words = start_of(image, KV_DISK=str(kv)).command.arguments
    engine = json.loads(words[words.index("--kv-transfer-config") + 1])["engine_id"]
    assert words == start_of(image, KV_DISK=str(kv)).command.arguments, "the same at the next start"
    others = [shared / "vllm_offload_0c8c.mmap", shared / "vllm_offload_imagefactory-1-2.mmap"]
    for path in (left := shared / f"vllm_offload_{engine}.mmap", *others):
        path.touch()
    kv_disk.forget_stages(words, str(shared))
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_tokens_from_the_disk_are_read_from_the_metrics() -> None:
    metrics = b"""# TYPE vllm:prompt_tokens_cached_by_source_total counter
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="device"} 7.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="disk"} 30000.0
vllm:prompt_tokens_cached_by_source_total{engine="1",model_name="m",source="disk"} 2.0
"""
    assert SERVER.from_disk(metrics) == 30002
    assert SERVER.from_disk(b"") == 0


def test_launches_have_a_volume_for_it() -> None:
    start = prepared(TARGET, KV_DISK="/kv")
    line, compose = start.line(), start.compose()
    volume = f"imagefactory-kv-{start.launch.cell.slug}"
    assert f"{volume}:/kv" in line
    assert "- kv:/kv" in compose
    assert f"name: {volume}" in compose
    assert "imagefactory-kv" not in "".join(prepared(TARGET).line())
