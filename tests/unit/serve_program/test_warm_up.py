"""The warm-up: requests that call for different kernels, whose failure is only reported."""

import json
import re
from typing import Any

import pytest

from images.serve.program import health, readiness
from tests.fixtures.servers import Answer, Asked, scripted

CHAT = "/v1/chat/completions"


def warm_up(address: str, rounds: int = 1) -> bool:
    host, _, port = address.partition(":")
    return readiness.warm_up(health.Address(host, int(port)), "tiny", "key", rounds)


def answered(asked: Asked, models: bytes = b'{"data": [{"max_model_len": 800}]}', *, refuse: str = "nothing") -> Answer:
    assert asked.headers["authorization"] == "Bearer key"
    return Answer(models) if asked.path != CHAT else Answer(status=400 if refuse in asked.body.decode() else 200)


def words(body: dict[str, Any]) -> int:
    return len(body["messages"][0]["content"].split())


def test_a_round_asks_in_four_ways(capfd: pytest.CaptureFixture[str]) -> None:
    with scripted(answered) as server:
        assert warm_up(server.address, rounds=2)
        asked = [json.loads(asked.body) for asked in server.log if asked.path == CHAT]
    first, second = asked[:11], asked[11:]
    assert [words(body) for body in first[:3]] == [6, 6, 201], "a quarter of the context, and the number of the round"
    assert [body.get("top_logprobs") for body in first] == [None, 5, *[None] * 9]
    assert [body.get("top_p") for body in first] == [None, None, None, *[0.9] * 8]
    assert len({json.dumps(body) for body in first + second}) == 22, "some come from the cache of prefixes"
    said = capfd.readouterr().err.splitlines()
    assert [line[:30] for line in said] == [f"[serve] warm-up {number} of 2: short " for number in (1, 2)]


@pytest.mark.parametrize("models", [b"", b"{}", b'{"data": []}', b'{"data": [{"max_model_len": null}]}', b"[1]"])
def test_a_server_that_does_not_tell_its_context_gets_a_short_prompt(models: bytes) -> None:
    with scripted(lambda asked: answered(asked, models)) as server:
        assert warm_up(server.address)
        longest = max(words(json.loads(asked.body)) for asked in server.log if asked.path == CHAT)
    assert longest < 10


def test_a_refused_request_is_named_and_one_that_goes_away_ends_the_warm_up(capfd: pytest.CaptureFixture[str]) -> None:
    with scripted(lambda asked: answered(asked, refuse="logprobs")) as server:
        assert warm_up(server.address)
    assert re.search(r"log-probabilities got status 400, long \d+\.\d s, 8 at once", capfd.readouterr().err)
    assert not warm_up(server.address, rounds=3)
    assert capfd.readouterr().err.count("[serve] warm-up 1 of 3 failed: ") == 1
