"""What a model is good for: the badges beside its name, and the words that the search finds it by."""

from __future__ import annotations

from typing import Final

from imagefactory.project.served_model import ServedModel

SYNONYMS: Final = {
    "agents": "agent tool tools function calling mcp assistant",
    "chat": "assistant conversation",
    "coding": "code coder programming developer claude cline",
    "documents": "books pdf rag summary long context",
    "many users": "concurrency throughput team server",
    "reasoning": "thinking think reason maths",
    "tools": "tool function calling agents agent mcp assistant",
    "vision": "images pictures photos screenshots ocr multimodal",
}
"""What people type who look for a badge."""


def badges(model: ServedModel) -> list[str]:
    """Return the badges of a model: all that pages and the search say about its uses comes from here."""
    found: dict[str, bool] = dict.fromkeys(model.good_for, True)
    found |= {
        "tools": model.serve.tool_call_parser is not None,
        "reasoning": model.serve.reasoning_parser is not None,
        "vision": bool(model.reads_images),
        model.remark or "": bool(model.remark),
    }
    return [name for name, holds in found.items() if holds]


def search_words(model: ServedModel) -> str:
    """Return the badges of a model with their synonyms."""
    return " ".join(f"{badge} {SYNONYMS.get(badge, '')}" for badge in badges(model))
