"""One of several nodes: which interface is the cable, what the server is told, and what is refused."""

import json
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from imagefactory.project.cells import known_faults
from imagefactory.project.project import Project, locked_cells
from images.serve.program import network, pair, rules
from images.serve.program.errors import StartError
from images.serve.program.keys import Secrets
from images.serve.program.network import Interface, Network
from images.serve.program.settings import Settings
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.serving import READINGS, SIZES, Images

PORTS = {"f0np0": "f0", "f1np1": "f1"}
WIFI = ("wlP9s9", "192.168.1.7/24", 1500)


def spark(folder: Path, *active: str) -> str:
    """Write the /sys of a Spark: two ports of two links each, of which some are active."""
    for domain, prefix in (("0000", "p1s0"), ("0002", "P2p1s0")):
        for function, (name, short) in enumerate(PORTS.items()):
            device = folder / f"devices/pci{domain}:00/{domain}:01:00.{function}"
            (device / "net" / f"en{prefix}{name}").mkdir(parents=True)
            roce = folder / f"class/infiniband/roce{prefix}{short}"
            (roce / "ports/1").mkdir(parents=True)
            (roce / "device").symlink_to(device)
            (roce / "ports/1/state").write_text("4: ACTIVE" if short in active else "1: DOWN")
    return str(folder)


@pytest.mark.parametrize(
    ("active", "interface", "devices"),
    [
        (["f0"], "enp1s0f0np0", "rocep1s0f0,roceP2p1s0f0"),
        (["f1"], "enp1s0f1np1", "rocep1s0f1,roceP2p1s0f1"),
        (["f0", "f1"], "enP2p1s0f1np1", "rocep1s0f1,roceP2p1s0f1"),
        ([], "enp1s0f0np0", None),
        (["f0"], "enP7s7", None),
    ],
)
def test_nccl_gets_both_links_of_the_cable_s_port(
    tmp_path: Path, active: list[str], interface: str, devices: str | None
) -> None:
    found = network.read(spark(tmp_path, *active)).roce
    assert len(found) == 4
    here = Network((Interface("lo", IPv4Interface("127.0.0.1/8")), cable(interface, "10.0.0.2/24")), found)
    node = pair.find(settings(rank=1, head="10.0.0.1"), here)
    variables = node.environment("VLLM_HOST_IP")
    assert sorted(variables.get("NCCL_IB_HCA", "").split(",")) == sorted((devices or "").split(","))
    assert ("NCCL_IB_HCA" in variables) is ("NCCL_IB_ROCE_VERSION_NUM" in variables) is bool(devices)
    assert "NCCL_IB_GID_INDEX" not in variables
    assert variables["VLLM_HOST_IP"] == "10.0.0.2"
    assert {variables[f"{name}_SOCKET_IFNAME"] for name in ("NCCL", "GLOO", "TP")} == {interface}


def test_what_the_user_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine")
    here = Network((cable("enp1s0f0np0", "10.0.0.1/24"),))
    variables = pair.find(settings(rank=0, head="10.0.0.1"), here).environment("SGLANG_HOST_IP")
    assert "NCCL_SOCKET_IFNAME" not in variables
    assert variables["SGLANG_HOST_IP"] == "10.0.0.1"


def test_this_machine_s_addresses_are_read() -> None:
    assert IPv4Interface("127.0.0.1/8") in {each.address for each in network.read().interfaces if each.name == "lo"}


@pytest.mark.parametrize(
    ("rank", "head", "named", "code", "words"),
    [
        (0, "10.0.0.9", "", 67, "no interface has 10.0.0.9: enp1s0f0np0 has 10.0.0.1/24, enP2p1s0f0np0"),
        (
            1,
            "10.0.0.1",
            "",
            67,
            "10.0.0.1 is this machine's own address (enp1s0f0np0), but NODE_RANK=1 is not the head",
        ),
        (1, "10.9.0.1", "", 67, "no interface is in one network with 10.9.0.1"),
        (1, "10.0.0.2", "eth9", 67, "there is no interface 'eth9' with an IPv4 address here"),
        (1, "10.0.0.2", "wlP9s9", 67, "wlP9s9 is not in one network with 10.0.0.2"),
        (1, "10.5.0.2", "", 67, "twin0 and twin1 are both in the network of 10.5.0.2"),
    ],
)
def test_an_address_that_is_not_on_the_cable_is_refused(
    rank: int, head: str, named: str, code: int, words: str
) -> None:
    addresses = {
        "enp1s0f0np0": "10.0.0.1/24",
        "enP2p1s0f0np0": "10.0.1.1/24",
        "wlP9s9": "192.168.1.7/24",
        **{f"twin{number}": f"10.5.0.{number + 3}/24" for number in (0, 1)},
    }
    here = Network(tuple(cable(*each) for each in addresses.items()))
    with pytest.raises(StartError) as caught:
        pair.find(settings(rank, head, named), here)
    assert words in caught.value.what
    assert caught.value.exit_code == code
    assert caught.value.remedy


