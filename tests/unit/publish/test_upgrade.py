"""Upgrades: what is told is what differs between the plans, and what nobody knows is said to be unknown."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from packaging.utils import canonicalize_name

from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.bench.result import BenchResult
from imagefactory.ci.run_summary import night_notes
from imagefactory.errors import RegistryError
from imagefactory.lock.flag_records import FlagLock
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.publish.catalog import Catalog, Pointer
from imagefactory.publish.history import steps
from imagefactory.publish.image_contents import Contents, contents_of_plan
from imagefactory.publish.owned_image import find_pair, find_published, newest_version
from imagefactory.publish.upgrade import (
    Known,
    Upgrade,
    compare_contents,
    lines,
    markdown,
)
from imagefactory.store.digests import Digest
from tests.fixtures.benchmarks import BOUND, result
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.small_catalogs import CELL, OLDER, TAGS, digest, event, image, promoted, rolled_back
from tests.fixtures.small_factory import SmallFactory

COMMITTED = Project(REPOSITORY)
VERSIONS = ("0.20.2", "0.28.0", "0.32.0")
PAIRS = list(pairwise(VERSIONS))


@cache
def plan_of(version: str) -> Plan:
    return make_plan(COMMITTED, select_one(COMMITTED.matrix, f"gemma4-31b@{version}/gb10/arm64"))


@cache
def known() -> Known:
    return Known.of(COMMITTED, Catalog(), ())


@cache
def told(before: str, after: str) -> Upgrade:
    layers = KnownLayers(COMMITTED.known_layers)
    one, other = (contents_of_plan(COMMITTED, plan, layers.image(plan)) for plan in map(plan_of, (before, after)))
    return compare_contents(one, other, known())


def files(version: str) -> dict[str, str]:
    """Return the files in the layers of an image, by the packages' names: what is really installed."""
    found = {}
    for layer in plan_of(version).layers:
        for item in layer.inputs:
            if item.name.endswith(".whl"):
                name, number, *_ = item.name.split("-")
                found[f"wheel {canonicalize_name(name)}"] = number
            elif item.name.endswith(".deb"):
                found[f"deb {item.name.partition('_')[0]}"] = item.name
    return found


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_packages_and_bytes_are_those_of_the_layers(before: str, after: str) -> None:
    upgrade, old, new = told(before, after), files(before), files(after)
    differ = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    assert upgrade.packages is not None
    assert {name for name in upgrade.packages if not name.startswith("model ")} == differ
    assert len(differ) > 10
    text = markdown(upgrade)
    for name in (name for name in differ if name.startswith("wheel ")):
        shown = {(True, True): f"{old.get(name)} → {new.get(name)}", (False, True): str(new.get(name))}
        assert f"{name[6:]} {shown.get((name in old, name in new), '')}".strip() in text
    keys = {layer.key for layer in plan_of(before).layers}
    recorded = KnownLayers(COMMITTED.known_layers)
    lacking = [recorded.blob(layer.key) for layer in plan_of(after).layers if layer.key not in keys]
    assert upgrade.pull == sum(blob.size for blob in lacking if blob)
    assert f"**Go back**: `./inv run --target gemma4-31b@{before}/gb10/arm64`" in text


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_flags_and_variables_gone_are_those_that_only_the_older_record_has(before: str, after: str) -> None:
    upgrade = told(before, after)
    old, new = (FlagLock.read(FlagLock.path(COMMITTED.locks, version)) for version in (before, after))
    assert upgrade.flags_gone
    for flag, _, value in (gone.partition(" ") for gone in upgrade.flags_gone):
        assert flag in old.flags, flag
        assert (value not in new.flags[flag].split()) if value else (flag not in new.flags)
        assert f"`{flag} {value}`".replace(" `", "`") in markdown(upgrade)
    kept = {flag for flag in old.flags if flag.startswith("--")} - {*upgrade.flags_gone}
    assert kept <= new.flags.keys()
    assert {*old.variables} - {*new.variables} == {*upgrade.variables_gone}


