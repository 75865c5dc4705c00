"""The TurboQuant plugin is off by default, validates its variables, and hooks vLLM once per process."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.fixtures.checkouts import REPOSITORY

FILES = REPOSITORY / "mods" / "turboquant-cuda-graph" / "files"


@pytest.fixture
def plugin() -> Any:
    file = FILES / "imagefactory_turboquant.py"
    spec = importlib.util.spec_from_file_location("imagefactory_turboquant", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeVllm:
    """A vllm and a turboquant that record what the worker loads and what is hooked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[object] = []
        self.hooked = 3
        said = self.said

        class Worker:
            model_runner = "runner"

            def load_model(self, *args: object, **kwargs: object) -> str:
                said.append(("load", args, kwargs))
                return "loaded"

        def install_hooks(runner: object, **settings: object) -> int:
            said.append(("hooks", runner, settings))
            return self.hooked

        self.worker: Any = Worker
        contents: dict[str, dict[str, Any]] = {
            "vllm.v1.worker.gpu_worker": {"Worker": Worker},
            "turboquant.integration.vllm": {"install_hooks": install_hooks},
        }
        for path in contents:
            parts = path.split(".")
            for number in range(1, len(parts) + 1):
                name = ".".join(parts[:number])
                module = ModuleType(name)
                vars(module).update(contents.get(name, {}))
                monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
    """Fake vLLM, and ask for TurboQuant with its defaults."""
    for name in ("TQ_MODE", "TQ_KEY_BITS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENABLE_TURBOQUANT", "1")
    return FakeVllm(monkeypatch)


DEFAULTS = {"mode": "hybrid", "key_bits": 4, "value_bits": 3, "ring_capacity": 128, "initial_layers_count": 4}


def test_settings_come_from_variables_or_the_documented_defaults(plugin: Any) -> None:
    assert plugin.settings({}) == DEFAULTS
    names = ("TQ_MODE", "TQ_KEY_BITS", "TQ_VALUE_BITS", "TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS")
    given = dict(zip(names, ("capture_only", "3", "2", "64", "0"), strict=True))
    assert plugin.settings(given) == dict(zip(DEFAULTS, ("capture_only", 3, 2, 64, 0), strict=True))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TQ_MODE", "fast", "TQ_MODE is 'fast'; it must be one of off, capture_only, hybrid, full_tq"),
        ("TQ_KEY_BITS", "5", "TQ_KEY_BITS is '5'; it must be a number from 2 to 4"),
        ("TQ_KEY_BITS", "\u00b2", "it must be a number from 2 to 4"),
    ],
)
def test_invalid_value_is_refused(plugin: Any, name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        plugin.settings({name: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("value", [None, "0", "off"])
def test_plugin_is_off_by_default(
    plugin: Any, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("ENABLE_TURBOQUANT")
    if value is not None:
        monkeypatch.setenv("ENABLE_TURBOQUANT", value)
    original = vllm.worker.load_model
    plugin.register()
    assert vllm.worker.load_model is original


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_hooks_are_installed_when_the_model_is_loaded(
    plugin: Any, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ENABLE_TURBOQUANT", value)
    monkeypatch.setenv("TQ_KEY_BITS", "3")
    plugin.register()
    plugin.register()  # plugins may load twice
    assert vllm.worker().load_model("a", b=1) == "loaded"
    assert vllm.said == [("load", ("a",), {"b": 1}), ("hooks", "runner", {**DEFAULTS, "key_bits": 3})]


def test_model_without_layers_to_compress_stops_the_start(plugin: Any, vllm: FakeVllm) -> None:
    vllm.hooked = 0
    plugin.register()
    with pytest.raises(RuntimeError, match="no attention layer to compress"):
        vllm.worker().load_model()