RATHER = {"verbs": True, "locks_memory": True}


@pytest.mark.parametrize(
    ("here", "result", "words"),
    [
        (RATHER, "ok", "node 0 of 2 on enp1s0f0np0 (10.0.0.1/24, MTU 9000), RoCE by rocep1s0f0 and roceP2p1s0f0; the"),
        (RATHER | {"verbs": False}, "fail", "enp1s0f0np0 has RoCE, but /dev/infiniband is not in the container"),
        (RATHER | {"locks_memory": False}, "fail", "the container may not lock the memory that RDMA needs"),
        (RATHER | {"roce": []}, "warn", "enp1s0f0np0 has no active RoCE device: NCCL will use TCP"),
        (RATHER | {"mtu": 1500}, "warn", "the MTU of enp1s0f0np0 is 1500"),
        (RATHER | {"carrier": False}, "warn", "enp1s0f0np0 has no carrier"),
        (RATHER | {"address": "10.7.0.1/24"}, "fail", "no interface has 10.0.0.1: wlP9s9 has 192.168.1.7/24"),
    ],
)
def test_the_machine_is_checked(
    served_image: Images, tmp_path: Path, here: dict[str, Any], result: str, words: str
) -> None:
    found = checked(served_image, tmp_path, here)
    assert any(finding["result"] == result and words in finding["detail"] for finding in found), found
    if result != "ok":
        assert all(finding["remedy"] for finding in found if words in finding["detail"])


@pytest.mark.parametrize(
    ("version", "machine", "fails"),
    [
        ("2.28.9", "aarch64", True),
        ("2.29.2", "aarch64", True),
        ("2.29.3", "aarch64", False),
        ("2.28.9", "x86_64", False),
    ],
)
def test_an_nccl_that_loses_proxies_on_arm64_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, machine: str, *, fails: bool
) -> None:
    site = tmp_path / "python3.13/site-packages"
    for name in ("nvidia", f"nvidia_nccl_cu13-{version}.dist-info"):
        (site / name).mkdir(parents=True)
    monkeypatch.setenv("FACTORY_SITE", str(tmp_path))
    assert pair.nccl_version() == version
    values = {"gpu": True, "machine": machine, "nccl": version, "carrier": True, "devices": "x", "kernel": "6.17"}
    facts = rules.Facts(values, (), lambda _: True)
    found = list(rules.matching(rules.common()["pair"], facts))
    assert [rule["detail"] for rule in found] == (
        [f"NCCL {version} of this image hangs on arm64 after some minutes (NVIDIA/nccl#2353)"] if fails else []
    )


NODE = {"NODES": "2", "HEAD_ADDRESS": "10.0.0.1"}


@pytest.mark.parametrize(
    ("target", "rank", "expected"),
    [
        ("gemma4-31b", "0", "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501"),
        ("gemma4-31b", "1", "--nnodes 2 --node-rank 1 --headless --master-addr 10.0.0.1 --master-port 29501"),
        ("gpt-oss-120b@sglang-0.5.21", "1", "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:29501 --tp-size 2"),
        ("gpt-oss-120b@sglang-0.5.21", "0", "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:29501 --tp-size 2"),
    ],
)
def test_the_server_gets_its_flags(served_image: Images, target: str, rank: str, expected: str) -> None:
    image = served_image(target)
    given = {**NODE, "NODE_RANK": rank}
    words = " ".join(image.command(given))
    assert expected in words
    if "sglang" not in target:
        assert "--distributed-executor-backend mp --tensor-parallel-size 2" in words
    whole = json.loads(image.run("a/b", "--dry-run", "--json", "--x", variables=given).stdout)["command"]
    assert expected in " ".join(whole)