def test_what_an_owner_of_gemma_notices_from_version_to_version() -> None:
    first, second = (told(*pair) for pair in PAIRS)
    assert {name for name, (_, there) in first.mods.items() if not there} == set(first.mods) == set(first.reasons)
    assert "gb10-cutlass-fallback (the kernels of 0.24.0 and later cover 12.1" in markdown(first)
    drafters = ("RedHatAI/gemma-4-31B-it-speculator.dflash", "z-lab/gemma-4-31B-it-DFlash")
    assert first.settings == {"DFLASH_DRAFTER": drafters, "DFLASH_NUM_SPEC_TOKENS": ("8", "15")}
    assert "**Models**: new: z-lab/gemma-4-31B-it-DFlash" in markdown(first)
    assert "**Known faults**: the image you have: two Sparks hang after 20 to 60 minutes" in markdown(first)
    assert second.settings == {"LOAD_FORMAT": (None, "instanttensor"), "QUANTIZATION": ("fp8", "fp8_per_tensor")}
    assert "`LOAD_FORMAT` is `instanttensor` now; `QUANTIZATION` `fp8` → `fp8_per_tensor`" in markdown(second)
    assert first.title == "gemma4-31b on gb10: vLLM 0.20.2 → 0.28.0"
    assert all(upgrade.act.startswith("Only if") for upgrade in (first, second))


SETTINGS = {"MAX_MODEL_LEN": "1000"}
PACKAGES = {"wheel torch": "2.12.0", "deb bash": "5.2", "model google/gemma": "abc"}
BEFORE = Contents(CELL, digest("a"), "docker pull x@a", ("one",), SETTINGS, {digest("l"): 7}, PACKAGES)
AFTER = replace(BEFORE, digest=digest("b"), start="docker pull x@b", layers={digest("l"): 7, digest("m"): 5})


def test_a_rebuild_that_changes_nothing_for_owners_asks_for_nothing() -> None:
    upgrade = compare_contents(BEFORE, AFTER, Known(flags=known().flags))
    assert upgrade.act == "No: remove the container, and start the new image with the settings you have."
    assert [line.partition("**: ")[0][2:] for line in lines(upgrade)] == [
        *("Must you act", "To pull", "Speed", "Answers", "Go back"),
    ]
    assert upgrade.pull == 5
    assert lines(compare_contents(BEFORE, BEFORE, Known())) == ["**Must you act**: No: this is the newest image."]


def test_what_is_not_known_is_said() -> None:
    text = markdown(compare_contents(replace(BEFORE, packages=None), replace(AFTER, layers={}), Known()))
    assert "**Flags gone**: not known" in text
    assert "**Packages**: not known: one of the two has no SBOM" in text
    assert "To pull" not in text
    other = replace(AFTER, cell=replace(CELL, version="sglang-0.5.21"))
    upgrade = compare_contents(BEFORE, other, known())
    assert (upgrade.flags_gone, upgrade.act) == (None, "Yes: it is another server, with flags of its own.")
    assert upgrade.title == "gemma on gb10: vLLM 0.32.0 → SGLang 0.5.21"


def test_text_from_a_registry_stays_text() -> None:
    upgrade = compare_contents(BEFORE, replace(AFTER, settings={"MAX_MODEL_LEN": "1`\n# <b>"}), Known())
    assert "`MAX_MODEL_LEN` `1000` → `1' # <b>`" in lines(upgrade)[1]


def bench(which: Digest, speeds: list[float], **more: object) -> BenchResult:
    return result(speeds, bound=BOUND.model_copy(update={"digest": which, **more}))


