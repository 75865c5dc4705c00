"""The same inputs give the same bytes: no digest depends on the machine, the user or the time."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.assemble import parallel
from imagefactory.assemble.layers.layer_blob import LayerWork, build_layer
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.golden import GOLDEN, build_golden, golden_layers
from tests.fixtures.platforms import PLATFORMS


@pytest.fixture(autouse=True)
def _restore_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "SMALL_WORK", parallel.SMALL_WORK)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_digests_are_the_golden_ones(tmp_path: Path, platform: str) -> None:
    assert build_golden(tmp_path, platform, workers=0) == GOLDEN[platform]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(platform=st.sampled_from(PLATFORMS), seed=st.integers(0, 2**32))
def test_order_of_inputs_does_not_matter(tmp_path: Path, platform: str, seed: int) -> None:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    for layer in golden_layers(tmp_path, platform):
        inputs = list(layer.inputs)
        random.Random(seed).shuffle(inputs)
        shuffled = layer.model_copy(update={"inputs": tuple(inputs)})
        files = {item.sha256: Store(tmp_path / "store").download(item.sha256) for item in inputs}
        blob = build_layer(LayerWork(shuffled, files), Store(tmp_path / "out"), lambda _: None)
        assert blob.digest == GOLDEN[platform][f"{layer.kind} blob"]


# Each example is a process: one in a quick run, eight in a slow one.
@settings(max_examples=max(1, settings().max_examples // 36))
@given(
    umask=st.sampled_from([0o000, 0o022, 0o077, 0o777 & ~0o700]),
    zone=st.sampled_from(["UTC", "Pacific/Kiritimati", "America/St_Johns"]),
    locale=st.sampled_from(["C", "C.UTF-8", "POSIX", "tr_TR.UTF-8"]),
    seed=st.sampled_from(["0", "1", "4294967295", "random"]),
    workers=st.integers(0, 3),
    folder=st.sampled_from(["/", "/tmp", "with space", "ünï"]),  # noqa: S108 - a folder to stand in
    epoch=st.sampled_from([None, "0", "1700000000"]),
)
def test_surroundings_do_not_matter(tmp_path: Path, **around: object) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    here = tmp_path / str(around["folder"])
    here.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(here),
        "PYTHONPATH": str(REPOSITORY),
        "TZ": str(around["zone"]),
        "LC_ALL": str(around["locale"]),
        "PYTHONHASHSEED": str(around["seed"]),
        **({"SOURCE_DATE_EPOCH": str(around["epoch"])} if around["epoch"] else {}),
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.fixtures.golden", str(out), str(around["workers"])],
        cwd=here,
        env=environment,
        umask=int(str(around["umask"])),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == GOLDEN
