"""TurboQuant settings, in terms of what vLLM has built in.

The settings come from a plugin of the same name; vLLM has four fixed formats instead. Each pair of bits becomes the
format that is equal or, where none is, the nearest one that loses no quality.
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
    """Return the KV cache format that the settings ask for (empty: none), with remarks."""
    if not settings.on("ENABLE_TURBOQUANT"):
        return "", []
    mode = settings.text("TQ_MODE") or "hybrid"
    if mode in {"off", "capture_only"}:
        return "", [f"TQ_MODE={mode}: the KV cache is not compressed"]
    keys, values = settings.number("TQ_KEY_BITS") or 4, settings.number("TQ_VALUE_BITS") or 4
    chosen = nearest(keys, values)
    remarks = []
    if (keys, values) not in FORMATS:
        remarks.append(
            f"vLLM has no TurboQuant with {keys}-bit keys and {values}-bit values; "
            f"{chosen} is the nearest that keeps at least as many bits"
        )
    if mode == "full_tq":
        remarks.append("TQ_MODE=full_tq: vLLM's TurboQuant has one mode, which is used")
    ignored = [name for name in WITHOUT_EFFECT if name in settings.given]
    if ignored:
        remarks.append(f"{' and '.join(ignored)}: without effect, vLLM's TurboQuant has no such option")
    return chosen, remarks


def nearest(keys: int, values: int) -> str:
    """Find the format with the fewest bits that has no fewer than asked for."""
    enough = [bits for bits in FORMATS if bits[0] >= keys and bits[1] >= values]
    return FORMATS[min(enough, key=sum)] if enough else FORMATS[8, 4]
