"""Asks the server under test about itself: its model, version and context, and single answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import requests

from imagefactory.errors.bench import BenchIncompleteError
from imagefactory.smoke.containers import Container

_PATIENCE: Final = 300
_REFUSED: Final = (401, 403)


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server."""

    address: str
    key: str = ""
    container: Container | None = None
    """The container of the server, if this run started it."""

    def models(self) -> ServedAs:
        """Return what the server serves."""
        found = self._json("GET", "/v1/models")
        try:
            first = found["data"][0]
            return ServedAs(
                str(first["id"]), str(first.get("root") or first["id"]), int(first.get("max_model_len") or 0)
            )
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._odd("/v1/models", found) from None

    def version(self) -> str:
        """Return the server's version, or an empty text if it does not say."""
        try:
            found = self._json("GET", "/version")
        except BenchIncompleteError:
            return ""
        return str(found.get("version", "")) if isinstance(found, dict) else ""

    def count_tokens(self, model: str, prompt: str) -> int | None:
        """Return the tokens of a chat with one message, or None if the server does not count them."""
        try:
            found = self._json("POST", "/tokenize", {"model": model, "messages": _chat(prompt)})
            return int(found["count"])
        except (BenchIncompleteError, KeyError, TypeError, ValueError):
            return None

    def answer(self, model: str, prompt: str, tokens: int) -> str:
        """Return the answer to a prompt at temperature 0."""
        path = "/v1/chat/completions"
        body = {"model": model, "messages": _chat(prompt), "max_tokens": tokens, "temperature": 0}
        found = self._json("POST", path, body)
        try:
            message = found["choices"][0]["message"]
            parts = (message.get(name) for name in ("reasoning_content", "reasoning", "content"))
            return "".join(part for part in parts if part)
        except (KeyError, IndexError, TypeError, AttributeError):
            raise self._odd(path, found) from None

    def _json(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            reply = requests.request(
                method, f"{self.address}{path}", json=body, headers=headers, timeout=_PATIENCE
            )
        except requests.RequestException as error:
            raise self._failed(path, _short(error), "Check that the server runs and is reachable.") from None
        if reply.status_code in _REFUSED:
            fix = "Set VLLM_API_KEY to the server's key."
            raise self._failed(path, f"It refuses the key (status {reply.status_code}).", fix)
        if not reply.ok:
            why = f"It answers with status {reply.status_code}: {reply.text[:200]}"
            raise self._failed(path, why, "Read the server's log.")
        try:
            return reply.json()
        except ValueError:
            raise self._odd(path, reply.text[:200]) from None

    def _failed(self, path: str, why: str, fix: str) -> BenchIncompleteError:
        what = "The server cannot be measured."
        return BenchIncompleteError(what, where=f"{self.address}{path}", why=why, fix=fix)

    def _odd(self, path: str, answer: object) -> BenchIncompleteError:
        why = f"It answers nonsense: {str(answer)[:200]}"
        return self._failed(path, why, "Check that it is an OpenAI-compatible server.")


@dataclass(frozen=True)
class ServedAs:
    """A model as its server names it."""

    name: str
    root: str
    """The repository or folder that it was loaded from, which has the tokenizer."""
    context: int
    """Tokens of prompt and answer at most; 0 if unknown."""


def _chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _short(error: Exception) -> str:
    kind = "It does not answer in time" if isinstance(error, requests.Timeout) else "It cannot be reached"
    return f"{kind} ({type(error).__name__})."
