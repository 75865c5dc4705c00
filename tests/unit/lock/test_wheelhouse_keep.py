"""Tests keeping compiled wheels: their keys, the wheels that are refused, and interrupted copies."""

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.lock.wheelhouse.keep import CompileInputs, all_kept, find, keep, refuse_damaged
from imagefactory.store.cache import Store
from tests.fixtures.failures import raises
from tests.fixtures.wheelhouse import INPUTS, TAG
from tests.fixtures.wheels import WheelFactory, make_wheel, sha256_of_file

AARCH64, X86_64 = 183, 62


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


@pytest.fixture
def wheel(wheel_factory: WheelFactory) -> Path:
    return wheel_factory("vllm", "1.0", tag=TAG, files={"vllm/_C.abi3.so": elf(AARCH64)})


def test_every_input_changes_the_key_but_neither_the_order_of_sources_nor_the_spelling_of_the_name() -> None:
    changed = [
        INPUTS,
        replace(INPUTS, name="flashinfer-jit-cache"),
        replace(INPUTS, version="2.0"),
        replace(INPUTS, sources={"vllm": "f" * 40, "cutlass": "b" * 40}),
        replace(INPUTS, mods=("d" * 64,)),
        replace(INPUTS, toolchain="sha256:other"),
        replace(INPUTS, arch_list="12.0a"),
        replace(INPUTS, platform="linux/amd64"),
        replace(INPUTS, flags=("-O1",)),
        replace(INPUTS, kind="graft"),
        replace(INPUTS, system={**INPUTS.system, "cuda": "13.1"}),
    ]
    assert len({inputs.key for inputs in changed}) == len(changed)
    assert [CompileInputs.from_json(inputs.as_json()) for inputs in changed] == changed
    assert replace(INPUTS, sources=dict(sorted(INPUTS.sources.items()))).key == INPUTS.key
    assert replace(INPUTS, name="FlashInfer_JIT_cache").key == changed[1].key
    with pytest.raises(ValueError, match="kind"):
        CompileInputs.from_json({**INPUTS.as_json(), "kind": "half"})


def test_kept_wheel_is_found_by_its_key(store: Store, wheel: Path, tmp_path: Path) -> None:
    assert find(store, INPUTS.key) is None
    kept = keep(store, INPUTS, wheel)
    assert find(store, INPUTS.key) == kept
    assert list(all_kept(store)) == [kept]
    assert (kept.filename, kept.inputs) == (wheel.name, INPUTS)
    assert (kept.sha256, kept.size) == (sha256_of_file(wheel), wheel.stat().st_size)
    assert kept.path.read_bytes() == wheel.read_bytes()
    other = make_wheel(tmp_path / "other", "vllm", "1.0", tag=TAG, files={"vllm/new.py": "x"})
    assert keep(store, INPUTS, other) == kept, "the first wheel of the same inputs stays"


def test_local_version_label_is_ignored_unless_requested_and_a_renamed_wheel_refused(
    store: Store, wheel_factory: WheelFactory
) -> None:
    wheel = wheel_factory("vllm", "1.0+cu130", tag=TAG)
    assert keep(store, INPUTS, wheel).filename == wheel.name
    with raises("wrong-wheel"):
        keep(store, replace(INPUTS, version="1.0+cu129"), wheel)
    wheel = wheel_factory("vllm", "2.0", tag=TAG)
    with raises("wrong-wheel", match=r"is not vllm 1\.0"):
        keep(store, INPUTS, wheel.rename(wheel.with_name(wheel.name.replace("2.0", "1.0"))))
    with raises("wrong-wheel", match="not the name of a wheel"):
        keep(store, INPUTS, wheel.with_name("vllm.zip"))


@pytest.mark.parametrize(
    ("what", "machine", "reason"),
    [
        (("torch", "1.0", TAG), AARCH64, "calls itself torch"),
        (("vllm", "2.0", TAG), AARCH64, "calls itself vllm 2.0"),
        (("vllm", "1.0", "cp38-abi3-linux_x86_64"), X86_64, "for aarch64"),
        (("vllm", "1.0", TAG), X86_64, "vllm/_C.abi3.so"),
        (("vllm", "1.0", "py3-none-any"), X86_64, "other machines"),
    ],
)
def test_wrong_wheel_is_refused_and_not_kept(
    store: Store, wheel_factory: WheelFactory, what: tuple[str, str, str], machine: int, reason: str
) -> None:
    name, version, tag = what
    wheel = wheel_factory(name, version, tag=tag, files={"vllm/_C.abi3.so": elf(machine)})
    with raises("wrong-wheel") as caught:
        keep(store, INPUTS, wheel)
    assert reason in caught.value.why
    assert list(all_kept(store)) == []


@pytest.mark.parametrize("spoil", ["truncated", "flipped"])
def test_incomplete_wheel_is_refused(store: Store, wheel: Path, spoil: str) -> None:
    content = bytearray(wheel.read_bytes())
    if spoil == "flipped":
        # The first member's data follow its 30-byte header and its name.
        content[30 + len("vllm/_C.abi3.so") + 2] ^= 0xFF
    wheel.write_bytes(content if spoil == "flipped" else content[:-40])
    with raises("wrong-wheel", match="whole"):
        keep(store, INPUTS, wheel)
    assert list(all_kept(store)) == []


def test_interrupted_copy_does_not_count(store: Store, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keep(store, INPUTS, wheel)
    assert find(store, INPUTS.key) is None
    assert keep(store, INPUTS, wheel).path.exists()


def test_changed_or_missing_wheel_is_reported_as_damaged(store: Store, wheel: Path) -> None:
    kept = keep(store, INPUTS, wheel)
    kept.path.write_bytes(bytes(kept.size))
    with raises("damaged-wheel", match="damaged"):
        refuse_damaged(kept)
    kept.path.unlink()
    with raises("damaged-wheel", match="damaged"):
        find(store, INPUTS.key)


@pytest.mark.parametrize("text", ["{", '{"inputs": {}}', None])
def test_damaged_record_is_refused(store: Store, wheel: Path, text: str | None) -> None:
    record = keep(store, INPUTS, wheel).path.with_name("inputs.json")
    other_key = record.read_text().replace("12.1a", "12.0a")
    record.write_text(other_key if text is None else text)
    with raises("damaged-wheel") as caught:
        find(store, INPUTS.key)
    assert caught.value.where == str(record)
    assert ("another key" if text is None else "cannot be read") in caught.value.why
