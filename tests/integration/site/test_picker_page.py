"""The picker in a real browser: pick, copy, go back, by mouse and by keyboard."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.fixtures.picker import DEFAULTS
from tests.integration.site.conftest import Tabs, violations

START = "#model=gemma4-31b&machine=gb10&version=0.32.0"


def shown(page: Page) -> str:
    return page.locator("#picker-panel code").inner_text()


def verdict(page: Page) -> str | None:
    return page.locator("#picker-verdict").get_attribute("data-result")


def change(page: Page, setting: str, value: str) -> None:
    field = page.locator(f"#picker-set-{setting}")
    field.fill(value)
    field.dispatch_event("change")


def test_the_picker_works_from_a_folder(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri())
    assert page.locator("#picker-model").input_value() == "gemma4-31b"
    assert verdict(page) == "ok"
    assert "--env" not in shown(page)
    page.select_option("#picker-model", "gpt-oss-120b")
    assert "--name vllm-gpt-oss-120b" in shown(page)
    assert "model=gpt-oss-120b" in page.url
    change(page, "MAX_NUM_SEQS", "3")
    assert "--env MAX_NUM_SEQS=3" in shown(page)
    page.click("#picker-reset")
    assert "--env" not in shown(page)


def test_a_machine_without_an_image_is_named(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START.replace("gb10", "rtx5090"))
    expect(page.locator("#picker-verdict")).to_contain_text("gemma4-31b has no image for NVIDIA GeForce RTX 5090")
    page.select_option("#picker-model", "qwen3.5-27b-nvfp4")
    expect(page.locator("#picker-verdict")).not_to_contain_text("has no image")


def test_a_contradiction_is_said_while_typing(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    page.locator("#picker-set-DFLASH_DRAFTER").fill("off")
    page.locator("#picker-set-DFLASH_NUM_SPEC_TOKENS").fill("4")
    assert verdict(page) == "fail"
    expect(page.locator("#picker-verdict")).to_contain_text("there is no drafter")
    expect(page.locator("#picker-set-DFLASH_NUM_SPEC_TOKENS")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#picker-copy")).to_be_disabled()
    page.locator("#picker-set-DFLASH_NUM_SPEC_TOKENS").fill("")
    assert verdict(page) == "ok"
    # So is memory that does not fit.
    expect(page.locator("#picker-memory")).to_contain_text("KV cache")
    change(page, "GPU_MEMORY_UTILIZATION", "0.99")
    assert verdict(page) == "fail"
    expect(page.locator("#picker-verdict")).to_contain_text("the host needs 16.0 GB")
    change(page, "GPU_MEMORY_UTILIZATION", "0.5")
    assert verdict(page) == "ok"
    page.fill("#picker-free", "40")
    assert verdict(page) == "fail"


def test_numbers_are_understood_as_people_write_them(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    for typed, meant in {"32k": "32768", "64 K": "65536", "16,000": "16000", "8'192": "8192"}.items():
        change(page, "MAX_MODEL_LEN", typed)
        assert f"--env MAX_MODEL_LEN={meant}" in shown(page), typed
        expect(page.locator("#picker-set-MAX_MODEL_LEN")).to_have_value(meant)
    change(page, "GPU_MEMORY_UTILIZATION", "75 %")
    assert "GPU_MEMORY_UTILIZATION=0.75" in shown(page)
    change(page, "MAX_MODEL_LEN", "1M")
    expect(page.locator("#picker-verdict")).to_contain_text("1,048,576 tokens do not fit")
    change(page, "MAX_MODEL_LEN", "some")
    expect(page.locator("#picker-verdict")).to_contain_text("It takes 1 to 262,144, or auto.")
    assert "2147483647" not in page.locator("#picker").inner_text()


def test_free_memory_has_units_and_what_cannot_be_read_is_refused(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    for typed, gigabytes in {
        "110 GB": "110.0",
        "110": "110.0",
        "100GiB": "107.4",
        "0,11 TB": "110.0",
    }.items():
        page.fill("#picker-free", typed)
        expect(page.locator("#picker-verdict")).to_contain_text(f"{gigabytes} GB available")
        assert verdict(page) == "ok", typed
    page.fill("#picker-free", "80 GB")
    assert verdict(page) == "fail"
    page.fill("#picker-free", "a lot")
    assert verdict(page) == "fail"
    expect(page.locator("#picker-free")).to_have_attribute("aria-invalid", "true")


def test_users_who_do_not_fit_would_wait(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    expect(page.locator("#picker-verdict")).not_to_contain_text("wait")
    change(page, "MAX_NUM_SEQS", "64")
    expect(page.locator("#picker-verdict")).to_contain_text("46 fit at once; 18 would wait")
    expect(page.locator("#picker-verdict")).to_contain_text("room for 46 users with 16,384 tokens each")


def test_what_is_not_published_is_not_green(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    for state, kind, said in (
        ("built", "warn", "Not published"),
        ("update waiting", "ok", "./inv verify --image"),
        ("current", "ok", "would start"),
    ):
        page.evaluate("(state) => pickerData.images.forEach((image) => { image.state = state; })", state)
        page.fill("#picker-free", "120")
        expect(page.locator("#picker-verdict")).to_contain_text(said)
        assert verdict(page) == kind


def test_settings_have_names_that_people_know(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    expect(page.get_by_label("Context MAX_MODEL_LEN")).to_be_visible()
    expect(page.get_by_label("Users at once MAX_NUM_SEQS")).to_be_visible()
    for version in ("0.32.0", "sglang-0.5.21"):
        page.select_option("#picker-version", version)
        for text in page.locator(".picker-setting label").all_text_contents():
            label, _, name = text.rpartition(" ")
            assert label, name
            assert label != name


def test_a_link_is_a_configuration_and_back_goes_back(tabs: Tabs, address: str) -> None:
    page = tabs(f"{address}{START}&MAX_MODEL_LEN=4096&tab=compose")
    assert page.locator("#picker-set-MAX_MODEL_LEN").input_value() == "4096"
    assert "${MAX_MODEL_LEN:-4096}" in shown(page)
    change(page, "MAX_MODEL_LEN", "2048")
    page.select_option("#picker-version", "sglang-0.5.21")
    assert "services:\n  sglang:" in shown(page)
    page.go_back()
    expect(page.locator("#picker-version")).to_have_value("0.32.0")
    assert "${MAX_MODEL_LEN:-2048}" in shown(page)
    page.go_back()
    expect(page.locator("#picker-set-MAX_MODEL_LEN")).to_have_value("4096")
    page.go_forward()
    expect(page.locator("#picker-set-MAX_MODEL_LEN")).to_have_value("2048")


def test_every_output_can_be_copied(tabs: Tabs, address: str) -> None:
    page = tabs(address + START, permissions=["clipboard-read", "clipboard-write"])
    for name, part in {
        "docker": "docker run",
        "compose": "services:",
        "sparkrun": "recipe_version: '2'",
        "eugr": "recipe_version: '1'",
        "curl": "curl http://localhost:8000/v1",
        "python": "from openai import OpenAI",
    }.items():
        page.click(f"#picker-tab-{name}")
        page.click("#picker-copy")
        expect(page.locator("#picker-copy")).to_have_text("Copied", timeout=20_000)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert part in copied
        assert copied == page.locator("#picker-panel code").text_content()


def test_the_keyboard_is_enough(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri() + START)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "picker-model"
    page.keyboard.press("ArrowDown")
    assert page.locator("#picker-model").input_value() != "gemma4-31b"
    assert page.evaluate("document.activeElement.id") == "picker-model"
    page.focus("#picker-set-MAX_NUM_SEQS")
    page.keyboard.type("5")
    page.keyboard.press("Tab")
    assert "MAX_NUM_SEQS=5" in shown(page)
    page.focus("#picker-tab-docker")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "picker-tab-compose"
    assert shown(page).startswith("services:")


def test_hostile_addresses_are_text(tabs: Tabs, picker_page: Path) -> None:
    evil = "%3Cimg src=x onerror=alert(1)%3E"
    page = tabs(f"{picker_page.as_uri()}#model={evil}&tab=__proto__&DTYPE={evil}&SERVED_MODEL_NAME={evil}&{evil}=1")
    assert page.locator("#picker-model").input_value() == "gemma4-31b"
    expect(page.locator("#picker-verdict")).to_contain_text("DTYPE does not accept '<img src=x")
    page.locator("#picker-set-DTYPE").select_option("")
    assert "'SERVED_MODEL_NAME=<img src=x onerror=alert(1)>'" in shown(page)
    assert page.locator("#picker img").count() == 0


def test_the_picker_fits_a_phone_and_axe_finds_nothing(tabs: Tabs, address: str) -> None:
    size = {"width": 390, "height": 844}
    page = tabs(address + START, color_scheme="light", viewport=size)
    page.locator("#picker-more summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert violations(page) == []


def test_without_javascript_the_default_command_is_there(tabs: Tabs, picker_page: Path) -> None:
    page = tabs(picker_page.as_uri(), java_script_enabled=False)
    expect(page.locator("noscript pre")).to_have_text(DEFAULTS)
    expect(page.locator("#picker-form")).to_be_hidden()
