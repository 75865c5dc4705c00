"""The chat template of the mod qwen35-chat-template renders as the model and vLLM's parsers expect."""

import json
from functools import cache, partial
from typing import Any

import pytest
from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.fixtures.checkouts import REPOSITORY

TEMPLATE = REPOSITORY / "mods" / "qwen35-chat-template" / "files" / "qwen3.5.jinja"
USER = {"role": "user", "content": "Hello"}
BRIEF = {"role": "system", "content": "Be brief."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@cache
def template() -> Template:
    """Compile the template in the environment that transformers makes for chat templates."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(TEMPLATE.read_text("utf-8"))


def render(*messages: dict[str, Any], generate: bool = True, **options: Any) -> str:
    return template().render(messages=list(messages), add_generation_prompt=generate, **options)


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


PROMPT = "<|im_start|>assistant\n<think>\n"


def test_system_message_comes_first() -> None:
    assert render(BRIEF, USER) == turn("system", "Be brief.") + turn("user", "Hello") + PROMPT
    assert render({"role": "system", "content": ""}, USER) == render(USER)
    answer = {"role": "assistant", "content": "Hi"}
    assert render(USER, answer, generate=False) == turn("user", "Hello") + turn("assistant", "Hi")


def test_thinking_is_on_by_default() -> None:
    assert render(USER) == render(USER, enable_thinking=True) == turn("user", "Hello") + PROMPT
    assert render(USER, enable_thinking=False) == turn("user", "Hello") + f"{PROMPT}\n</think>\n\n"


TOOLS = (
    f"# Tools\n\nYou may call these functions:\n<tools>\n{json.dumps(TOOL)}\n"
    "</tools>\n\nTo call one, answer with exactly this form, one block for each call:\n"
    "<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def test_tools_are_described_in_the_system_turn() -> None:
    assert render(USER, tools=[TOOL]) == turn("system", TOOLS) + turn("user", "Hello") + PROMPT
    with_system = render(BRIEF, USER, tools=[TOOL])
    assert with_system.startswith(turn("system", f"Be brief.\n\n{TOOLS}") + "<|im_start|>user\n")


def call(name: str = "weather", **arguments: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_tool_calls_and_responses_have_the_form_parsers_expect() -> None:
    text = render(
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call(city="Köln", days=2), call(city="Bonn")]},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "sun"},
        tools=[TOOL],
    )
    assert text.partition("Hello<|im_end|>\n")[2].removesuffix(PROMPT) == (
        "<|im_start|>assistant\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n"
    )


def test_tool_call_starts_on_its_own_line_after_content() -> None:
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call()["function"]]}
    called = "I look.\n<tool_call>\n<function=weather>\n</function>\n</tool_call>"
    assert turn("assistant", called) in render(USER, said)


def test_content_may_be_a_list_of_parts() -> None:
    before, after = {"type": "text", "text": "What is "}, {"type": "text", "text": "?"}
    parts = [before, {"type": "image_url"}, {"type": "video"}, after]
    image, video = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video"))
    rendered = render({"role": "user", "content": parts}, generate=False)
    assert rendered == turn("user", f"What is {image}{video}?")
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert render(system, USER) == render(BRIEF, USER)
    # vLLM looks for a loop over `content` that reads the items' types.
    assert all(words in TEMPLATE.read_text("utf-8") for words in ("for item in content", "item.type"))


def test_reasoning_is_kept_only_for_the_current_turn() -> None:
    thought = {"role": "assistant", "content": "Hi", "reasoning_content": "They greet me."}
    assert "They greet me." not in render(USER, thought, {"role": "user", "content": "And now?"})
    running = thought | {"tool_calls": [call(city="Bonn")]}
    text = render(USER, running, {"role": "tool", "content": "sun"})
    assert "<|im_start|>assistant\n<think>\nThey greet me.\n</think>\n\nHi\n<tool_call>" in text


@pytest.mark.parametrize("message", [{"role": "wizard", "content": "x"}, {"role": "system", "content": "late"}])
def test_unexpected_message_is_refused(message: dict[str, str]) -> None:
    with pytest.raises(TemplateError, match="Unexpected message role"):
        render(USER, message)
