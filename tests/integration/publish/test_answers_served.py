"""A mod that spoils the answers, from its image to the history: real servers, a trained model and a real registry."""

import shutil
from pathlib import Path

import pytest

from imagefactory.check.answers.measuring import measure_image
from imagefactory.check.answers.result import AnswersResult
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.publish import answers, pipeline, testing
from imagefactory.publish.run import PublishRun
from imagefactory.publish.standing import Gate
from imagefactory.publish.write import Promotion
from imagefactory.store.digests import Digest
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.engines import forget_images
from tests.fixtures.failures import is_failure
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.publishing import passing, plans
from tests.fixtures.tiny_image import TARGET, copied_checkout
from tests.fixtures.trained import IN_CONTAINER, SETTINGS, trained  # noqa: F401 - a fixture

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
FILE = "vllm/model_executor/models/qwen3.py"
SCALE = "self.scaling = self.head_dim**-0.5"
WRONG = f"{SCALE} * 1.01"


def test_a_mod_that_scales_attention_wrongly_is_not_promoted(
    trained: Path,  # noqa: F811
    tmp_path: Path,
    own_repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, said = copied_checkout(tmp_path), list[str]()
    (root / "mods").unlink()
    shutil.copytree(REPOSITORY / "mods", root / "mods")

    def measure(run: PublishRun, digest: Digest) -> AnswersResult:
        volume = ("--volume", f"{trained}:{IN_CONTAINER}:ro")
        pulled = answers.pulled(run.project, run.repository, digest)
        return measure_image(run.project, pulled, SETTINGS, run.say, volume)[0]

    monkeypatch.setattr(testing, "run_levels", lambda _, staged, levels: passing(staged, levels))
    monkeypatch.setattr(answers, "measure", measure)

    def published(reason: str = "") -> Promotion:
        project = Project(root)
        run = PublishRun(Gate(project, own_repository, answers_changed=reason), said.append, answers=True)
        return pipeline.publish(run, plans(project, select_one(project.matrix, TARGET)))

    name = own_repository.reference.name
    try:
        [first] = published().promoted
        tagged = own_repository.resolve("tiny")  # an index: images for CPUs have two platforms
        assert tagged is not None
        change, checks = edit(FILE, SCALE, replace=WRONG), [has(FILE, WRONG)]
        needed = [{"arch": "cpu"}]
        mod = manifest("wrong-scale", change, checks=checks, versions=">=0.32", needed_when=needed)
        write_mod(root / "mods", mod)
        [refusal] = published().refused
        assert is_failure(refusal, "answers-changed")
        assert f"compared with {first.image.digest[:19]}" in refusal.why
        assert own_repository.resolve("tiny") == tagged
        starts = sum("ready after" in line for line in said)
        [second] = published("the scale was wrong before").promoted
        assert sum("ready after" in line for line in said) == starts == 3  # what is known is not measured again
        told = Checkout(root).invoke("history", "--target", TARGET)
        assert second.image.mods == (*first.image.mods, "wrong-scale")
        assert "the scale was wrong before" in " ".join(told.stdout.split())
    finally:
        forget_images(name)
