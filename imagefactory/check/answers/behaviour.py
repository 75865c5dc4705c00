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

_SHOWN: Final = 200


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
        said = str(message.get("content") or "")
        functions = [one["function"] for one in message.get("tool_calls") or ()]
        calls = [Call(name=str(one["name"]), arguments=_parsed(str(one.get("arguments") or "{}"))) for one in functions]
        told = clean(" ".join([*(f"{one.name}({one.arguments})" for one in calls), said])[:_SHOWN])
        if self.calls is not None and not _same_calls(self.calls, calls):
            return f"other calls: {told}"
        if self.json_ is not None and not (
            _equal(self.json_, found := _parsed(said)) and len(found) == len(self.json_)
        ):
            return f"other JSON: {told}"
        if not all(_equal(text, said) for text in self.says) or any(_equal(text, said) for text in self.says_not):
            return f"other words: {told}"
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
        asked = {"model": model, "messages": list(scenario.messages), **self.request, **scenario.request}
        if scenario.tools:
            asked["tools"] = [self.tools[name].offered(name) for name in scenario.tools]
        if scenario.schema_ is not None:
            properties = scenario.schema_
            schema = {
                "type": "object",
                "properties": properties,
                "required": [*properties],
                "additionalProperties": False,
            }
            asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        if scenario.long is not None:
            *before, last = scenario.messages
            asked["messages"] = [*before, last | {"content": f"{scenario.long}\n\n{last['content']}"}]
        return asked


def observe(endpoint: Endpoint, behaviour: Behaviour, say: Say) -> tuple[Outcome, ...]:
    model, outcomes = endpoint.models().name, []
    for number, one in enumerate(behaviour.scenarios, 1):
        say(f"scenario {number} of {len(behaviour.scenarios)}: {one.name}")
        why = _missed(endpoint, one.expect, behaviour.asked(one, model))
        outcomes.append(Outcome(name=one.name, passed=not why, why=why))
    return tuple(outcomes)


def _missed(endpoint: Endpoint, expected: Expected, asked: Mapping[str, Any]) -> str:
    try:
        answer = endpoint.json("POST", "/v1/chat/completions", asked)
        return expected.missed(answer["choices"][0])
    except CheckError as error:
        endpoint.models()  # Raises if the server is gone; one that refuses a request goes on.
        return f"refused: {error.why[:_SHOWN]}"
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return f"nonsense: {clean(str(error)[:_SHOWN])}"


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text.encode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _same_calls(expected: tuple[Call, ...], found: list[Call]) -> bool:
    """Match every expected call with a call of its own."""
    left = list(found)
    for call in expected:
        match = next((one for one in left if one.name == call.name and _equal(call.arguments, one.arguments)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _equal(expected: Any, found: Any) -> bool:  # noqa: ANN401 - JSON
    """Compare what is expected; a text only has to contain it, and an object may have more."""
    if isinstance(expected, str):
        return isinstance(found, str) and expected.casefold() in found.casefold()
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and _equal(value, found[name]) for name, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_equal, expected, found))
    return type(found) is type(expected) and bool(found == expected)
