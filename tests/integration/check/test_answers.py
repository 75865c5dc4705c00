"""Answers of a small trained model: other versions, servers, mods and drafters leave them, each fault is found."""

import json
from pathlib import Path

import pytest
from packaging.version import Version

from imagefactory.check.answers.comparison import change, figures, judge
from imagefactory.check.answers.measuring import ALONE, measure_endpoint
from imagefactory.check.answers.result import AnswersResult, Continuation, window_of
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import this_machine
from imagefactory.check.bench.running import bound_to, containers_of
from imagefactory.check.smoke.containers import docker
from imagefactory.check.smoke.levels.test_serve import on_cpu
from imagefactory.check.smoke.subject import subject_of_target
from imagefactory.project.project import Project
from imagefactory.project.servers.sglang import SERVER
from images.shipped.mods.load import load_mods
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.platforms import MACHINE
from tests.fixtures.tiny_image import copied_checkout, invoke, lock_or_skip
from tests.fixtures.trained import SETTINGS, measured, mounted

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
Place = dict[str, float]
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'"""
FAULT = """--hf-overrides '{"rms_norm_eps": 0.1}'"""  # as docs/answers.md shows it
LAYER = "vllm/model_executor/models/qwen3.py"
GPU = {"amd64": "rtx5090", "arm64": "gb10"}[MACHINE]
# FlashInfer, which another mod changes, is not in images for CPUs.
MODS = {name: mod for name, mod in load_mods(REPOSITORY / "mods").items() if mod.manifest.distribution == "vllm"}
SGLANG = f"qwen3.5-27b-nvfp4@sglang-0.5.23/{GPU}"


def verdict(first: AnswersResult, second: AnswersResult) -> tuple[str, str]:
    """Judge by the noise of the first side, whose starts give the same bits."""
    found = figures(first, second)
    return change(first, second), ": ".join(judge(change(first, second), found, figures(first, first)))


def test_a_drafter_and_a_mod_that_adds_a_comment_change_nothing(
    served: AnswersResult, trained: Path, tiny_checkout: Path, tmp_path: Path
) -> None:
    comment = edit(LAYER, "class Qwen3ForCausalLM(", before="# This changes nothing.\n")
    write_mod(tmp_path, manifest("comment", comment, checks=[has(LAYER, "# This changes")], versions=">=0.32"))
    options = ("--volume", f"{tmp_path}:/mods:ro")
    both = measured(tiny_checkout, trained, more=options, MODS="comment", EXTRA_ARGS=NGRAM)
    assert verdict(served, both)[0] == "drafter"
    found = figures(served, both)
    assert (found.divergence, found.partings, found.continuations) == (0, 0, 8)


def test_the_fault_that_the_page_shows_is_refused(served: AnswersResult, trained: Path, tiny_checkout: Path) -> None:
    what, judged = verdict(served, measured(tiny_checkout, trained, EXTRA_ARGS=FAULT))
    assert what == "kernels"
    assert judged.startswith("changed: KL "), judged


@pytest.mark.parametrize("name", [name for name, mod in MODS.items() if mod.variant(Version("0.32.0"))])
def test_a_mod_of_the_tree_leaves_the_answers_as_they_are(
    name: str, served: AnswersResult, trained: Path, tiny_checkout: Path
) -> None:
    options = ("--volume", f"{REPOSITORY / 'mods'}:/mods:ro")
    found = figures(served, measured(tiny_checkout, trained, more=options, MODS=name))
    assert (found.divergence, found.same_chat, found.partings, found.continuations) == (0, True, 0, 8)


def test_an_older_version_says_the_same(served: AnswersResult, trained: Path, tmp_path: Path) -> None:
    root = copied_checkout(tmp_path)
    target = f"tiny@0.28.0/cpu/{MACHINE}"
    lock_or_skip(root, target)
    invoke(root, "build", "--target", target)
    what, told = verdict(measured(root, trained, target), served)
    assert what == "kernels"
    assert told.startswith("same"), told


def test_sglang_says_the_same(served: AnswersResult, trained: Path, tmp_path: Path) -> None:
    root = copied_checkout(tmp_path)
    invoke(root, "build", "--target", SGLANG)
    project = Project(root)
    subject = subject_of_target(project, SGLANG)
    options, arguments = on_cpu(tmp_path, SERVER.on_cpu)
    given = (word for name, value in (ALONE | SETTINGS).items() for word in ("--env", f"{name}={value}"))
    options = (*options, *given, *mounted(trained))
    with (
        containers_of(subject, print) as (image, containers),
        containers.serve(image, tmp_path, *arguments, options=options) as server,
    ):
        server.wait_until_healthy(1200)
        endpoint = Endpoint(server.address, server.key, server.container)
        bound = bound_to(project, subject, SETTINGS)
        found = measure_endpoint(root, endpoint, bound, this_machine(server.container), lambda _: None)
    what, told = verdict(served, found)
    assert what == "kernels"
    assert told.startswith("same"), told


def by_token(place: Place) -> dict[int, float]:
    return {int(token): value for token, value in place.items()}


@pytest.fixture(scope="module")
def faults(trained: Path, tiny_image: str, served: AnswersResult) -> dict[str, AnswersResult]:
    """The same panel from one process, whole (under an empty name) and with each fault."""
    options = (*mounted(trained), "--volume", f"{REPOSITORY}:/repo:ro", "--entrypoint", "/opt/venv/bin/python3")
    program = "/repo/tests/fixtures/in_container/faults.py"
    done = docker("run", "--rm", "--ipc", "host", *options, tiny_image, program, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    kinds = [window.kind for window in served.windows]

    def windows(texts: list[list[Place]]) -> dict[str, object]:
        return {
            "windows": tuple(
                map(window_of, kinds, found["texts"], [[by_token(place) for place in text] for text in texts])
            )
        }

    def continuations(texts: list[tuple[list[int], list[Place]]]) -> dict[str, object]:
        return {
            "continuations": tuple(
                Continuation(kind=kind, tokens=tuple(tokens), top=tuple(by_token(place) for place in top))
                for kind, (tokens, top) in zip(kinds[::2], texts, strict=True)
            )
        }

    whole = served.model_copy(
        update={"chat": ()} | windows(found["results"][""]) | continuations(found["continued"][""])
    )
    updates = {name: windows(texts) for name, texts in found["results"].items()}
    updates |= {name: continuations(texts) for name, texts in found["continued"].items()}
    return {name: whole.model_copy(update=update) for name, update in updates.items()}


def test_a_server_says_what_the_model_says_in_one_process(
    served: AnswersResult, faults: dict[str, AnswersResult]
) -> None:
    found = figures(served, faults[""])
    assert judge(change(served, faults[""]), found, figures(faults[""], faults["nothing"]))[0] == "same", found
    assert found.places > 5000
    # A trained model prefers some tokens; a uniform one would have 384.
    assert found.same_choice > 0.999
    certain = [max(place.values()) for window in served.windows for place in window.top]
    assert sum(value > -1 for value in certain) > len(certain) / 4


def test_every_deliberate_fault_is_found(faults: dict[str, AnswersResult]) -> None:
    whole = faults[""]
    noise = figures(whole, faults["nothing"])
    found = {name: figures(whole, other) for name, other in faults.items()}
    verdicts = {name: judge("drafter" if "drafter" in name else "code", one, noise)[0] for name, one in found.items()}
    same = {name for name, verdict in verdicts.items() if verdict == "same"}
    assert same == {"", "nothing", "a drafter"}, found
    assert len(verdicts) == 9 + len(same)
    assert found["a drafter"].continuations == 8
