"""The image's loader gives way where it cannot load the weights, and the start says why."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.serve.program import loading
from images.serve.program.findings import Start
from images.serve.program.image import Image
from images.serve.program.readings import Gpu, Readings
from tests.fixtures.serving import start_of

Images = Callable[..., Image]
SPARK = Readings(gpus=(Gpu("NVIDIA GB10", "12.1"),), memory_available=40_000_000_000)
GB = 1_000_000_000


@pytest.fixture
def started(program_image: Images, tmp_path: Path) -> Callable[..., Start]:
    """Return how an image with a loader starts with a model in a folder."""

    def start(loader: str, files: dict[str, int] | None = None, **given: str) -> Start:
        image = program_image("qwen3.5-27b-nvfp4")
        image.settings["LOAD_FORMAT"] = image.settings["LOAD_FORMAT"]._replace(default=loader)
        folder = tmp_path / "model"
        for name, size in (files or {}).items():
            folder.mkdir(exist_ok=True)
            with (folder / name).open("wb") as file:
                file.truncate(size)
        if files:
            given["MODEL_PATH"] = str(folder)
        return start_of(image, SPARK, str(tmp_path / "cache" / "hub"), **given)

    return start


def loader_and_remark(start: Start) -> tuple[str, str]:
    fitting = loading.fitting(start)
    words = fitting.command.arguments
    loader = words[words.index("--load-format") + 1] if "--load-format" in words else ""
    return loader, " ".join(fitting.command.remarks)


@pytest.mark.parametrize("loader", ["instanttensor", "fastsafetensors"])
@pytest.mark.parametrize(
    ("files", "given", "why"),
    [
        (["a.gguf"], {}, "no safetensors files, but a.gguf"),
        (["a.bin", "b.pt"], {}, "no safetensors files, but a.bin"),
        (["consolidated.safetensors", "model.safetensors"], {}, "Mistral's own format"),
        ([], {"MODEL": "other/model"}, "files of other/model are not known before the download"),
        (["model.safetensors"], {"EXTRA_ARGS": "-pp 2"}, "all stages of a pipeline"),
    ],
)
def test_what_no_fast_loader_can_load_is_left_to_the_server(
    started: Callable[..., Start], loader: str, files: list[str], given: dict[str, str], why: str
) -> None:
    found, remark = loader_and_remark(started(loader, dict.fromkeys(files, 9), **given))
    assert found == ""
    assert f"weights load without {loader}, more slowly: " in remark
    assert why in remark
    asked = started(loader, dict.fromkeys(files, 9), **given, LOAD_FORMAT="safetensors")
    assert loader_and_remark(asked)[0] == "safetensors"
    assert "more slowly" not in loader_and_remark(asked)[1]


@pytest.mark.parametrize("loader", ["instanttensor", "fastsafetensors"])
def test_safetensors_get_the_images_loader(
    started: Callable[..., Start], loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_reads_directly", lambda _file: True)
    for present in ({}, {"config.json": 9}, {"model.safetensors": GB, "training_args.bin": 9}):
        assert loader_and_remark(started(loader, present)) == (loader, "")


def refusing(error: int) -> Callable[..., Any]:
    """Return an `os.open` of a file system without direct I/O."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(error, os.strerror(error))
        return real(path, flags, *more, **options)

    return opened


@pytest.mark.parametrize("files", [{}, {"model.safetensors": 8192}])
def test_instanttensor_needs_direct_io(
    started: Callable[..., Start], files: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EINVAL))
    found, remark = loader_and_remark(started("instanttensor", files))
    assert found == ""
    assert remark.endswith("has no direct I/O")
    assert ("model.safetensors" if files else "cache/hub") in remark
    outside = started("instanttensor", files)._replace(package=None)
    assert loader_and_remark(outside) == ("instanttensor", "")
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))
    assert loader_and_remark(started("instanttensor", files)) == ("instanttensor", "")


def test_a_file_system_that_opens_and_does_not_read_directly_counts_as_without(
    started: Callable[..., Start], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "O_DIRECT", 0)
    assert loader_and_remark(started("instanttensor", {"a.safetensors": 8192})) == ("instanttensor", "")
    monkeypatch.setattr(os, "preadv", read)
    assert loader_and_remark(started("instanttensor", {"a.safetensors": 8192}))[0] == ""


def test_fastsafetensors_needs_memory_for_whole_files(started: Callable[..., Start]) -> None:
    found, remark = loader_and_remark(started("fastsafetensors", {"a.safetensors": 30 * GB}))
    assert found == ""
    assert "hold 60 GB of files in memory beside the weights, and 40 GB are available" in remark
    big = started("fastsafetensors", {"a.safetensors": 30 * GB})
    for readings in (Readings(), SPARK._replace(memory_available=None), SPARK._replace(gpus=())):
        assert loader_and_remark(big._replace(readings=readings)) == ("fastsafetensors", "")
