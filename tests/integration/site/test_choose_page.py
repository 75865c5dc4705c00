"""The question on the home page in a real browser: asked by mouse and keyboard, answered with what fits."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.fixtures.small_site import TINY
from tests.integration.site.conftest import Tabs, violations
from tests.integration.site.test_pages import DESK

ASKED = "#for=coding&machine=gpu&free=100&context=65536&users=1"


@pytest.fixture
def page(tabs: Tabs, site: str) -> Page:
    """The question of a coding agent on a machine with 100 GB left."""
    return tabs(f"{site}/index.html{ASKED}", **DESK)


def test_a_question_is_answered_with_what_fits_and_one_command(page: Page) -> None:
    answer = page.locator("#answers > ol > li")
    expect(answer).to_have_count(1)
    expect(answer.locator(".figure b").last).to_have_text("96 GB")
    expect(answer.locator(".chip.good")).to_have_text("fits: room for 3 users with 65,536 tokens each")
    expect(answer.locator("figcaption")).to_contain_text("in use already 28.0 GB")
    expect(answer.locator("code")).to_contain_text("--set GPU_MEMORY_UTILIZATION=0.75")
    page.get_by_label("Free memory, GB").fill("60")
    expect(answer).to_have_count(0)
    expect(page.locator("#choose-said")).to_contain_text(
        "None of 1 model for “coding” fits: 60.0 GB are free, and big,"
    )
    page.get_by_text("1 model that would not start, and why").click()
    expect(page.locator("#answers")).to_contain_text("big: weights and working memory need 64.0 GB, and 55.0 GB can be")
    page.get_by_label("Free memory, GB").fill("")
    expect(answer).to_have_count(1)


def test_the_address_holds_the_question_and_leads_to_the_picker(page: Page) -> None:
    page.locator("#choose-form select[name=for]").focus()
    page.keyboard.type("hard")  # by keyboard
    expect(page.locator("#choose-said")).to_contain_text("No model for “hard questions” has an image for A GPU. Choose")
    page.locator("#choose-form select[name=for]").blur()
    assert "for=hard+questions" in page.url
    page.locator("#choose-form select[name=for]").select_option("chat")
    asked = page.url
    page.goto("about:blank")
    page.goto(asked)
    page.get_by_role("link", name="Change settings").click()
    expect(page.locator("#picker-form select[name=context]")).to_have_value("65536")
    expect(page.get_by_label("Free memory, GB")).to_have_value("100")


def test_an_answer_does_not_wait_for_the_library_of_languages(page: Page) -> None:
    page.add_init_script("Number.prototype.toLocaleString = () => { throw new Error('slow'); };")
    page.reload()
    expect(page.locator("#answers .chip.good").first).to_contain_text("tokens each")
    assert page.evaluate("[0, 999, 1000, 65536, 1234567].map(Drawing.count)") == [
        *("0", "999", "1,000", "65,536", "1,234,567"),
    ]


def test_tables_sort_by_keyboard(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/index.html")
    rows = page.locator("#models-table tbody th a")
    before = rows.all_inner_texts()
    column = page.get_by_role("columnheader", name="model", exact=True)
    for direction, names in (("ascending", sorted(before)), ("descending", sorted(before, reverse=True))):
        column.get_by_role("button").press("Enter")
        assert rows.all_inner_texts() == names
        expect(column).to_have_attribute("aria-sort", direction)


def test_two_images_are_compared_at_an_address(site: str, tabs: Tabs) -> None:
    other = TINY.replace("tiny", "big")
    page = tabs(f"{site}/compare.html?one={TINY}&two={other}", **DESK)
    expect(page.get_by_role("heading", name="Layers that change")).to_be_visible()
    expect(page.locator("#compared")).to_contain_text("./inv bench.compare tiny@2.0/cpu big@2.0/cpu")
    assert violations(page) == []
    page.get_by_label("Two").select_option("tiny")
    expect(page.get_by_role("status")).to_contain_text(f"{TINY} and tiny differ in 0 of")
    page.go_back()
    expect(page.get_by_role("status")).to_contain_text(f"{TINY} and {other} differ in")
    expect(page.locator("select[name=one] optgroup[label=tiny] option").first).to_have_text("tiny")
    page.goto(f"{site}/compare.html?one=gone&two=tiny")
    expect(page.get_by_role("status")).to_have_text("There is no gone here any more.")


TWINS = """(weights) => {
    const [one, two] = ["big-v2.0-gpu-arm64", "%s"].map((name) => startsData.images.find(({ slug }) => slug === name));
    Object.assign(two, { machine: one.machine, memory: one.memory });
    one.memory.weights = weights;
}"""
"""Makes the other image as large as the only one with figures."""


def test_a_no_has_its_sum_and_its_bar_and_advice_only_where_it_helps(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/compare.html?one=big-v2.0-gpu-arm64&two=big", **DESK)
    answer = page.locator("section", has_text="Do both run on one machine?")
    page.evaluate(TWINS % TINY, 60e9)
    page.get_by_label("Two").select_option(TINY)
    expect(answer).to_contain_text("No, on A GPU, whatever their context")
    expect(answer).to_contain_text("64.3 GB + 64.3 GB = 128.6 GB, and 112.0 GB can be used")
    expect(answer.locator("figcaption")).to_contain_text("16.6 GB more than the 128.0 GB there are")
    assert "MAX_MODEL_LEN" not in answer.inner_text()
    page.evaluate(TWINS % TINY, 45e9)
    page.get_by_label("Two").select_option("tiny")
    expect(answer).to_contain_text("Not with their own contexts on A GPU, but with 32,768 tokens at most")
    expect(answer).to_contain_text("MAX_MODEL_LEN=32768, PORT=8001")


def test_one_box_answers_what_is_typed_and_nothing_before(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/upgrade.html")
    box, cards = page.get_by_role("searchbox", name="What you run"), page.locator("#lookup-found li.card")
    expect(cards).to_have_count(0)
    box.fill("2026-11-14")
    expect(cards).to_have_count(1)
    expect(cards).to_contain_text("Defaults: ")
    expect(cards.locator("code")).to_be_hidden()
    box.fill("tiny@2.0/cpu")
    expect(cards).to_have_count(2)
    expect(cards.first.get_by_role("link")).to_have_attribute("href", f"images/{TINY}.html")
    box.fill(f"registry.example/somebody/images@sha256:{'1' * 12}")
    expect(cards).to_have_count(1)
    assert violations(page) == []
    box.fill("nothing-like-it")
    expect(cards).to_have_count(0)
    expect(page.locator("#lookup-none")).to_contain_text("./inv upgrade --from DIGEST")
    page.goto(f"{site}/vulnerabilities.html#q=torch")
    expect(cards).to_contain_text("package")
    expect(cards.get_by_role("link").first).to_be_visible()
    assert violations(page) == []
