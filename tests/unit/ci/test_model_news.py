"""Two weeks of a model hub: what is pinned, what is told of it, and what the next night has on record."""

import io
from typing import cast

import pytest
from rich.console import Console

from imagefactory.assemble.layer_records import unrecorded
from imagefactory.ci.model_news import ModelNews, kind_of, look_at_models, take_models
from imagefactory.cli.show.tables import plan_table
from imagefactory.lock import hub
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import plan_status
from imagefactory.project.cells import Cell
from imagefactory.publish.catalog import parts_of
from imagefactory.publish.history import change_of
from imagefactory.store.http import Retry
from tests.fixtures.model_hub import ModelHub
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.small_factory import CELL, SmallFactory

MODELS = ("moving", "steady", "explained", "vanishing", "gated")
DRAFTER = "drafters: [{repo: somebody/drafter, method: eagle3, tokens: 3}]"


@pytest.fixture
def factory(small_factory: SmallFactory, model_hub: ModelHub, monkeypatch: pytest.MonkeyPatch) -> SmallFactory:
    """Make a factory with six models, all of its images on record, and a hub that has five of them."""
    monkeypatch.setenv("HF_ENDPOINT", model_hub.url)
    monkeypatch.setattr(hub, "RETRY", Retry(attempts=1))
    rows = [f'  {name}: {{repo: somebody/{name}, vllm: ">=0", weights: bf16}}\n' for name in MODELS]
    rows.append(f'  drafted: {{repo: somebody/moving, vllm: ">=0", weights: bf16, {DRAFTER}}}\n')
    small_factory.edit_matrix('  other: {repo: somebody/other, vllm: ">=0", weights: bf16}\n', "".join(rows))
    for name in (*MODELS, "drafter"):
        model_hub.move(f"somebody/{name}", config__json=name.encode(), model__safetensors=bytes(4000))
    model_hub.refused["somebody/gated"] = "GatedRepo"
    small_factory.build(CELL, *(Cell(name, "1.0", "cpu", PLATFORM) for name in (*MODELS, "drafted")))
    return small_factory


def test_targets_with_new_layers_are_unrecorded(factory: SmallFactory) -> None:
    assert unrecorded(factory.project) == []
    factory.edit_matrix("repo: somebody/steady,", "serve: {max_num_seqs: 3}, repo: somebody/steady,")
    assert unrecorded(factory.project) == [f"steady@1.0/cpu/{PLATFORM.partition('/')[2]}"]


def plan(factory: SmallFactory, model: str) -> Plan:
    return make_plan(factory.project, Cell(model, "1.0", "cpu", PLATFORM))


def week(factory: SmallFactory) -> ModelNews:
    news = look_at_models(factory.project, lambda _: None)
    take_models(factory.project, news)
    return news


def pins(factory: SmallFactory) -> dict[str, str]:
    return {entry.repo.removeprefix("somebody/"): entry.commit for entry in factory.project.model_lock.revisions}


def test_first_week_pins_what_the_hub_shows_and_records_the_images(factory: SmallFactory, model_hub: ModelHub) -> None:
    before = {name: plan(factory, name) for name in (*MODELS, "drafted")}
    text = week(factory).markdown()
    commits = {repo.removeprefix("somebody/"): commit for repo, commit in model_hub.commits.items()}
    assert pins(factory) == {name: commit for name, commit in commits.items() if name != "gated"}
    for name, old in before.items():
        new = plan(factory, name)
        assert KnownLayers(factory.project.known_layers).image(new), f"the night could not build {name}"
        assert [layer.key for layer in new.layers[:-1]] == [layer.key for layer in old.layers[:-1]]
        assert (new.key == old.key) == (name == "gated")
    assert "imagefactory.revisions" not in plan(factory, "gated").config.labels
    drafted = plan(factory, "drafted")
    served = f"somebody/moving@{commits['moving']} somebody/drafter@{commits['drafter']}"
    assert drafted.config.labels["imagefactory.revisions"] == served
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_table(plan_status(factory.project, drafted)))
    assert f"serves somebody/drafter@{commits['drafter']}" in cast("io.StringIO", console.file).getvalue()
    told = change_of("model drafted", parts_of(before["drafted"])[-1], parts_of(drafted)[-1])
    assert told == f"model drafted unpinned → {commits['moving'][:12]}"
    row = "| moving, drafted | somebody/moving | - | `{}` | pinned for the first time: 2 files, 4.0 kB |"
    assert row.format(commits["moving"][:12]) in text
    assert "- somebody/gated is not pinned: The repository is gated" in text
    assert look_at_models(factory.project, lambda _: None).moved == (), "the second time there is nothing to do"


