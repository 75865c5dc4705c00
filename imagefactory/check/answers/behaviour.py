"""Scenarios that a model passes or fails by rules of their own: calls of tools, schemas, a long prompt, stop words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field

from imagefactory.check.answers.result import Outcome
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.errors import CheckError, clean
from imagefactory.project.data import load_data
from imagefactory.project.locks.files import Frozen
from imagefactory.store.digests import parse_json
from imagefactory.store.progress import Say

_SHOWN: Final = 200  # characters of an answer or error in a message


class Tool(Frozen):
    """A function that a model may call."""

    description: str
    parameters: dict[str, Any]
    required: tuple[str, ...]

    def offered(self, name: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": self.parameters, "required": list(self.required)}
        return {"type": "function", "function": {"name": name, "description": self.description, "parameters": schema}}


class Call(Frozen):
    """A call of a tool, with some of its arguments or all."""

    name: str
    arguments: dict[str, Any] = Field(default={})


class LongText(Frozen):
    """Many lines of which one is different."""

    lines: int
    line: str
    at: int
    instead: str

    def __str__(self) -> str:
        numbers = range(1, self.lines + 1)
        return "\n".join((self.instead if n == self.at else self.line).format(number=n) for n in numbers)


class Expected(Frozen):
    """What makes a scenario pass."""

    calls: tuple[Call, ...] | None = None
    says: tuple[str, ...] = ()
    says_not: tuple[str, ...] = ()
    json_: dict[str, Any] | None = Field(default=None, alias="json")
    ends: str = ""

    def missed(self, choice: Mapping[str, Any]) -> str:
        """Return what an answer lacks; an empty text if nothing."""
        message = choice["message"]
        content = str(message.get("content") or "")
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [
            Call(name=str(function["name"]), arguments=_parsed(str(function.get("arguments") or "{}")))
            for function in functions
        ]
        shown = clean(" ".join([*(f"{call.name}({call.arguments})" for call in calls), content])[:_SHOWN])
        if self.calls is not None and not _same_calls(self.calls, calls):
            return f"other calls: {shown}"
        # The schema forbids further properties, so here an object may not have more.
        if self.json_ is not None and not (
            _equal(self.json_, answer := _parsed(content)) and len(answer) == len(self.json_)
        ):
            return f"other JSON: {shown}"
        if not all(_equal(text, content) for text in self.says) or any(_equal(text, content) for text in self.says_not):
            return f"other words: {shown}"
        ended = str(choice.get("finish_reason"))
        return f"it ended by {clean(ended[:_SHOWN])}" if self.ends and ended != self.ends else ""


class Scenario(Frozen):
    """A request, and what the answer must be."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[str, ...] = ()
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """The properties of the object that the answer must be."""
    long: LongText | None = None
    request: dict[str, Any] = Field(default={})
    expect: Expected


class Behaviour(Frozen):
    """All scenarios, under a version."""

    version: int
    request: dict[str, Any]
    tools: dict[str, Tool]
    scenarios: tuple[Scenario, ...]

    @classmethod
    def of(cls, root: Path) -> Self:
        return load_data(root, "behaviour.yaml", cls)

    def asked(self, scenario: Scenario, model: str) -> dict[str, Any]:
        body = {"model": model, "messages": list(scenario.messages), **self.request, **scenario.request}
        if scenario.tools:
            body["tools"] = [self.tools[name].offered(name) for name in scenario.tools]
        if scenario.schema_ is not None:
            properties = scenario.schema_
            schema = {
                "type": "object",
                "properties": properties,
                "required": [*properties],
                "additionalProperties": False,
            }
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        if scenario.long is not None:
            *before, last = scenario.messages
            body["messages"] = [*before, last | {"content": f"{scenario.long}\n\n{last['content']}"}]
        return body


def observe(endpoint: Endpoint, behaviour: Behaviour, say: Say) -> tuple[Outcome, ...]:
    model, outcomes = endpoint.models().name, []
    for number, scenario in enumerate(behaviour.scenarios, 1):
        say(f"scenario {number} of {len(behaviour.scenarios)}: {scenario.name}")
        why = _missed(endpoint, scenario.expect, behaviour.asked(scenario, model))
        outcomes.append(Outcome(name=scenario.name, passed=not why, why=why))
    return tuple(outcomes)


def _missed(endpoint: Endpoint, expected: Expected, body: Mapping[str, Any]) -> str:
    try:
        answer = endpoint.json("POST", "/v1/chat/completions", body)
        return expected.missed(answer["choices"][0])
    except CheckError as error:
        endpoint.models()  # Raises if the server is gone; one that refuses a request goes on.
        return f"refused: {error.why[:_SHOWN]}"
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return f"nonsense: {clean(str(error)[:_SHOWN])}"


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = parse_json(text.encode())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _same_calls(expected: tuple[Call, ...], actual: list[Call]) -> bool:
    """Match every expected call with a call of its own."""
    unmatched = list(actual)
    for call in expected:
        match = next(
            (
                candidate
                for candidate in unmatched
                if candidate.name == call.name and _equal(call.arguments, candidate.arguments)
            ),
            None,
        )
        if match is None:
            return False
        unmatched.remove(match)
    return not unmatched


def _equal(expected: Any, actual: Any) -> bool:  # noqa: ANN401 - JSON
    """Compare what is expected; a text only has to contain it, and an object may have more."""
    if isinstance(expected, str):
        return isinstance(actual, str) and expected.casefold() in actual.casefold()
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            name in actual and _equal(value, actual[name]) for name, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(_equal, expected, actual))
    # To Python True == 1, so the types have to agree too.
    return type(actual) is type(expected) and bool(actual == expected)
