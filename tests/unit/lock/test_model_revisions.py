"""Tests looking up model revisions on the hub or a mirror of it."""

import json
from http import HTTPStatus

import pytest

from imagefactory.lock.lookups import hub_endpoint, lock_revision
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, scripted

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("token", ["", "hf_test"])
def test_revision_is_the_commit_of_the_main_branch(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with scripted(lambda _: Answer(json.dumps({"sha": COMMIT}).encode())) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/")
        locked = lock_revision("z-lab/gemma-4-31B-it-DFlash")
    assert (locked.repo, locked.commit) == ("z-lab/gemma-4-31B-it-DFlash", COMMIT)
    [asked] = hub.log
    assert asked.path == "/api/models/z-lab/gemma-4-31B-it-DFlash/revision/main"
    assert asked.headers.get("authorization") == (f"Bearer {token}" if token else None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(status=HTTPStatus.NOT_FOUND), "404"),
        (Answer(status=HTTPStatus.UNAUTHORIZED), "HF_TOKEN"),
        (Answer(b"<html>"), "no commit"),
        (Answer(b"[" * 100_000), "no commit"),
        (Answer(b'{"sha": "main"}'), "no commit"),
    ],
)
def test_unusable_response_is_reported_with_the_model(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, why: str
) -> None:
    with scripted(lambda _: answer) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with raises("hub-unreachable", match=why) as failure:
            lock_revision("a/b")
    assert "a/b" in failure.value.what


def test_empty_endpoint_means_the_public_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert hub_endpoint().startswith("https://")
