"""Scenarios pass or fail by the rules of their data."""

import json
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from typing import Any

import pytest

from imagefactory.check.answers.behaviour import Behaviour, Expected, Scenario, observe
from imagefactory.check.bench.endpoint import Endpoint
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, Asked, ScriptedServer, scripted

BEHAVIOUR = Behaviour.of(REPOSITORY)
MODELS = {"data": [{"id": "m", "max_model_len": 4096}]}


def calls(*found: tuple[str, object]) -> dict[str, Any]:
    functions = [{"function": {"name": name, "arguments": json.dumps(given)}} for name, given in found]
    return {"message": {"content": None, "tool_calls": functions}, "finish_reason": "tool_calls"}


def says(text: str, ends: str = "stop") -> dict[str, Any]:
    return {"message": {"content": text}, "finish_reason": ends}


def right(scenario: Scenario) -> dict[str, Any]:
    """Answer as a scenario expects."""
    expect = scenario.expect
    if expect.calls:
        return calls(*((one.name, one.arguments) for one in expect.calls))
    return says(" ".join(expect.says) if expect.json_ is None else json.dumps(expect.json_))


def model(instead: Mapping[str, dict[str, Any] | HTTPStatus] = {}) -> closing[ScriptedServer]:
    """Serve a model that answers the scenarios in turn: rightly, or with what is given for their names."""
    turns = iter(BEHAVIOUR.scenarios)

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/models":
            return Answer(json.dumps(MODELS).encode())
        scenario = next(turns)
        choice = instead.get(scenario.name, right(scenario))
        if isinstance(choice, HTTPStatus):
            return Answer(b"no", choice)
        return Answer(json.dumps({"choices": [choice]}).encode())

    return scripted(answer)


def test_a_model_without_fault_passes_all() -> None:
    with model() as server:
        outcomes = observe(Endpoint(server.url), BEHAVIOUR, lambda _: None)
        asked = [json.loads(one.body) for one in server.log if one.body]
    assert [one.why for one in outcomes] == [""] * len({one.name for one in outcomes}) == [""] * 32
    assert all(one.expect != Expected() for one in BEHAVIOUR.scenarios)
    assert sum("tools" in one for one in asked) == 15
    assert sum("response_format" in one for one in asked) == 9
    assert sum(bool(one.get("stop")) for one in asked) == 2
    [long] = [text for one in asked if len(text := one["messages"][-1]["content"]) > 10_000]
    assert long.count("Locker ") == 600
    assert long.count("Quill") == 1
    assert all(one["temperature"] == 0 for one in asked)


def test_faults_are_kept_with_their_reasons() -> None:
    faults: dict[str, Any] = {
        "one call": says("It is sunny."),
        "two calls at once": HTTPStatus.BAD_REQUEST,
        "a list": {"message": 1},
    }
    with model(faults) as server:
        outcomes = observe(Endpoint(server.url), BEHAVIOUR, lambda _: None)
    failed = {one.name: one.why for one in outcomes if not one.passed}
    assert failed.keys() == faults.keys()
    assert failed["one call"] == "other calls: It is sunny."
    assert failed["two calls at once"].startswith("refused: It answers with status 400: no")


def test_a_server_that_is_gone_fails_the_measurement() -> None:
    with model() as server, raises("bench-incomplete", "cannot be reached"):
        observe(Endpoint(server.url), BEHAVIOUR, lambda text: server.close() if "scenario 2 " in text else None)


@pytest.mark.parametrize(
    ("expected", "choice", "passes"),
    [
        (
            {"calls": [{"name": "f", "arguments": {"city": "oslo"}}]},
            calls(("f", {"city": "Oslo, Norway", "more": 1})),
            True,
        ),
        ({"calls": [{"name": "f", "arguments": {"city": "Oslo"}}]}, calls(("f", {"city": "Lima"})), False),
        ({"calls": [{"name": "f"}]}, calls(("f", {}), ("f", {})), False),
        ({"calls": [{"name": "f"}, {"name": "g"}]}, calls(("g", {}), ("f", {})), True),
        ({"calls": [{"name": "f"}, {"name": "f"}]}, calls(("f", {})), False),
        ({"calls": []}, calls(("f", {})), False),
        ({"calls": [{"name": "f", "arguments": {"n": 1}}]}, calls(("f", {"n": True})), False),
        ({"calls": [{"name": "f", "arguments": {"n": 1}}]}, calls(("f", "no object")), False),
        ({"calls": [{"name": "f", "arguments": {"l": ["a", "b"]}}]}, calls(("f", {"l": ["b", "a"]})), False),
        ({"json": {"n": 1}}, says('{"n": 1}'), True),
        ({"json": {"n": 1}}, says('{"n": 1, "m": 2}'), False),
        ({"json": {"n": None}}, says("{}"), False),
        ({"json": {"n": 1}}, says('```json\n{"n": 1}\n```'), False),
        ({"says": ["Quill"]}, says("mrs. quill"), True),
        ({"says_not": ["seven"]}, says("six, seven"), False),
        ({"says": ["six"], "ends": "stop"}, says("six", "length"), False),
    ],
)
def test_rules(expected: dict[str, Any], choice: dict[str, Any], passes: bool) -> None:  # noqa: FBT001
    assert (not Expected.model_validate(expected).missed(choice)) == passes