@pytest.mark.parametrize(
    ("target", "nodes", "flags", "tensor"),
    [
        ("gemma4-31b", 2, "--pipeline-parallel-size 2", None),
        ("gemma4-31b", 4, "", "--tensor-parallel-size 4"),
        ("gemma4-31b", 4, "--pipeline-parallel-size 2", "--tensor-parallel-size 2"),
        ("gemma4-31b", 8, "--data_parallel_size=2 -pp 2", "--tensor-parallel-size 2"),
        ("gemma4-31b", 4, "--data-parallel-size 4", None),
        ("gpt-oss-120b@sglang-0.5.21", 4, "", "--dist-init-addr 10.0.0.1:29501 --tp-size 4"),
        ("gpt-oss-120b@sglang-0.5.21", 3, "--pp-size 3", None),
        ("gpt-oss-120b@sglang-0.5.21", 8, "--pp 2", "--tp-size 4"),
        ("gpt-oss-120b@sglang-0.5.21", 8, "--dp-size 2 --enable-dp-attention", "--tp-size 8"),
    ],
)
def test_the_nodes_that_flags_leave_over_share_each_layer(
    served_image: Images, target: str, nodes: int, flags: str, tensor: str | None
) -> None:
    given = {**NODE, "NODES": str(nodes), "NODE_RANK": str(nodes - 1), "EXTRA_ARGS": flags}
    words = " ".join(served_image(target).command(given))
    assert f"--nnodes {nodes} --node-rank {nodes - 1}" in words
    assert tensor in words if tensor else not {"--tensor-parallel-size", "--tp-size"} & {*words.split()}


CONFIG = {"num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 96, "num_hidden_layers": 6}
EXPERTS = {"num_experts": 12, "moe_intermediate_size": 96}
VLLM, SGLANG = "gemma4-31b", "gpt-oss-120b@sglang-0.5.21"
STAGES = {VLLM: "--pipeline-parallel-size", SGLANG: "--pp-size"}


@pytest.mark.parametrize(
    ("start", "config", "words"),
    [
        ((VLLM, 4, ""), {}, ""),
        ((VLLM, 8, ""), {}, ""),  # each KV head is on two nodes
        ((VLLM, 3, ""), {}, "32 attention heads do not divide by 3"),
        ((VLLM, 3, "--pipeline-parallel-size 3"), {}, ""),
        ((VLLM, 8, "--pipeline-parallel-size 8"), {}, "6 layers are fewer than 8 stages"),
        ((VLLM, 6, ""), {"num_attention_heads": 36}, "4 KV heads do not divide by 6, nor the other way round"),
        ((VLLM, 6, ""), {"num_attention_heads": 36, "kv_lora_rank": 512}, ""),
        ((VLLM, 4, ""), {"linear_num_value_heads": 6}, "6 value heads of linear attention do not divide by 4"),
        ((VLLM, 4, ""), {"text_config": {"num_attention_heads": 30}}, "30 attention heads do not divide by 4"),
        ((VLLM, 8, ""), {"intermediate_size": 100}, "the width of the MLP, 100, does not divide by 8"),
        ((VLLM, 8, ""), {**EXPERTS, "moe_intermediate_size": 100}, "the width of an expert, 100, does not divide by 8"),
        ((VLLM, 8, "--enable-expert-parallel"), {**EXPERTS, "moe_intermediate_size": 100}, ""),
        ((VLLM, 8, "--data-parallel-size 8"), {**EXPERTS, "moe_intermediate_size": 100}, "does not divide by 8"),
        ((VLLM, 8, "--data-parallel-size 8"), {"intermediate_size": 100}, ""),
        ((SGLANG, 8, ""), {}, ""),
        ((SGLANG, 3, ""), {}, "32 attention heads do not divide by 3"),
        ((SGLANG, 6, ""), {"num_attention_heads": 36}, "4 KV heads do not divide by 6, nor the other way round"),
        ((SGLANG, 8, "--ep-size 8"), EXPERTS, "12 experts do not divide by 8"),
        ((SGLANG, 4, "--ep-size 4"), EXPERTS, ""),
        ((SGLANG, 4, "--dp-size 4"), {}, "SGLang has its replicas (--dp-size 4) on one node"),
    ],
)
def test_a_number_of_nodes_that_the_model_does_not_divide_by_is_refused(
    served_image: Images, tmp_path: Path, start: tuple[str, int, str], config: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    target, nodes, flags = start
    given = {**NODE, "NODES": str(nodes), "NODE_RANK": "0", "EXTRA_ARGS": flags, "MODEL_PATH": str(tmp_path)}
    found = served_image(target).dry_run(given, readings=READINGS / "gb10.json")["checks"]
    misfits = [each for each in found if each["name"] == "combination" and each["result"] == "fail"]
    assert words in "".join(each["detail"] for each in misfits)
    assert bool(misfits) is bool(words)
    if "attention heads do not divide by 3" in words:
        assert misfits[0]["remedy"] == (
            f"Set NODES to 1 or 2 or 4 or 8; or split by layers, with EXTRA_ARGS='{STAGES[target]} 3'."
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"NODES": "2", "NODE_RANK": "0"}, "HEAD_ADDRESS conflicts with NODES=2"),
        ({"NODES": "4", "NODE_RANK": "4", "HEAD_ADDRESS": "10.0.0.1"}, "NODE_RANK conflicts with NODES=4"),
        ({**NODE, "NODES": "4", "NODE_RANK": "0", "EXTRA_ARGS": "-tp 2"}, "2 parts, which 4 nodes cannot share evenly"),
        ({**NODE, "NODES": "4", "NODE_RANK": "0", "EXTRA_ARGS": "-pp 3"}, "3 parts, which 4 nodes cannot share evenly"),
        ({**NODE, "NODE_RANK": "0", "HEAD_ADDRESS": "no such"}, "'no such' is neither an IPv4 address nor a name"),
        (NODE, "NODE_RANK conflicts with NODES=2"),
        ({"HEAD_ADDRESS": "10.0.0.1"}, "HEAD_ADDRESS conflicts with NODES=1"),
        ({**NODE, "NODE_RANK": "0", "EXTRA_ARGS": "--node_rank=0"}, "NODES and --node_rank both describe the nodes"),
        ({**NODE, "NODE_RANK": "8"}, "NODE_RANK is out of range"),
        ({"NODES": "9"}, "NODES is out of range"),
    ],
)
def test_settings_that_make_no_pair_are_refused(served_image: Images, given: dict[str, str], words: str) -> None:
    ran = served_image("gemma4-31b").run("check", variables=given)
    assert ran.returncode == 64
    assert words in ran.stderr


