"""Maps the TurboQuant settings to vLLM's data types of the KV cache.

The settings are those of a plugin of the same name; vLLM has four fixed formats instead. If none has the number of
bits asked for, the next larger one is used.
"""

from __future__ import annotations

from .settings import Settings

FORMATS = {
    (8, 4): "turboquant_k8v4",
    (4, 4): "turboquant_4bit_nc",
    (3, 4): "turboquant_k3v4_nc",
    (3, 3): "turboquant_3bit_nc",
}
WITHOUT_EFFECT = ("TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS")


def cache_dtype(settings: Settings) -> tuple[str, list[str]]:
    """Return the data type of the KV cache (empty: uncompressed), with remarks for the user."""
    if not settings.on("ENABLE_TURBOQUANT"):
        return "", []
    mode = settings.text("TQ_MODE") or "hybrid"
    if mode in {"off", "capture_only"}:
        return "", [f"TQ_MODE={mode}: the KV cache is not compressed"]
    keys, values = settings.number("TQ_KEY_BITS") or 4, settings.number("TQ_VALUE_BITS") or 4
    enough = [bits for bits in FORMATS if bits[0] >= keys and bits[1] >= values]
    chosen = FORMATS[min(enough, key=sum, default=(8, 4))]
    remarks = []
    if (keys, values) not in FORMATS:
        remarks.append(
            f"vLLM's TurboQuant has no {keys}-bit keys with {values}-bit values; {chosen}, the next larger, is used"
        )
    if mode == "full_tq":
        remarks.append("TQ_MODE=full_tq: vLLM's TurboQuant has only one mode")
    ignored = [name for name in WITHOUT_EFFECT if name in settings.given]
    if ignored:
        remarks.append(f"{' and '.join(ignored)} ignored: vLLM's TurboQuant has no such option")
    return chosen, remarks
