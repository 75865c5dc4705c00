"""Has SGLang's CUDA build serve on a CPU of arm64, where it expects operators that only its CPU build has.

Python runs this file in every process. It waits for one module of SGLang, and tells it that this is no such CPU; what
follows then is what the module does on any other CPU.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MODULE, FLAG = "sglang.srt.distributed.bootstrap", "_is_cpu_arm64"


class _Shim(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != MODULE:
            return None
        sys.meta_path.remove(self)  # the next line would end up here again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _change(spec.loader)
        return spec


def _change(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if not hasattr(module, FLAG):
            raise ImportError(f"{MODULE} has no {FLAG}: the shim of the smoke test is out of date")
        setattr(module, FLAG, False)

    loader.exec_module = exec_module  # type: ignore[method-assign]


sys.meta_path.insert(0, _Shim())
