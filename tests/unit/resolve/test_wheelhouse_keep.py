"""The wheelhouse: what a compiled wheel is named by, what is refused, and that nothing half-written stays."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors.wheelhouse import DamagedWheelError, WrongWheelError
from imagefactory.resolve.wheelhouse.keep import CompileInputs, all_kept, find, keep, refuse_damaged
from imagefactory.store.cache import Store
from tests.fixtures.wheels import WheelFactory, make_wheel, sha256_of_file

INPUTS = CompileInputs(
    name="vllm",
    version="0.19.1",
    sources={"vllm": "a" * 40, "cutlass": "b" * 40},
    mods=("c" * 64,),
    toolchain=f"sha256:{'d' * 64}",
    arch_list="12.1a",
    platform="linux/arm64",
    flags=("-Wl,--build-id=none",),
)
TAG = "cp38-abi3-linux_aarch64"
AARCH64, X86_64 = 183, 62


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def wheel(wheel_factory: WheelFactory) -> Path:
    return wheel_factory("vllm", "0.19.1", tag=TAG, files={"vllm/_C.abi3.so": elf(AARCH64)})


@given(st.permutations(sorted({"vllm": "a" * 40, "cutlass": "b" * 40, "x": "e"}.items())))
def test_the_order_of_sources_does_not_change_the_key(sources: list[tuple[str, str]]) -> None:
    ordered = replace(INPUTS, sources={"cutlass": "b" * 40, "vllm": "a" * 40, "x": "e"})
    assert replace(INPUTS, sources=dict(sources)).key == ordered.key


@pytest.mark.parametrize(
    "change",
    [
        {"name": "flashinfer-jit-cache"},
        {"version": "0.20.2"},
        {"sources": {"vllm": "f" * 40, "cutlass": "b" * 40}},
        {"mods": ()},
        {"toolchain": "sha256:other"},
        {"arch_list": "12.0a"},
        {"platform": "linux/amd64"},
        {"flags": ()},
    ],
)
def test_every_input_changes_the_key(change: dict[str, object]) -> None:
    assert replace(INPUTS, **change).key != INPUTS.key  # type: ignore[arg-type]


def test_the_spelling_of_a_name_does_not_change_the_key() -> None:
    one, other = (replace(INPUTS, name=name) for name in ("flashinfer_jit_cache", "FlashInfer-JIT-cache"))
    assert one.key == other.key


def test_a_kept_wheel_is_found_by_its_inputs_with_all_that_is_known_of_it(store: Store, wheel: Path) -> None:
    assert find(store, INPUTS.key) is None
    kept = keep(store, INPUTS, wheel)
    assert find(store, INPUTS.key) == kept
    assert list(all_kept(store)) == [kept]
    assert (kept.key, kept.filename, kept.inputs) == (INPUTS.key, wheel.name, INPUTS)
    assert (kept.sha256, kept.size) == (sha256_of_file(wheel), wheel.stat().st_size)
    assert kept.path.read_bytes() == wheel.read_bytes()
    refuse_damaged(kept)


def test_the_first_result_of_the_same_inputs_stays(store: Store, wheel: Path, tmp_path: Path) -> None:
    first = keep(store, INPUTS, wheel)
    other = make_wheel(tmp_path / "other", "vllm", "0.19.1", tag=TAG, files={"vllm/new.py": "x"})
    assert keep(store, INPUTS, other) == first
    assert first.path.read_bytes() == wheel.read_bytes()


def test_wheels_are_listed_by_name_and_version(store: Store, wheel_factory: WheelFactory) -> None:
    for name, version in (("vllm", "0.20.2"), ("flashinfer-jit-cache", "0.6.0"), ("vllm", "0.19.1")):
        keep(store, replace(INPUTS, name=name, version=version), wheel_factory(name, version, tag=TAG))
    assert [f"{kept.inputs.name} {kept.inputs.version}" for kept in all_kept(store)] == [
        "flashinfer-jit-cache 0.6.0",
        "vllm 0.19.1",
        "vllm 0.20.2",
    ]


def test_a_local_label_says_how_it_was_built_and_not_which_version(
    store: Store, wheel_factory: WheelFactory
) -> None:
    wheel = wheel_factory("vllm", "0.19.1+cu130", tag=TAG)
    assert keep(store, INPUTS, wheel).filename == wheel.name
    with pytest.raises(WrongWheelError):
        keep(store, replace(INPUTS, version="0.19.1+cu129"), wheel)


@pytest.mark.parametrize(
    ("what", "machine", "reason"),
    [
        (("torch", "0.19.1", TAG), AARCH64, "calls itself torch"),
        (("vllm", "0.20.0", TAG), AARCH64, "calls itself vllm 0.20.0"),
        (("vllm", "0.19.1", "cp38-abi3-linux_x86_64"), X86_64, "for aarch64"),
        (("vllm", "0.19.1", TAG), X86_64, "vllm/_C.abi3.so"),
        (("vllm", "0.19.1", "py3-none-any"), X86_64, "other machines"),
    ],
)
def test_a_wheel_that_is_not_the_one_is_refused_and_not_kept(
    store: Store, wheel_factory: WheelFactory, what: tuple[str, str, str], machine: int, reason: str
) -> None:
    name, version, tag = what
    wheel = wheel_factory(name, version, tag=tag, files={"vllm/_C.abi3.so": elf(machine)})
    with pytest.raises(WrongWheelError) as caught:
        keep(store, INPUTS, wheel)
    assert reason in caught.value.why
    assert list(all_kept(store)) == []


def test_a_wheel_that_only_has_the_right_name_is_refused(store: Store, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("vllm", "0.20.2", tag=TAG)
    renamed = wheel.rename(wheel.with_name(wheel.name.replace("0.20.2", "0.19.1")))
    with pytest.raises(WrongWheelError, match=r"is not vllm 0\.19\.1"):
        keep(store, INPUTS, renamed)


@pytest.mark.parametrize("spoil", ["truncated", "flipped", "empty"])
def test_a_wheel_that_is_not_whole_is_refused(store: Store, wheel: Path, spoil: str) -> None:
    content = bytearray(wheel.read_bytes())
    if spoil == "flipped":
        # The first member's data begin behind its header of 30 bytes and its name.
        content[30 + len("vllm/_C.abi3.so") + 2] ^= 0xFF
    spoiled: dict[str, bytes | bytearray] = {"truncated": content[:-40], "flipped": content, "empty": b""}
    wheel.write_bytes(spoiled[spoil])
    with pytest.raises(WrongWheelError, match="whole"):
        keep(store, INPUTS, wheel)
    assert list(all_kept(store)) == []


def test_something_that_is_no_wheel_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "vllm.zip"
    file.write_bytes(b"")
    with pytest.raises(WrongWheelError, match="not the name of a wheel"):
        keep(store, INPUTS, file)


def test_an_interruption_leaves_nothing_that_counts(
    store: Store, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keep(store, INPUTS, wheel)
    assert find(store, INPUTS.key) is None
    assert keep(store, INPUTS, wheel).path.exists()


def test_a_wheel_that_changed_afterwards_is_damaged(store: Store, wheel: Path) -> None:
    kept = keep(store, INPUTS, wheel)
    kept.path.write_bytes(bytes(kept.size))
    with pytest.raises(DamagedWheelError, match="damaged"):
        refuse_damaged(kept)
    kept.path.unlink()
    with pytest.raises(DamagedWheelError, match="damaged"):
        find(store, INPUTS.key)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inputs": {}}'])
def test_a_record_that_cannot_be_read_is_named(store: Store, wheel: Path, text: str) -> None:
    record = keep(store, INPUTS, wheel).path.with_name("inputs.json")
    record.write_text(text)
    with pytest.raises(DamagedWheelError) as caught:
        find(store, INPUTS.key)
    assert caught.value.where == str(record)


def test_a_record_moved_to_another_key_is_damaged(store: Store, wheel: Path) -> None:
    record = keep(store, INPUTS, wheel).path.with_name("inputs.json")
    data = json.loads(record.read_text())
    data["inputs"]["arch_list"] = "12.0a"
    record.write_text(json.dumps(data))
    with pytest.raises(DamagedWheelError) as caught:
        find(store, INPUTS.key)
    assert "another key" in caught.value.why
