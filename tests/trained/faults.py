"""Reads the panel from the trained model in one process of vLLM, whole and with deliberate faults; prints JSON.

docker run --rm -v "$PWD":/repo:ro -v MODEL:/models/trained:ro --entrypoint python3 IMAGE /repo/tests/trained/faults.py
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
import torch
import yaml
from vllm import LLM, SamplingParams

MODEL = "/models/trained"
ROOT = Path(__file__).resolve().parents[2]
PANEL = yaml.safe_load((ROOT / "benchmarks" / "panel.yaml").read_text("utf-8"))


def attention(model: Any) -> list[Any]:
    return [layer.self_attn for layer in model.model.layers]


def of_all(objects: list[Any], name: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Change an attribute of all; return what changes it back."""
    before = [getattr(one, name) for one in objects]
    for one, value in zip(objects, before, strict=True):
        setattr(one, name, change(value))

    def back() -> None:
        for one, value in zip(objects, before, strict=True):
            setattr(one, name, value)

    return back


def weights(parameters: list[Any], change: Callable[[Any], Any]) -> Callable[[], None]:
    before = [one.data.clone() for one in parameters]
    for one in parameters:
        one.data.copy_(change(one.data))

    def back() -> None:
        for one, value in zip(parameters, before, strict=True):
            one.data.copy_(value)

    return back


def kernels(model: Any) -> list[Any]:
    return [one.attn.impl for one in attention(model)]


def rotations(model: Any) -> list[Any]:
    return [one.rotary_emb for one in attention(model)]


def norms(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "variance_epsilon")]


def rounded(model: Any) -> Callable[[], None]:
    """Have the MLPs read numbers of eight bits."""

    def narrow(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0].to(torch.float8_e4m3fn).to(arguments[0].dtype), *arguments[1:])

    hooks = [layer.mlp.register_forward_pre_hook(narrow) for layer in model.model.layers]

    def back() -> None:
        for hook in hooks:
            hook.remove()

    return back


def truncated(model: Any) -> Callable[[], None]:
    whole = model.compute_logits

    def cut(*arguments: Any, **more: Any) -> Any:
        logits = whole(*arguments, **more)
        logits[..., 128:] = -1e4
        return logits

    model.compute_logits = cut
    return lambda: setattr(model, "compute_logits", whole)


def stale(model: Any) -> Callable[[], None]:
    """Have the second part of a long prompt read a first block that is not its own."""
    layers, forward = [one.attn for one in attention(model)], model.forward

    def with_stale_block(input_ids: Any, positions: Any, *arguments: Any, **more: Any) -> Any:
        if int(positions[0]):
            for layer in layers:
                cache = layer.kv_cache[0] if isinstance(layer.kv_cache, list) else layer.kv_cache
                cache.mul_(0.5)
        return forward(input_ids, positions, *arguments, **more)

    model.forward = with_stale_block
    return lambda: setattr(model, "forward", forward)


FAULTS: dict[str, Callable[[Any], Callable[[], None]]] = {
    "a scale off by 1 %": lambda m: of_all(kernels(m), "scale", lambda x: x * 1.01),
    "swapped halves of RoPE": lambda m: of_all(
        [one.rotary_emb for one in attention(m)], "is_neox_style", lambda x: not x
    ),
    "a mask of 32 tokens": lambda m: of_all([one.attn.impl for one in attention(m)], "sliding_window", lambda _: 31),
    "a dropped bias": lambda m: weights([one.qkv_proj.bias for one in attention(m)], torch.zeros_like),
    "activations in fp8": rounded,
    "a truncated vocabulary": truncated,
    "a stale KV block": stale,
    "an epsilon of 1e-5": lambda m: of_all(norms(m), "variance_epsilon", lambda _: 1e-5),
}


@contextmanager
def fault(llm: Any, name: str) -> Iterator[None]:
    undo = llm.apply_model(FAULTS[name])[0] if name else lambda: None
    yield
    undo()


def read(llm: Any, texts: list[list[int]]) -> list[Any]:
    wanted = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=20)
    found = llm.generate([{"prompt_token_ids": tokens} for tokens in texts], wanted, use_tqdm=False)
    return [
        [{token: one.logprob for token, one in place.items()} for place in output.prompt_logprobs[1:]]
        for output in found
    ]


def main() -> None:
    llm = LLM(
        MODEL,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=1,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
    )
    tokenizer = llm.get_tokenizer()
    texts = [tokenizer.encode(one["text"], add_special_tokens=False)[:504] for one in PANEL["windows"]]
    results = {}
    for name in ("", *FAULTS, "nothing"):
        with fault(llm, name if name in FAULTS else ""):
            results[name] = read(llm, texts)
        sys.stderr.write(f"{name or 'whole'}\n")
    json.dump({"texts": texts, "results": results}, sys.stdout)


main()
