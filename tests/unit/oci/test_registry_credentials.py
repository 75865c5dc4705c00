"""Finding credentials for a registry."""

import base64
import json
from pathlib import Path

import pytest

from imagefactory.oci.registry.credentials import Credentials, find_credentials
from tests.fixtures.failures import raises


def packed(user: str, secret: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


def log_in(home: Path, config: object) -> dict[str, str]:
    """Write Docker's configuration; return an environment that uses it."""
    (home / ".docker").mkdir(parents=True, exist_ok=True)
    (home / ".docker/config.json").write_text(json.dumps(config))
    return {"HOME": str(home)}


def helper(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a credential helper."""
    folder.mkdir(exist_ok=True)
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("registry", "key"),
    [("ghcr.io", "ghcr.io"), ("ghcr.io", "https://ghcr.io/v2/"), ("docker.io", "https://index.docker.io/v1/")],
)
def test_login_is_found_under_every_name_that_tools_use(tmp_path: Path, registry: str, key: str) -> None:
    environment = log_in(tmp_path, {"auths": {key: packed("me", "sec:ret")}})
    found = find_credentials(registry, environment)
    assert found == Credentials("me", "sec:ret", str(tmp_path / ".docker/config.json"))
    assert "sec:ret" not in repr(found)
    assert find_credentials("example.com", environment) is None


def test_login_comes_before_the_token_of_a_workflow(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "GITHUB_TOKEN": "t", "GITHUB_ACTOR": "me"}
    assert find_credentials("ghcr.io", environment) == Credentials("me", "t", "GITHUB_TOKEN")
    assert find_credentials("example.com", environment) is None
    log_in(tmp_path, {"auths": {"ghcr.io": packed("other", "x")}})
    found = find_credentials("ghcr.io", environment)
    assert found
    assert found.username == "other"


def test_helpers_are_asked_as_docker_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""cat > {tmp_path}/asked; echo '{{"Username": "me", "Secret": "s"}}'"""
    helper(tmp_path / "bin", "own", script, monkeypatch)
    config = {"credHelpers": {"ghcr.io": "own"}, "auths": {"ghcr.io": packed("not", "x")}}
    environment = log_in(tmp_path, config)
    assert find_credentials("ghcr.io", environment) == Credentials("me", "s", str(tmp_path / ".docker/config.json"))
    assert (tmp_path / "asked").read_text() == "ghcr.io"  # without a newline, as helpers expect it
    assert find_credentials("example.com", environment) is None
    helper(tmp_path / "bin", "empty", "echo credentials not found in native keychain; exit 1", monkeypatch)
    assert find_credentials("ghcr.io", log_in(tmp_path, {"credsStore": "empty", "auths": {"ghcr.io": {}}})) is None


@pytest.mark.parametrize(
    ("script", "why"),
    [("echo the keychain is locked; exit 1", "locked"), ("echo hello", "value"), ("", "docker-credential-bad")],
)
def test_failing_helper_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str) -> None:
    helper(tmp_path / "bin", "bad" if script else "another", script, monkeypatch)
    with raises("credentials-refused") as failure:
        find_credentials("ghcr.io", log_in(tmp_path, {"credsStore": "bad"}))
    assert why in failure.value.why


@pytest.mark.parametrize("text", ["{", '{"auths": 3}', '{"auths": {"ghcr.io": {"auth": "%%%"}}}'])
def test_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    log_in(tmp_path, {})
    (tmp_path / ".docker/config.json").write_text(text)
    with raises("credentials-refused") as failure:
        find_credentials("ghcr.io", {"HOME": str(tmp_path)})
    assert "config.json" in failure.value.where
