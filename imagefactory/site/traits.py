"""What a model is good for: the badges beside its name, and the words that the search finds it by."""

from __future__ import annotations

from typing import Final

from imagefactory.project.served_model import ServedModel

LONG: Final = 1_000_000
SYNONYMS: Final = {
    "coding": "code coder programming developer claude cline agent",
    "tools": "tool function calling agents agent mcp assistant",
    "reasoning": "thinking think reason maths",
    "vision": "images pictures photos screenshots ocr multimodal",
    "long context": "documents books million rag",
}
"""What people type who look for a badge."""


def badges(model: ServedModel) -> list[str]:
    """Return the badges of a model: all that pages and the search say about its uses comes from here."""
    serve, memory = model.serve, model.memory
    found = {
        "coding": "coder" in (model.repo or "").lower(),
        "tools": serve.tool_call_parser is not None,
        "reasoning": serve.reasoning_parser is not None,
        "vision": any((serve.limit_mm_per_prompt or {}).values()),
        "long context": memory is not None and memory.context >= LONG,
    }
    return [name for name, holds in found.items() if holds]


def search_words(model: ServedModel) -> str:
    """Return the badges of a model with their synonyms."""
    return " ".join(f"{badge} {SYNONYMS.get(badge, '')}" for badge in badges(model))
