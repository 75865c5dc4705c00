"""Tests looking up model revisions on the hub or a mirror of it."""

import hashlib
import json
from http import HTTPStatus

import pytest

from imagefactory.lock import hub
from imagefactory.lock.hub import ask_hub, hub_endpoint
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.model_hub import ModelHub
from tests.fixtures.servers import Answer, scripted

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RETRY", Retry(attempts=2, pause=0.001))


@pytest.mark.parametrize("token", ["", "hf_test"])
def test_revision_is_the_commit_of_the_main_branch_with_its_files(
    monkeypatch: pytest.MonkeyPatch, model_hub: ModelHub, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_ENDPOINT", f"{model_hub.url}/")
    commit = model_hub.move("z-lab/gemma-4-31B-it-DFlash", model__safetensors=b"weights", config__json=b"{}")
    locked = ask_hub("z-lab/gemma-4-31B-it-DFlash")
    assert (locked.repo, locked.commit) == ("z-lab/gemma-4-31B-it-DFlash", commit)
    assert locked.files == {
        "model.safetensors": (7, hashlib.sha256(b"weights").hexdigest()),
        "config.json": (2, "9e26dfeeb6e641a33dae4961196235bdb965b21b"),  # printf '{}' | git hash-object --stdin
    }
    [asked] = model_hub.server.log
    assert asked.target == "/api/models/z-lab/gemma-4-31B-it-DFlash/revision/main?blobs=true"
    assert asked.headers.get("authorization") == (f"Bearer {token}" if token else None)


def test_busy_hub_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        Answer(status=HTTPStatus.TOO_MANY_REQUESTS),
        Answer(json.dumps({"sha": COMMIT, "siblings": []}).encode()),
    ]
    with scripted(lambda _: answers.pop(0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert ask_hub("a/b").commit == COMMIT


def refusal(code: str, status: HTTPStatus = HTTPStatus.UNAUTHORIZED) -> Answer:
    return Answer(status=status, headers={"X-Error-Code": code})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(status=HTTPStatus.NOT_FOUND), "no such repository"),
        (refusal("RepoNotFound"), "no such repository"),
        (refusal("GatedRepo", HTTPStatus.FORBIDDEN), "gated: accept its terms"),
        (refusal("RevisionNotFound", HTTPStatus.NOT_FOUND), "no longer has this commit"),
        (Answer(status=HTTPStatus.UNAUTHORIZED), "HF_TOKEN"),
        (Answer(status=HTTPStatus.BAD_GATEWAY), "502"),
        (Answer(b"<html>"), "no commit"),
        (Answer(b"[" * 100_000), "no commit"),
        (Answer(b'{"sha": "main", "siblings": []}'), "no commit"),
        (Answer(b'{"sha": "%s"}' % COMMIT.encode()), "no commit with its files"),
        (Answer(b'{"sha": "%s", "siblings": [1]}' % COMMIT.encode()), "no commit with its files"),
    ],
)
def test_unusable_response_is_reported_with_the_model(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, why: str
) -> None:
    with scripted(lambda _: answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with raises("hub-unreachable", match=why) as failure:
            ask_hub("a/b")
    assert "a/b" in failure.value.what


def test_empty_endpoint_means_the_public_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert hub_endpoint().startswith("https://")