def test_second_week_takes_what_moved_and_keeps_the_rest(factory: SmallFactory, model_hub: ModelHub) -> None:
    week(factory)
    first = pins(factory)
    records = KnownLayers(factory.project.known_layers).layers
    model_hub.move(
        "somebody/moving", model__safetensors=bytes(5000), chat_template__jinja=b"{{ x }}", config__json=None
    )
    model_hub.move("somebody/explained", README__md=b"read me")
    model_hub.refused["somebody/vanishing"] = "RepoNotFound"
    text = week(factory).markdown()
    moved = model_hub.commits["somebody/moving"]
    assert pins(factory) == first | {"moving": moved}
    changed = {
        record.name for key, record in KnownLayers(factory.project.known_layers).layers.items() if key not in records
    }
    assert changed == {"model moving", "model drafted"}
    assert f"| `{first['moving'][:12]}` | `{moved[:12]}` | weights, chat template, configuration: 3 files |" in text
    [weights, template, config] = [line for line in text.splitlines() if line.startswith("| `")]
    assert weights.startswith("| `model.safetensors` | weights | 4.0 kB `")
    assert template.startswith("| `chat_template.jinja` | chat template | - | 0.0 kB `")
    assert config.startswith("| `config.json` | configuration | 0.0 kB `")
    assert config.endswith("| - |")
    assert f"- somebody/vanishing stays at `{first['vanishing'][:12]}`: The hub has no such repository" in text
    assert (
        f"- somebody/explained stays at `{first['explained'][:12]}`: no server reads what changed (`README.md`)."
        in text
    )


def test_pin_moves_on_when_its_commit_is_gone(factory: SmallFactory, model_hub: ModelHub) -> None:
    """Nobody can download it any more."""
    week(factory)
    commit = model_hub.move("somebody/steady", README__md=b"rewritten")
    model_hub.earlier.clear()
    assert "not known. The repository no longer has this commit. 3 files" in week(factory).markdown()
    assert pins(factory)["steady"] == commit


def test_long_report_fits_into_a_pull_request(factory: SmallFactory, model_hub: ModelHub) -> None:
    week(factory)
    for name in MODELS:
        model_hub.move(f"somebody/{name}", **{f"{number:03}-{'@x' * 900}__json": b"x" for number in range(30)})
    text = look_at_models(factory.project, lambda _: None).markdown()
    assert ("and 18 more" in text, "@x" in text, len(text) < 65_536) == (True, False, True)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model-00001-of-00002.safetensors", "weights"),
        ("model.safetensors.index.json", "weights"),
        ("original/consolidated.pth", "weights"),
        ("modeling_x.py", "code"),
        ("additional_chat_templates/tools.jinja", "chat template"),
        ("chat_template.json", "chat template"),
        ("tokenizer_config.json", "tokenizer"),
        ("spiece.model", "tokenizer"),
        ("generation_config.json", "configuration"),
        ("README.md", "other"),
        (".gitattributes", "other"),
        ("LICENSE", "other"),
    ],
)
def test_files_are_told_apart_by_what_they_are_for(path: str, kind: str) -> None:
    assert kind_of(path) == kind