def test_speed_comes_with_its_interval_and_only_from_results_that_are_alike() -> None:
    old, new = bench(digest("a"), [20, 20.1, 19.9]), bench(digest("b"), [22, 22.1, 21.9], mods=("two",))
    speed = compare_contents(BEFORE, AFTER, Known(results=(old, new))).speed
    assert speed == ("20.0 → 22.0 tokens/s, better (+10.0%, 95 % between +8.6% and +11.4%); profile quick, CPU")
    other = bench(digest("b"), [22, 22.1, 21.9], settings={"MAX_NUM_SEQS": "4"})
    assert compare_contents(BEFORE, AFTER, Known(results=(old, other))).speed == "not measured alike"
    assert compare_contents(BEFORE, AFTER, Known(results=(old,))).speed == "not measured"


def test_an_image_that_was_taken_back_is_left_and_answers_are_the_catalogs() -> None:
    catalog = Catalog().with_event(event("promote", image("b"), 0, TAGS, answers="answers changed: a mask"), image("b"))
    catalog = rolled_back(promoted(catalog, image("a"), 1), image("b"), 2, digest("a"))
    upgrade = compare_contents(BEFORE, AFTER, Known(catalog=catalog))
    assert upgrade.act.startswith("Yes: the image you have was taken back.")
    assert "**Known faults**: the image you have was rolled back on 2026-11-03" in lines(upgrade)
    assert "**Answers**: changed: a mask" in lines(upgrade)


@pytest.fixture
def catalog() -> Catalog:
    """Return a catalog of two versions, whose default moved from the older one to the newer."""
    older = ("gemma-v0.28.0", "gemma", "latest")
    found = promoted(Catalog(), image("a", OLDER), 0, older)
    found = promoted(found, image("b", OLDER), 1, older[:1])
    return promoted(promoted(found, image("c"), 2), image("d"), 3)


@pytest.mark.parametrize(
    ("named", "found", "newest"),
    [
        (digest("a"), "a", "d"),  # `gemma` moved on
        (digest("b")[7:19], "b", "b"),  # it had no other tag than that of its version
        (f"ghcr.io/you/images@{digest('c')}", "c", "d"),
        ("gemma-a", "a", "d"),
        ("gemma", "d", "d"),
        ("gemma@2026-11-02", "a", "d"),
        ("ghcr.io/you/images:gemma-v0.28.0@2026-11-01", "a", "d"),
    ],
)
def test_owners_name_images_by_digest_tag_and_day(catalog: Catalog, named: str, found: str, newest: str) -> None:
    assert [one.digest for one in find_published(catalog, named)] == [digest(found), digest(newest)]


@pytest.mark.parametrize("named", ["sha256:" + "0" * 64, "gemma@2026-10-31", "other", "a b", "64646464"])
def test_an_image_that_nobody_published_or_that_is_not_the_only_one_is_refused(catalog: Catalog, named: str) -> None:
    for name in ("dddd1", "dddd2"):
        catalog = promoted(catalog, image(name), 4)
    with raises("never-published", "several" if named == "64646464" else "no "):
        find_published(catalog, named)


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        *(("0.20.2", "0.32.0"), ("0.28.0-graft", "0.32.0"), ("0.32.0", "0.32.0"), ("0.32.0-b12x", "0.32.0-b12x")),
        *(("nightly", "nightly"), ("sglang-0.5.21", "sglang-0.5.23"), ("sglang-0.5.23", "sglang-0.5.23")),
    ],
)
def test_a_version_is_followed_by_the_default_one_and_by_none_that_is_not_newer(have: str, expected: str) -> None:
    cell = replace(select_one(COMMITTED.matrix, "gemma4-31b"), version=have)
    assert newest_version(COMMITTED.matrix, cell) == expected


def test_versions_need_no_registry_and_a_mistyped_one_is_not_taken_for_a_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.publish.owned_image.Repository", None)
    cell = select_one(COMMITTED.matrix, "gemma4-31b")
    before, after, _ = find_pair(COMMITTED, cell, "0.28.0", "")
    assert [one.cell.version for one in (before, after)] == ["0.28.0", COMMITTED.matrix.defaults.vllm]
    with raises("unknown-name"):
        find_pair(COMMITTED, cell, "0.18", "")


