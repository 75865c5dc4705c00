"""Tests cells of a server other than vLLM: their names, what selects and excludes them, and how they are served."""

from dataclasses import replace
from typing import get_args

import pytest

from imagefactory.project.bases import LeaveOut
from imagefactory.project.cells import (
    Cell,
    drafter_exclusions,
    leave_out_of,
    reason_excluded,
    usable_drafters,
)
from imagefactory.project.matrix import Matrix, Rule, load_matrix
from imagefactory.project.server_versions import TITLES
from imagefactory.project.servers.known import SERVERS, server_of
from imagefactory.project.targets import select
from images.shipped.values import Condition, ServerName
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises

SPARK = Cell("large", "sglang-0.5.21", "spark", "linux/arm64")
VERSIONS = """
sglang:
  "0.5.21":
    release: "0.5.21"
    overrides: [{requirement: gone==1.0, reason: its wheels have vanished}]
  "0.5.10": {release: "0.5.10"}
models:
"""


@pytest.fixture
def checkout(small_matrix: Checkout) -> Checkout:
    small_matrix.edit_matrix("\nmodels:\n", VERSIONS)
    small_matrix.edit_matrix("  large:\n", '  large:\n    sglang: ">=0.5.14"\n')
    return small_matrix


@pytest.fixture
def both(checkout: Checkout) -> Matrix:
    return load_matrix(checkout.matrix)


def test_a_model_that_only_this_server_serves_has_its_newest_version_by_default(checkout: Checkout) -> None:
    text = checkout.matrix.read_text("utf-8")
    head, large, rest = text.partition("  large:\n")
    ranges = [line for line in rest.splitlines() if line.startswith("    vllm:")]
    checkout.matrix.write_text(head + large + rest.replace(f"{ranges[0]}\n", "", 1), "utf-8")
    assert select(load_matrix(checkout.matrix), ["large"]) == [SPARK]
    checkout.edit_matrix('    sglang: ">=0.5.14"\n', "")
    with raises("bad-matrix", match="give the versions that serve it"):
        load_matrix(checkout.matrix)


def test_matrix_mods_and_factory_know_the_same_servers() -> None:
    assert list(SERVERS) == list(TITLES) == list(get_args(ServerName))
    assert set(TITLES) <= Matrix.model_fields.keys() & Condition.model_fields.keys()


def test_names_of_cells_tell_the_servers_apart() -> None:
    for version, title in {"3.0-graft": "vLLM", "nightly": "vLLM", "sglang-0.5.21": "SGLang"}.items():
        assert server_of(replace(SPARK, version=version)).title == title
    vllm = Cell("large", "3.0", "spark", "linux/arm64")
    assert (str(vllm), vllm.slug, vllm.runs) == ("large@3.0/spark", "large-v3.0-spark-arm64", "vLLM 3.0")
    assert (SPARK.slug, SPARK.runs) == ("large-sglang-0.5.21-spark-arm64", "SGLang 0.5.21")
    for cell in (vllm, SPARK):
        assert Cell.of_labels(cell.labels, cell.platform) == cell
        assert f"imagefactory.{cell.server}" in cell.labels


@pytest.mark.parametrize("target", ["large@sglang-0.5.21", "*@sglang-*", "large@*21/spark"])
def test_targets_select_versions_of_another_server(both: Matrix, target: str) -> None:
    assert select(both, [target]) == [SPARK]


@pytest.mark.parametrize("target", ["large@0.5.21", "large@vllm-0.5.21"])
def test_target_that_mixes_servers_is_refused(both: Matrix, target: str) -> None:
    with raises("unknown-name") as refused:
        select(both, [target])
    assert "no vLLM version of that name" in refused.value.why
    assert "sglang-0.5.21" in refused.value.fix


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("large@sglang-0.5.10", "large needs SGLang >=0.5.14"),
        ("quantized@sglang-0.5.21", "quantized is not described for SGLang"),
    ],
)
def test_model_is_served_by_the_versions_it_names_only(both: Matrix, target: str, reason: str) -> None:
    with raises("excluded", match="cannot be built") as refused:
        select(both, [target])
    assert refused.value.why == f"{reason}."


def test_drafter_works_with_the_servers_it_names_only(both: Matrix) -> None:
    first, second = both.models["large"].drafters
    assert usable_drafters(both, SPARK) == []
    named = {f"{drafter.repo} is not described for SGLang" for drafter in (first, second)}
    assert {why for _, why in drafter_exclusions(both, SPARK)} == named
    described = [first.model_copy(update={"sglang": ">=0.5.14"}), second]
    large = both.models["large"].model_copy(update={"drafters": described})
    changed = both.model_copy(update={"models": {"large": large}})
    assert [drafter.repo for drafter in usable_drafters(changed, SPARK)] == [first.repo]


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"server": "sglang"}, True),
        ({"sglang": ">=0.5.20"}, True),
        ({"sglang": "<0.5.20"}, False),
        ({"vllm": ">=0"}, False),
    ],
)
def test_rules_tell_servers_apart(both: Matrix, when: dict[str, str], *, holds: bool) -> None:
    rule = Rule(when=Condition.model_validate(when), reason="it does not work")
    changed = both.model_copy(update={"exclude": [rule]})
    assert (reason_excluded(changed, SPARK) == rule.reason) is holds


@pytest.mark.parametrize(
    ("ranges", "applies"),
    [({}, True), ({"vllm": ">=0"}, False), ({"sglang": ">=0.5.20"}, True), ({"sglang": "<0.5"}, False)],
)
def test_what_is_left_out_may_depend_on_the_server(both: Matrix, ranges: dict[str, str], *, applies: bool) -> None:
    entry = LeaveOut(distribution="big", reason="nothing opens it", **ranges)  # type: ignore[arg-type]
    assert (leave_out_of(both.model_copy(update={"leave_out": [entry]}), SPARK) == [entry]) is applies


def test_other_server_takes_its_shape_from_its_own_entries(checkout: Checkout) -> None:
    shapes = "serve_on: {spark: {max_num_seqs: 1}, sglang: {max_num_seqs: 2}, sglang/spark: {max_num_seqs: 3}}"
    checkout.edit_matrix("  large:\n", f"  large:\n    {shapes}\n")
    model = load_matrix(checkout.matrix).models["large"]

    def numbers(server: str, arch: str) -> list[int | None]:
        return [shape.max_num_seqs for shape in model.shapes(server, arch)]

    assert model.shapes("vllm", "server") == [model.serve]
    assert numbers("vllm", "spark")[1:] == [1]
    assert numbers("sglang", "server") == [2]
    assert numbers("sglang", "spark") == [2, 3]


@pytest.mark.parametrize("key", ["sgland", "vllm/spark"])
def test_shape_for_something_unknown_is_refused(checkout: Checkout, key: str) -> None:
    checkout.edit_matrix("  large:\n", f"  large:\n    serve_on: {{{key}: {{max_num_seqs: 1}}}}\n")
    with raises("unknown-name", match=f"Unknown arch or server '{key}'"):
        load_matrix(checkout.matrix)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{release: "0.5.10"}', "{git: a/b, ref: main, counts_as: 0.6.0.dev0}", "only vLLM is compiled"),
        ("requirement: gone==1.0", "requirement: gone=1.0", "not a requirement"),
    ],
)
def test_version_that_cannot_be_resolved_is_refused(checkout: Checkout, old: str, new: str, message: str) -> None:
    checkout.edit_matrix(old, new)
    with raises("bad-matrix") as refused:
        load_matrix(checkout.matrix)
    assert message in refused.value.why
