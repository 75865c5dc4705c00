"""What a pair that runs says to people: where it serves, as what, and how to ask it."""

import json
import shlex

from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.errors import CheckError, clean
from imagefactory.launch.prepare import Start

PROMPT = "Two Sparks are"
_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what a server listens on


def address(start: Start, host: str) -> str:
    """Return the URL of the head; `host` is its name for whoever asks, unless the server listens elsewhere only."""
    chosen, port = _option(start, "--host"), _option(start, "--port") or "8000"
    return f"http://{host if chosen in _EVERYWHERE else chosen}:{port}"


def _option(start: Start, name: str) -> str:
    words = start.command
    return words[words.index(name) + 1] if name in words else ""


def complete(start: Start) -> str:
    """Have the model complete a text, which takes both machines."""
    launch = start.launch
    key = launch.key_file.read_text().strip() if launch.key_file else ""
    server = Endpoint(address(start, "127.0.0.1"), key)
    body = {"model": launch.names[0], "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    try:
        return str(server.json("POST", "/v1/completions", body)["choices"][0]["text"])
    except (CheckError, LookupError, TypeError) as error:
        raise CheckError(
            "pair-failed",
            "Both servers are healthy, but the model does not answer.",
            where=server.address,
            why=clean(error.why if isinstance(error, CheckError) else str(error)),
            fix="Read `./inv pair logs`, and run `./inv pair restart`.",
        ) from None


def introduction(start: Start, host: str, completion: str) -> str:
    """Say where a pair serves, and what to type next; no line has the key itself."""
    model, key_file = start.launch.names[0], start.launch.key_file
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ["-H", f'"Authorization: Bearer $(cat {shlex.quote(str(key_file))})"'] if key_file else []
    json_sent = ["-H", "'Content-Type: application/json'"]
    curl = ["curl", f"{address(start, 'localhost')}/v1/chat/completions", *json_sent, *key, "-d", shlex.quote(body)]
    lines = {
        "serving": f"{address(start, host)}/v1",
        "model": model,
        "key": f"in {key_file}" if key_file else "none: whoever reaches the port may ask; VLLM_API_KEY sets one",
        "proof": f"{PROMPT!r} goes on with {completion!r}",
        "ask": " ".join(curl),
        "next": "./inv pair status, ./inv pair logs --follow, ./inv pair down",
    }
    return "\n".join(f"{name:<9}{text}" for name, text in lines.items())
