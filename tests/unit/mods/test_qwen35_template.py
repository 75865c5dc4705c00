"""The chat template of the mod qwen35-chat-template renders as the model and vLLM's parsers expect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.fixtures.checkouts import REPOSITORY

TEMPLATE = REPOSITORY / "mods" / "qwen35-chat-template" / "files" / "qwen3.5.jinja"
USER = {"role": "user", "content": "Hello"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def render(*messages: dict[str, Any], generate: bool = True, **options: Any) -> str:
    """Render a chat with the environment that transformers makes for chat templates."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    return template.render(messages=list(messages), add_generation_prompt=generate, **options)


def test_chat_ends_with_a_generation_prompt() -> None:
    assert render(USER) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_finished_chat_has_no_generation_prompt() -> None:
    assert render(USER, {"role": "assistant", "content": "Hi"}, generate=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n"
    )


def test_system_message_comes_first() -> None:
    text = render({"role": "system", "content": "Be brief."}, USER)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_empty_system_message_is_left_out() -> None:
    assert render({"role": "system", "content": ""}, USER) == render(USER)


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, "<think>\n"),
        ({"enable_thinking": True}, "<think>\n"),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
    ],
)
def test_thinking_is_on_by_default(options: dict[str, bool], prompt: str) -> None:
    assert render(USER, **options).endswith(f"<|im_start|>assistant\n{prompt}")


TOOLS = (
    "# Tools\n\nYou may call these functions:\n<tools>\n"
    '{"type": "function", "function": {"name": "weather", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}}}}\n'
    "</tools>\n\nTo call one, answer with exactly this form, one block for each call:\n"
    "<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def test_tools_are_described_in_the_system_turn() -> None:
    assert render(USER, tools=[TOOL]) == (
        f"<|im_start|>system\n{TOOLS}<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    with_system = render({"role": "system", "content": "Be brief."}, USER, tools=[TOOL])
    assert with_system.startswith(f"<|im_start|>system\nBe brief.\n\n{TOOLS}<|im_end|>\n<|im_start|>user\n")


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
    assert text.partition("Hello<|im_end|>\n")[2] == (
        "<|im_start|>assistant\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_tool_call_starts_on_its_own_line_after_content() -> None:
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call()["function"]]}
    assert (
        "assistant\nI look.\n<tool_call>\n<function=weather>\n</function>\n</tool_call><|im_end|>"
        in render(USER, said)
    )


def test_content_may_be_a_list_of_parts() -> None:
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url"},
        {"type": "video"},
        {"type": "text", "text": "?"},
    ]
    assert render({"role": "user", "content": parts}, generate=False) == (
        "<|im_start|>user\nWhat is <|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|vision_end|>?<|im_end|>\n"
    )
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert render(system, USER) == render({"role": "system", "content": "Be brief."}, USER)


def test_vllm_detects_support_for_parts() -> None:
    """vLLM looks for a loop over `content` that reads the items' types."""
    text = TEMPLATE.read_text("utf-8")
    assert "for item in content" in text
    assert "item.type" in text


def test_reasoning_is_kept_only_for_the_current_turn() -> None:
    thought = {"role": "assistant", "content": "Hi", "reasoning_content": "They greet me."}
    assert "They greet me." not in render(USER, thought, {"role": "user", "content": "And now?"})
    running = thought | {"tool_calls": [call(city="Bonn")]}
    text = render(USER, running, {"role": "tool", "content": "sun"})
    assert "<|im_start|>assistant\n<think>\nThey greet me.\n</think>\n\nHi\n<tool_call>" in text


@pytest.mark.parametrize(
    "message", [{"role": "wizard", "content": "x"}, {"role": "system", "content": "late"}]
)
def test_unexpected_message_is_refused(message: dict[str, str]) -> None:
    with pytest.raises(TemplateError, match="Unexpected message role"):
        render(USER, message)
