"""Tests the table of hosts with known faults, and how processes that hold memory are named."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from images.serve.program import holders, hosts
from tests.fixtures.serving import READINGS, Images

SPARK = {
    "unified": True,
    "kernel": "6.17.0-1032-nvidia",
    "driver": "580.173.02",
    "toolkit": "1.19.0",
    "docker": "28.5.1",
}
Check = Callable[..., dict[str, Any]]


def test_every_fault_has_a_source_and_the_day_when_it_was_seen() -> None:
    for fault in hosts.known():
        assert fault.keys() == {"when", "host", "here", "what", "remedy", "source", "seen"}
        assert date.fromisoformat(fault["seen"]) <= date(2026, 11, 18)
        assert all("/" in source and "#" in source for source in fault["source"].split(", "))


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        ({}, ""),
        ({"kernel": "7.0.0-1019-nvidia", "roce": True}, "kernel 7.0.0-1019-nvidia: memory cannot be registered"),
        ({"kernel": "7.0.0-1019-nvidia"}, ""),
        ({"kernel": "7.0.0-30-generic", "roce": True}, ""),
        ({"driver": "610.43.02"}, "driver 610.43.02: one owner of a Spark reports crippling memory use"),
        ({"driver": "610.43.02", "unified": False}, ""),
        ({"toolkit": "1.19.1", "cdi": True}, "container toolkit 1.19.1: a Spark froze under load"),
        ({"toolkit": "1.19.1"}, ""),
        ({"docker": "20.10.9"}, "Docker 20.10.9: it answers clone3 with EPERM"),
        ({"docker": "20.10.24+dfsg1"}, ""),
        ({"read_mbps": 110}, "the weights came from the disk at 110 MB/s: a Spark's own disk gives 5,600 or more"),
        ({"read_mbps": 4400}, ""),
    ],
)
def test_a_machine_has_the_faults_that_its_versions_say(facts: dict[str, object], detail: str) -> None:
    found = [fault.detail for fault in hosts.faults({**SPARK, **facts})]
    assert len(found) == bool(detail)
    assert all(text.startswith(detail) for text in found)


@pytest.fixture
def check(served_image: Images, tmp_path: Path) -> Check:
    """Run one check of an image on a recorded Spark, changed."""

    def run(name: str, machine: str = "gb10", given: dict[str, str] | None = None, **readings: Any) -> Any:
        recorded = json.loads((READINGS / f"{machine}.json").read_text()) | readings
        (tmp_path / "changed.json").write_text(json.dumps(recorded))
        image = served_image("gemma4-31b")
        checks = image.dry_run({"PORT": "18999"} | (given or {}), readings=tmp_path / "changed.json")["checks"]
        return next(finding for finding in checks if finding["name"] == name)

    return run


def test_a_container_warns_of_its_host_and_starts(check: Check) -> None:
    assert (check("host")["result"], check("host")["detail"]) == ("ok", "no known fault")
    found = check("host", driver="610.43.02")
    assert (found["result"], found["exit_code"]) == ("warn", 0)
    assert found["detail"].startswith("driver 610.43.02: one owner of a Spark reports")


def test_the_kernel_that_breaks_rdma_matters_to_a_pair_alone(check: Check) -> None:
    interfaces = [["enp1s0f0np0", "10.0.0.1/24", 9000, True]]
    network = {"interfaces": interfaces, "roce": [["rocep1s0f0", "enp1s0f0np0", True, "01:00.0"]]}
    here = {"kernel": "7.0.0-1019-nvidia", "network": network}
    pair = {"NODES": "2", "NODE_RANK": "0", "HEAD_ADDRESS": "10.0.0.1"}
    assert check("host", given=pair, **here)["detail"].startswith(
        "kernel 7.0.0-1019-nvidia: memory cannot be registered"
    )
    assert check("host", **here)["result"] == "ok"


LEFT = "4711, VLLM::EngineCore, 60000\n812, /usr/bin/gnome-shell, 210\n"


def test_a_left_over_process_that_holds_the_memory_is_named_with_its_number(check: Check) -> None:
    found = check("memory", memory_available=50_000_000_000, processes=LEFT)
    assert found["result"] == "fail"
    assert "; process 4711 (VLLM::EngineCore) holds 62.9 GB of the GPU, process 812 (gnome-shell)" in found["detail"]
    assert found["remedy"].startswith("End what is left over (`kill 4711`). Else: Set GPU_MEMORY_UTILIZATION=")


def test_processes_outside_the_container_are_left_to_the_host(check: Check) -> None:
    found = check("memory", memory_available=50_000_000_000)
    assert "; others hold 78.5 GB, unseen from this container" in found["detail"]
    assert "`nvidia-smi` on the host names it. Else: " in found["remedy"]
    too_much = check("memory", given={"GPU_MEMORY_UTILIZATION": "0.95"}, processes=LEFT)
    assert "4711" not in too_much["detail"], "it would not fit into an idle machine either"


def test_what_nvidia_smi_says_of_processes_is_read() -> None:
    assert holders.of("") == holders.of("No running processes found\n") == []
    assert holders.describe("12, [Not Found], 2048\n13, /opt/venv/bin/python3, [N/A]\n") == (
        "process 12 holds 2.1 GB of the GPU, process 13 (python3) holds memory of the GPU"
    )
