"""Tells over how many nodes a model can be split: its heads, widths and layers have to divide."""

from collections.abc import Iterator, Mapping
from typing import Any

from .command import Split, nodes, option
from .findings import FAIL, Finding, Start
from .redaction import is_flag

MOST = 8
"""Nodes."""
HEADS = {
    "num_attention_heads": "attention heads",
    "linear_num_key_heads": "key heads of linear attention",
    "linear_num_value_heads": "value heads of linear attention",
    "mamba_num_heads": "Mamba heads",
}
KV_HEADS = {"num_key_value_heads": "KV heads", "num_global_key_value_heads": "KV heads of full attention"}
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
EXPERT_PARALLEL = ("--ep-size", "--expert-parallel-size", "--ep")
"""SGLang's flags; vLLM has a switch, and spreads experts that do not divide, too."""
SWITCH = "--enable-expert-parallel"


def check(start: Start) -> Iterator[Finding]:
    """Refuse a number of nodes that the model does not divide by, where its config is known."""
    config, split = start.config, start.split
    if nodes(start.settings) == 1 or not config:
        return
    misfits = _misfits(config, split, start.command.arguments)
    if not misfits:
        return
    # One GPU more or less per node changes nothing here: numbers of parts are compared.
    per_node, rest = split.parts // nodes(start.settings) or 1, split.stages * split.replicas
    fitting = [
        str(count)
        for count in range(1, MOST + 1)
        if (tensor := count * per_node // rest) * rest == count * per_node
        and not _misfits(config, split._replace(tensor=tensor), start.command.arguments)
    ]
    detail = f"{' and '.join(misfits)}: {start.command.model} cannot be split so"
    stages = f"EXTRA_ARGS='{start.server.parallel.stages[0]} {nodes(start.settings)}'"
    remedy = f"Set NODES to {' or '.join(fitting) or 1}; or split by layers, with {stages}."
    allowed = ", ".join(fitting) or "1"
    yield Finding("combination", FAIL, detail, "NODES", start.settings.text("NODES"), allowed, remedy)


def _misfits(config: Mapping[str, Any], split: Split, words: tuple[str, ...]) -> list[str]:
    """List what does not divide."""
    parts, found = split.tensor, []
    for key, name in HEADS.items():
        if (count := _number(config, key)) % parts:
            found.append(f"{count} {name} do not divide by {parts}")
    for key, name in KV_HEADS.items():
        # More parts than heads share each of them; latent attention has one for all.
        count = 0 if config.get("kv_lora_rank") else _number(config, key)
        if count and max(count, parts) % min(count, parts):
            found.append(f"{count} {name} do not divide by {parts}, nor the other way round")
    experts = next((count for key in EXPERTS if (count := _number(config, key))), 0)
    groups = option(words, *EXPERT_PARALLEL) or ""
    whole = groups.isdecimal() or any(is_flag(word, SWITCH) for word in words)
    if groups.isdecimal() and experts % max(1, int(groups)):
        found.append(f"{experts} experts do not divide by {groups}")
    width = _number(config, "moe_intermediate_size") or _number(config, "intermediate_size")
    # vLLM's replicas share the experts, too.
    cuts = parts * split.replicas if experts else parts
    if width % cuts and not (experts and whole):
        found.append(f"the width of {'an expert' if experts else 'the MLP'}, {width}, does not divide by {cuts}")
    if (layers := _number(config, "num_hidden_layers")) and layers < split.stages:
        found.append(f"{layers} layers are fewer than {split.stages} stages")
    return found


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0
