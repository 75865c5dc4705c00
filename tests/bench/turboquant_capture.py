"""Captures TurboQuant in a CUDA graph, before and after the mod turboquant-cuda-graph.

Needs a GPU and PyTorch, nothing else:

    python tests/bench/turboquant_capture.py --plugin BEFORE AFTER --vllm BEFORE.py AFTER.py

BEFORE and AFTER are two folders that hold the package `turboquant` (a checkout of the pinned commit, and a copy with
the files of `./inv mods.diff turboquant-cuda-graph --vllm 0.19.1` over it); the two files are vLLM's
turboquant_attn.py, untouched and exported. Exit code 0: every capture went as the mod says.
"""

import argparse
import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def capture(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor | None, str]:
    """Run something under capture and replay it; return its result, or why it could not be captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = work()
    except Exception as error:  # noqa: BLE001 - whatever stops the capture is the finding
        torch.cuda.synchronize()
        return None, str(error).splitlines()[0]
    graph.replay()
    torch.cuda.synchronize()
    return result, "captured"


def plugin_capture(folder: Path) -> tuple[bool, str]:
    """Capture the sign tables of the plugin's quantizer: packing and unpacking, first call included."""
    for name in [name for name in sys.modules if name.split(".")[0] == "turboquant"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        from turboquant.quantizer import TurboQuantProd  # noqa: PLC0415 - a different package each time
    finally:
        sys.path.remove(str(folder))
    quantizer = TurboQuantProd(dim=128, bits=3, device=torch.device("cuda"))
    projected = torch.randn(64, 128, device="cuda")
    captured, why = capture(lambda: quantizer._unpack_qjl_signs(quantizer._pack_qjl_signs(projected)))
    if captured is None:
        return False, why
    eager = torch.where(projected > 0, 1.0, -1.0)
    return torch.equal(captured, eager), "captured; replay equals the eager result"


def prefill_capture(source: str) -> tuple[bool, str]:
    """Capture the head of vLLM's prefill path for a verify batch: the part that turns lengths into Python numbers.

    The statements are taken from the real function, up to its loop; what they need of vLLM is given by hand.
    """
    [function] = [
        node
        for node in _class_body(source, "TurboQuantAttentionImpl")
        if isinstance(node, ast.FunctionDef) and node.name == "_prefill_attention"
    ]
    last = next(index for index, node in enumerate(function.body) if isinstance(node, ast.For))
    body = [node for node in function.body[:last] if not _is_fast_path(node)]
    module = ast.Module(body=[*body, *ast.parse("result = output").body], type_ignores=[])
    code = compile(ast.fix_missing_locations(module), "turboquant_attn.py", "exec")
    query = torch.randn(8, 4, 128, device="cuda", dtype=torch.float16)
    metadata = SimpleNamespace(
        query_start_loc=torch.tensor([0, 4, 8], device="cuda", dtype=torch.int32),
        seq_lens=torch.tensor([20, 30], device="cuda", dtype=torch.int32),
        query_start_loc_cpu=None,
        seq_lens_cpu=None,
        max_query_len=4,
        max_seq_len=30,
    )

    def work() -> torch.Tensor:
        scope: dict[str, Any] = {
            "torch": torch,
            "self": SimpleNamespace(),
            "query": query,
            "key": query,
            "value": query,
            "attn_metadata": metadata,
        }
        exec(code, scope)  # noqa: S102 - vLLM's own statements, from a file the user named
        result: torch.Tensor = scope["result"]
        return result

    captured, why = capture(work)
    return captured is not None, why


def graph_support(source: str) -> str:
    """Read which batches the backend offers to have captured whole."""
    for node in _class_body(source, "TurboQuantMetadataBuilder"):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_cudagraph_support" and node.value:
            return ast.unparse(node.value).rpartition(".")[2]
    return "none"


def _class_body(source: str, name: str) -> list[ast.stmt]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node.body
    raise SystemExit(f"{name} is not in that file")


def _is_fast_path(node: ast.stmt) -> bool:
    """True for the shortcut of first chunks, which a verify batch never takes."""
    return isinstance(node, ast.If) and "_HAS_FLASH_ATTN" in ast.unparse(node.test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--vllm", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), action="append", default=[])
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    expected = True
    if options.plugin:
        for label, folder, should_pass in zip(("before", "after"), options.plugin, (False, True), strict=True):
            passed, why = plugin_capture(folder)
            print(f"plugin sign tables, {label}: {'passes' if passed else 'FAILS'}: {why}")
            expected &= passed is should_pass
    for before, after in options.vllm:
        passed, why = prefill_capture(before.read_text("utf-8"))
        offered = graph_support(before.read_text("utf-8"))
        print(f"{before}: offers {offered}; capturing a verify batch {'passes' if passed else 'FAILS'}: {why}")
        expected &= offered == "UNIFORM_BATCH"
        offered = graph_support(after.read_text("utf-8"))
        print(f"{after}: offers {offered}; verify batches are not captured whole")
        expected &= offered == "UNIFORM_SINGLE_TOKEN_DECODE"
    print("as the mod says" if expected else "NOT as the mod says")
    return 0 if expected else 1


if __name__ == "__main__":
    raise SystemExit(main())