def test_each_node_holds_its_share(served_image: Images, tmp_path: Path) -> None:
    sizes = SIZES | {"weights": 198_000_000_000, "drafter": 0}
    alone = checked(served_image, tmp_path, RATHER, {"NODES": "1"}, "memory", sizes=sizes)
    assert [finding["result"] for finding in alone] == ["fail"]
    node = {**NODE, "NODE_RANK": "1", "MAX_MODEL_LEN": "32768", "GPU_MEMORY_UTILIZATION": "0.87"}
    (shared,) = checked(served_image, tmp_path, RATHER, node, "memory", sizes=sizes)
    assert shared["result"] == "ok", shared
    assert "weights 99.0 GB" in shared["detail"]


def checked(
    images: Images,
    folder: Path,
    here: dict[str, Any],
    given: dict[str, str] | None = None,
    name: str = "pair",
    **options: Any,
) -> list[dict[str, Any]]:
    twins = [["rocep1s0f0", "enp1s0f0np0", True, "01:00.0"], ["roceP2p1s0f0", "enP2p1s0f0np0", True, "01:00.0"]]
    interface = ["enp1s0f0np0", here.get("address", "10.0.0.1/24"), here.get("mtu", 9000), here.get("carrier", True)]
    recorded = json.loads((READINGS / "gb10.json").read_text())
    recorded["network"] = {"interfaces": [WIFI, interface], "roce": twins, **here}
    (folder / "readings.json").write_text(json.dumps(recorded))
    given = {**NODE, "NODE_RANK": "0", "SKIP_CHECKS": "port"} if given is None else given
    found = images("gemma4-31b", **options).dry_run(given, readings=folder / "readings.json")["checks"]
    # No machine of the tests has the recorded address.
    return [each for each in found if each["name"] == name and "cannot listen there" not in each["detail"]]


def cable(name: str, address: str) -> Interface:
    return Interface(name, IPv4Interface(address), 9000)


def settings(rank: int, head: str, named: str = "") -> Settings:
    values: dict[str, Any] = {"NODES": 2, "NODE_RANK": rank, "HEAD_ADDRESS": head, "CABLE": named, "HEAD_PORT": 29501}
    return Settings(values, frozenset(values), (), Secrets(()))


def test_versions_with_the_nccl_that_hangs_have_it_as_a_known_fault() -> None:
    project = Project(REPOSITORY)
    limit = Version(rules.common()["pair"][0]["when"][3][2])
    for cell in locked_cells(project):
        wheels = project.wheel_lock(cell).wheels if cell.arch == "gb10" else ()
        old = any(wheel.name.startswith("nvidia-nccl-cu") and Version(wheel.version) < limit for wheel in wheels)
        assert any("NCCL" in fault for fault in known_faults(project.matrix, cell)) == old, cell
