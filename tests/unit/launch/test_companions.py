"""What a compose file can start beside the server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.launch.companions import PROFILES, chosen_profiles, panels
from imagefactory.project.locks.files import CompanionLock, LockedCompanion
from imagefactory.project.project import Project
from imagefactory.project.servers.known import SERVERS
from tests.fixtures.failures import raises
from tests.fixtures.serving import REPOSITORY, prepared

METRICS = REPOSITORY / "tests" / "fixtures" / "metrics"
"""The names in /metrics of real servers that had answered requests, vLLM's with drafts."""


def document(*profiles: str, target: str = "qwen3.6-35b-a3b-nvfp4", key: Path | None = None) -> dict[str, Any]:
    start = prepared(target, environment={"VLLM_API_KEY_FILE": str(key)} if key else {})
    found: dict[str, Any] = yaml.safe_load(start.compose(profiles, Project(REPOSITORY).companion))
    return found


def test_only_the_server_starts_without_a_profile() -> None:
    plain, full = document(), document(*PROFILES)
    assert full["services"].pop("vllm") == plain["services"]["vllm"]
    profiles = {name: service["profiles"] for name, service in full["services"].items()}
    assert profiles == {name: [profile] for profile, names in PROFILES.items() for name in names}
    assert chosen_profiles("metrics, webui") == ["webui", "metrics"]
    with raises("unknown-name", match="Unknown profile 'webiu'"):
        chosen_profiles("webiu")
    assert set(Project(REPOSITORY).matrix.companions) == set(profiles)


def test_services_find_the_server_at_its_port_and_the_file_says_what_it_needs() -> None:
    text = prepared("tiny", PORT="9000").compose(list(PROFILES), Project(REPOSITORY).companion)
    assert text.count("localhost:${SERVER_PORT:-9000}") == 3
    assert "${PORT" not in text
    first, second, third = text.splitlines()[:3]
    assert first == "# Needs Docker Compose 2.23.1 or later."
    assert second.startswith("# Tags may move: `./inv lock --upgrade companions`")
    assert third == "services:"


def test_no_service_gets_around_the_key_of_the_server_or_shows_it(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("hunter2")
    found = document(*PROFILES, key=key)
    assert "hunter2" not in json.dumps(found)
    proxy = yaml.safe_load(found["configs"]["litellm-1"]["content"])
    assert proxy["general_settings"]["master_key"] == "os.environ/VLLM_API_KEY"
    open_to_all = {name for name, service in found["services"].items() if "127.0.0.1" not in json.dumps(service)}
    assert open_to_all == {"vllm", "open-webui", "litellm", "grafana"}
    assert found["services"]["grafana"]["environment"]["GF_AUTH_BASIC_ENABLED"] == "false"
    # Compose fills in the user's key, if there is one.
    proxy = yaml.safe_load(document("litellm")["configs"]["litellm-1"]["content"])
    assert proxy["general_settings"]["master_key"] == "${VLLM_API_KEY:-}"


def test_the_dashboard_needs_no_memory_of_the_gpu_and_without_one_no_dcgm() -> None:
    found = document("metrics")
    text = json.dumps(found)
    assert "node_memory_MemAvailable_bytes" in text
    assert "FB_" not in text
    shown = json.loads(found["configs"]["grafana-3"]["content"])
    assert [panel["title"] for panel in shown["panels"]] == [panel["title"] for panel in panels("vllm")]
    assert "dcgm" not in json.dumps(document("metrics", target="tiny")).lower()


@pytest.mark.parametrize("server", SERVERS)
def test_every_panel_asks_for_what_the_server_measures(server: str) -> None:
    known = {*(METRICS / f"{server}.txt").read_text().split(), *(METRICS / "node.txt").read_text().split()}
    asked = [name for panel in panels(server) for line in panel["lines"].values() for name in metrics_in(line)]
    missing = {name for name in asked if name not in known and not name.startswith("DCGM_FI_DEV_")}
    assert not missing
    assert len(set(asked)) >= 12


def metrics_in(expression: str) -> list[str]:
    return re.findall(r"[A-Za-z_]+[:_][A-Za-z0-9_:]*[A-Za-z0-9](?=[\[)\s]|$)", expression)


def test_an_image_of_others_is_named_by_its_digest_once_that_is_locked(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").symlink_to(REPOSITORY / "matrix.yaml")
    assert Project(tmp_path).companion("litellm") == "ghcr.io/berriai/litellm:main-stable"
    digest = "sha256:" + "ab" * 32
    tags = {"litellm": "main-stable", "grafana": "an-older-one"}
    entries = tuple(LockedCompanion(name=name, tag=tag, digest=digest) for name, tag in tags.items())
    CompanionLock(made_from={}, images=entries).write(tmp_path / "locks" / "companions.toml")
    project = Project(tmp_path)
    assert project.companion("litellm") == f"ghcr.io/berriai/litellm@{digest}"
    assert project.companion("grafana") == "docker.io/grafana/grafana:latest"
    with raises("bad-matrix", match="No image is known for nothing"):
        project.companion("nothing")
