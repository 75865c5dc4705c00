"""The commands of benchmarks, as far as they need no Docker."""

import re
import shutil
from pathlib import Path

import pytest

from tests.fixtures.benchmarks import BOUND, MACHINE, result
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import Inv
from tests.unit.check.answers.test_comparison import PLACES, measured


@pytest.fixture
def results(own_inv: Inv) -> Inv:
    """A checkout with the profiles, and three results."""
    shutil.copytree(REPOSITORY / "data", own_inv.root / "data")
    result().write(own_inv.root / "a.json")
    result([32, 33, 31]).write(own_inv.root / "b.json")
    result(bound=BOUND.model_copy(update={"settings": {"A": "1"}})).write(own_inv.root / "c.json")
    return own_inv


def test_results_are_compared_with_intervals_unless_they_differ_in_more_than_asked(results: Inv) -> None:
    found = results("bench.compare", "a.json", "b.json").stdout.splitlines()
    assert re.search(r"tokens/s +all .* 0\.\d+ to 0\.5\d+ +worse$", found[2].rstrip()), found
    shutil.copy(results.root / "a.json", results.root / "copy.json")
    for other in ("a.json", "copy.json"):
        assert "the same result" in results.fails("not-comparable", "bench.compare", "a.json", other)
    assert "--by 'setting A'" in results.fails("not-comparable", "bench.compare", "a.json", "c.json")
    done = results("bench.compare", "a.json", "c.json", "--by", "setting A")
    assert (done.returncode, "A is a.json, B is c.json A=1" in done.stdout) == (0, True)


def test_a_comparison_that_tells_nothing_says_so_and_why(results: Inv) -> None:
    busy = MACHINE.model_copy(update={"load": 9.5})
    result([10, 60, 200], machine=busy).write(results.root / "b.json")
    done = results("bench.compare", "a.json", "b.json")
    assert done.returncode == 0
    assert re.search(r"tokens/s +all .* too noisy to tell *$", done.stdout, re.MULTILINE)
    assert "too noisy: load was up to 9.5 on 2 CPUs before the starts; " in done.stderr
    assert "too noisy" not in results("bench.compare", "a.json", "c.json", "--by", "setting A").stderr


def test_the_exit_code_tells_changed_answers_from_those_that_nobody_can_judge(own_inv: Inv) -> None:
    shutil.copytree(REPOSITORY / "data", own_inv.root / "data")
    measured().write(own_inv.root / "a.json")
    apart = [{token: value - 1 for token, value in place.items()} for place in PLACES]
    measured(apart).write(own_inv.root / "b.json")
    assert own_inv("answers.compare", "a.json", "a.json", "--again=a.json").returncode == 0
    assert own_inv("answers.compare", "a.json", "b.json", "--again=a.json").returncode == 1
    assert own_inv("answers.compare", "a.json", "a.json").returncode == 15


def test_the_example_of_a_trained_model_goes_where_containers_look_for_models(
    own_inv: Inv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPOSITORY / "data", own_inv.root / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    said = own_inv("answers.example").stdout
    assert said.startswith("--set MODEL_PATH=/root/.cache/huggingface/trained-tiny --set LOAD_FORMAT=auto")
    written = {path.name for path in (tmp_path / ".cache" / "huggingface" / "trained-tiny").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= written


def test_results_are_plotted_and_one_of_an_unknown_image_is_refused(results: Inv) -> None:
    done = results("bench.plot", "a.json", "--output", "pictures")
    assert done.returncode == 0, done.stderr
    pictures = sorted(Path(line).name for line in done.stdout.split())
    assert pictures == [f"{name}-{theme}.svg" for name in ("latency", "throughput") for theme in ("dark", "light")]
    assert results("bench.check").returncode == 0
    result().write(results.root / "data" / "results" / "a.json")
    assert "no image of this repository" in results.fails("bad-bench-result", "bench.check")


def test_wrong_options_are_explained_before_anything_starts(results: Inv) -> None:
    results.fails("unknown-name", "bench", "--profile", "quik")
    results.fails("bad-option", "bench", "--users", "1,many")
    results.fails("bad-option", "bench", "--url", "http://127.0.0.1:9", "--set", "A=1")
    results.fails("no-file", "bench.plot", "none.json")
    server = "http://127.0.0.1:9"
    done = results.fails("bad-option", "bench.compare", server, "a.json", "--set-first", "MAX_NUM_SEQS=1")
    assert f"MAX_NUM_SEQS=1 cannot be set: the server at {server} runs already." in done
