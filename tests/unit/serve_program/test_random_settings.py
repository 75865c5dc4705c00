"""Random settings and arguments: the program refuses or starts, soon, and never fails by itself."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.launch.preview import Preview
from images.serve.program import private_files
from images.serve.program.errors import EXIT_CODES
from tests.fixtures.serve_process import written_image
from tests.fixtures.serving import call_program

CASES, SLOWEST = 200, 10
# fmt: off
PIECES = (
    "0", "1", "-1", "off", "auto", "1e999", "nan", "9" * 5000, "tiny", "/", "/nowhere", "./x", "a/b", "::", "::1", "é",
    "ü.é", "--api-key", "--api-key=", "--config", "--grpc", "--host", "--port=", "--", "-", "--help", "--dry-run", "=",
    "--json", ",", "'", '"', "\\", "{}", '{"image": 1}', "[" * 2000, "key=", "hf_" + "x" * 30, "://u:p@h", "\r",
    "\u2028", "\x85", "\ufeff", "\udcff", "\t", "\x1b[2J", "x" * 20_000, "key" * 7000, "--x " * 3000, "check",
    "settings", "helth", "gpu,memory", "$(id)", "%s{0}",
)
# fmt: on


@pytest.mark.parametrize("target", ["tiny", "gpt-oss-120b@sglang-0.5.21"])
def test_random_settings_are_refused_or_started(
    served_image: Callable[..., Preview], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    preview = served_image(target, model=str(tmp_path / "model"))
    own = written_image(preview, tmp_path)
    names = [entry["name"] for entry in preview.description["settings"]]
    names += ["MAX_NUM_SEQ", "HF_TOKEN", "PYTHONPATH"]
    source = random.Random(30)
    outcomes = set()
    for _ in range(CASES):
        chosen = source.sample(names, k=source.randint(0, 5))
        given = {name: "".join(source.choices(PIECES, k=source.randint(1, 3))) for name in chosen}
        arguments = source.choices(PIECES, k=source.choice((0, 0, 1, 2, 5)))
        started = time.monotonic()
        ran = call_program(arguments, own | {name: text.replace("\0", "") for name, text in given.items()})
        assert time.monotonic() - started < SLOWEST, (arguments, given)
        outcomes.add(ran.returncode)
        assert ran.returncode in {0, 1, *EXIT_CODES.values()}, (arguments, given)
        assert "error[internal]" not in ran.stderr, (arguments, given, ran.stderr)
        assert "Traceback" not in ran.stderr
    assert outcomes >= {0, 64, 65}