class Silent:
    """A registry that does not answer."""

    @staticmethod
    def open(_: str) -> None:
        raise RegistryError("registry-unreachable", "No answer.", where="x", why="No route to host.", fix="Wait.")


def test_an_image_of_this_checkout_is_found_by_its_digest_its_id_and_what_docker_knows_of_it(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefactory.publish.owned_image.Repository", Silent)
    in_docker: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(daemon, "inspect", in_docker.get)
    project = small_factory.project
    [built] = small_factory.build()
    digest, identity = built.image.digest, built.image.config_digest
    in_docker["123456abcdef"] = {"RepoDigests": None, "Config": {"Labels": {"imagefactory.plan": built.plan.key}}}
    in_docker["abcdef123456"] = {"RepoDigests": [f"small@{digest}"], "Config": {"Labels": None}}
    for named in (digest, digest[7:19], digest[7:13], identity, identity[7:19], "123456abcdef", "abcdef123456"):
        before, after, _ = find_pair(project, built.plan.cell, named, "")
        assert (before.cell, before.digest, after.digest) == (built.plan.cell, digest, digest)
    with raises("registry-unreachable"):
        find_pair(project, built.plan.cell, "0" * 12, "")


def test_an_index_stands_for_the_image_of_this_machine(catalog: Catalog) -> None:
    other = replace(image("e"), platform=next(one for one in ("linux/arm64", "linux/amd64") if one != PLATFORM))
    here = replace(image("f"), platform=PLATFORM)
    catalog = promoted(catalog, here, 5)
    moved = {"gemma": Pointer(digest("9"), {other.platform: other.digest, here.platform: here.digest})}
    catalog = catalog.with_event(replace(event("promote", other, 6, ()), moved=moved), other)
    for named in (digest("9"), f"ghcr.io/you/images@{digest('9')}", digest("9")[7:19]):
        assert find_published(catalog, named)[0] == here


def test_each_step_knows_what_users_of_its_tags_had_before(catalog: Catalog) -> None:
    found = [(one.digest, before and before.digest) for _, one, before in steps(catalog)]
    assert found == [
        (digest("a"), None),
        (digest("b"), digest("a")),
        (digest("c"), digest("a")),  # the first of its version: users of `gemma` had the older one
        (digest("d"), digest("c")),
    ]


def test_the_notes_of_a_night_put_images_together_that_change_alike() -> None:
    other = replace(CELL, model="other")
    catalog = promoted(Catalog(), image("a"), 0)
    catalog = promoted(catalog, image("o", other), 0, ("other",))
    catalog = promoted(catalog, image("x", replace(CELL, model="new")), 1, ("new",))
    for name, cell, tags in (("b", CELL, TAGS), ("p", other, ("other",))):
        catalog = promoted(catalog, image(name, cell), 1, tags)

    def read(which: Digest) -> Contents:
        if which == digest("gone"):
            raise RegistryError("no-content", "It is gone.", where="x", why="Deleted.", fix="None.")
        newer = which in (digest("b"), digest("p"))
        return replace(BEFORE, digest=which, mods=("one", "two") if newer else ("one",))

    day, notes = night_notes(catalog, Known(), read)
    assert day == "2026-11-02"
    assert notes.count("**Mods added**: two") == 1
    assert notes.index(digest("b")) < notes.index(digest("p")) < notes.index("**Mods added**: two")
    assert notes.count("**Go back**") == 2
    assert "published for the first time" in notes
    assert digest("a") not in notes
    catalog = promoted(catalog, image("gone"), 1)
    assert "what changed is not known: It is gone. Deleted." in night_notes(catalog, Known(), read)[1]
    assert night_notes(Catalog(), Known(), read)[0] == ""
