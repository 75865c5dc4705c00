"""Starts the TurboQuant plugin in every vLLM worker, when ENABLE_TURBOQUANT asks for it.

vLLM calls `register` in each of its processes (entry-point group vllm.general_plugins). A plugin that cannot start
stops the server: a feature that is silently off is worse than one that fails.
"""

import os

MODES = ("off", "capture_only", "hybrid", "full_tq")


def settings(environ=os.environ):
    """Read the TQ_* variables; the defaults are those of the documentation."""
    mode = environ.get("TQ_MODE", "hybrid")
    if mode not in MODES:
        raise ValueError(f"TQ_MODE is {mode!r}; it must be one of {', '.join(MODES)}")
    return {
        "mode": mode,
        "key_bits": _number(environ, "TQ_KEY_BITS", 4, 2, 4),
        "value_bits": _number(environ, "TQ_VALUE_BITS", 3, 2, 4),
        "ring_capacity": _number(environ, "TQ_RING_CAPACITY", 128, 1, 65536),
        "initial_layers_count": _number(environ, "TQ_INITIAL_LAYERS", 4, 0, 1000),
    }


def register():
    """Wrap the worker's load_model, so that the hooks are in place as soon as there are layers to hook into."""
    if os.environ.get("ENABLE_TURBOQUANT", "0").lower() not in ("1", "true", "yes"):
        return
    chosen = settings()
    from vllm.v1.worker.gpu_worker import Worker

    if getattr(Worker, "_imagefactory_turboquant", False):
        return
    original = Worker.load_model

    def load_model(self, *args, **kwargs):
        from turboquant.integration.vllm import install_hooks

        result = original(self, *args, **kwargs)
        hooked = install_hooks(self.model_runner, **chosen)
        if not hooked:
            raise RuntimeError("TurboQuant found no attention layer to compress; unset ENABLE_TURBOQUANT")
        return result

    Worker.load_model = load_model
    Worker._imagefactory_turboquant = True


def _number(environ, name, default, low, high):
    text = environ.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name} is {text!r}; it must be a number from {low} to {high}")
    return int(text)
