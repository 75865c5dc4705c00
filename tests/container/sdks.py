"""Talks to a server that has the model `tiny` with the SDKs of OpenAI and Anthropic. Usage: sdks.py ADDRESS KEY."""

import sys

from anthropic import Anthropic  # type: ignore[import-not-found]
from openai import OpenAI  # type: ignore[import-not-found]

TRIES = 20
"""Calls of tools: the model is random, and may fill its answer with blanks before it ends one."""
PROPERTIES = {"on": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["on"], "additionalProperties": False}
FUNCTION = {"name": "lamp", "description": "Switches the lamp.", "parameters": SCHEMA, "strict": True}
HELLO = [{"role": "user", "content": "Hi"}]
ASKED = {"model": "tiny", "messages": HELLO, "max_tokens": 8}
LONG = {**ASKED, "max_tokens": 150}


def chat_completions(openai: OpenAI) -> None:
    assert [model.id for model in openai.models.list()] == ["tiny"]
    chat = openai.chat.completions
    assert chat.create(**ASKED).choices[0].message.role == "assistant"
    assert len(list(chat.create(**ASKED, stream=True))) > 2
    tools = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
    answers = (chat.create(**LONG, **tools).choices[0].message.tool_calls for _ in range(TRIES))
    assert next(filter(None, answers))[0].function.name == "lamp"


def responses(openai: OpenAI) -> None:
    asked = {"model": "tiny", "input": "Hi"}
    assert openai.responses.create(**asked, max_output_tokens=8).output[0].type == "message"
    events = [event.type for event in openai.responses.create(**asked, max_output_tokens=8, stream=True)]
    assert events[0] == "response.created"
    assert "response.output_text.delta" in events
    tools = {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required", "max_output_tokens": 150}
    answers = (part for _ in range(TRIES) for part in openai.responses.create(**asked, **tools).output)
    assert next(part for part in answers if part.type == "function_call").name == "lamp"


def messages(anthropic: Anthropic) -> None:
    assert anthropic.messages.create(**ASKED).content[0].type == "text"
    with anthropic.messages.stream(**ASKED) as stream:
        assert stream.get_final_message().usage.output_tokens > 0
    tool = {"name": "lamp", "input_schema": SCHEMA, "strict": True}
    tools = {"tools": [tool], "tool_choice": {"type": "tool", "name": "lamp"}}
    answers = (part for _ in range(TRIES) for part in anthropic.messages.create(**LONG, **tools).content)
    assert next(part for part in answers if part.type == "tool_use").name == "lamp"
    assert anthropic.messages.count_tokens(model="tiny", messages=HELLO).input_tokens > 0


if __name__ == "__main__":
    address, key = sys.argv[1:]
    chat_completions(OpenAI(base_url=f"{address}/v1", api_key=key))
    responses(OpenAI(base_url=f"{address}/v1", api_key=key))
    messages(Anthropic(base_url=address, api_key=key))  # sends x-api-key
    messages(Anthropic(base_url=address, auth_token=key))  # sends Authorization
