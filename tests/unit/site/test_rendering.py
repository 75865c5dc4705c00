"""The files of a site: complete, linked, escaped, the same every time, and honest about what is missing."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import pytest
from markupsafe import escape

from imagefactory.launch.preview import Preview
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.project import Project
from imagefactory.project.targets import host_machine, select_one
from imagefactory.publish.catalog import Catalog, Pointer
from imagefactory.serve_program import hosts
from imagefactory.site.documents import feed
from imagefactory.site.image_page import HISTORY
from imagefactory.site.lookups import nightly_at
from imagefactory.site.model_page import client_of
from imagefactory.site.rendering import make_environment, render
from imagefactory.site.site_contents import gather
from imagefactory.site.stock import RegistryRecords, take_stock
from tests.fixtures.benchmarks import BOUND, at_speed, result
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.small_site import (
    HOSTILE,
    REGISTRY,
    TINY,
    made_up_records,
    make_site_checkout,
    small_contents,
    small_site,
)

BIG = "images/big-v2.0-cpu-arm64.html"


class Page(HTMLParser):
    """Collects what a page links, loads and contains."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.inline: list[str] = []
        self.text = ""
        self.feed(text)
        self.commands = re.findall(r'class="command">.*?<code>(.*?)</code>', text, re.DOTALL)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given["href"]] if tag == "link" else []
        self.loaded += [given["src"]] if "src" in given else []
        self.ids += [given["id"]] if "id" in given else []
        bad = tag == "style" or (tag == "script" and "src" not in given)
        self.inline += [tag] if bad else []
        self.inline += [name for name in given if name == "style" or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return small_site(tmp_path_factory.mktemp("site") / "checkout")


@pytest.fixture(scope="module")
def pages(files: dict[str, bytes]) -> dict[str, Page]:
    return {path: Page(data.decode()) for path, data in files.items() if path.endswith(".html")}


def test_same_inputs_give_the_same_bytes_anywhere_and_none_names_the_machine(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/else")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    other = "amd64" if host_machine() == "arm64" else "arm64"
    monkeypatch.setattr("imagefactory.project.targets.host_machine", lambda: other)
    monkeypatch.delattr("subprocess.Popen")  # a process for each image took more than a minute
    again = small_site(tmp_path / "another place")
    assert again == files
    for path, data in files.items():
        assert b"/tmp/" not in data, path
        assert b"/home/" not in data, path


def test_every_link_leads_to_a_file_and_an_anchor_that_exist(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    checked = 0
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            address = urlsplit(link)
            if address.scheme:
                assert link not in page.loaded, f"{path} loads {link}"
                continue
            assert not link.startswith("/"), f"{path}: {link} works only at the root of a host"
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(address.path) or "."))
            target = path if not address.path else target
            assert target in files, f"{path} links {link}"
            if address.fragment and "=" not in address.fragment:  # the picker's settings
                assert unquote(address.fragment) in pages[target].ids, f"{path} links {link}"
            checked += 1
    assert checked > 200


def test_ids_are_unique_and_the_policy_forbids_inline_code(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), path
        assert b"default-src 'none'; style-src 'self'; script-src 'self'" in files[path], path
        assert page.inline == [], path


def test_every_image_is_found_by_digest_tag_and_day_with_what_changes_today(files: dict[str, bytes]) -> None:
    new, old, *others = json.loads(files["upgrade.json"])["images"]
    # Built here, not published.
    assert {(row["state"], row["digest"] == row["newest"]) for row in others} == {("current", True)}
    assert {new["digest"], old["digest"]}.isdisjoint(row["digest"] for row in others)
    assert (old["digest"], old["newest"], old["state"]) == (f"sha256:{'1' * 64}", new["digest"], "update waiting")
    assert {"tiny", "2026-11-14"} <= {*old["names"]}
    assert any(line.startswith("**Defaults**: ") for line in old["lines"])
    told, fault = new["lines"]
    assert told == "**Must you act**: No: this is the newest image."
    assert fault.startswith("**Known faults**: it stops after an hour ")
    entries = ET.fromstring(files["feed.xml"]).findall("{*}entry")  # noqa: S314 - our own file
    notes = [entry.findtext("{*}content") for entry in entries]
    assert notes == ["\n".join(f"- {line}" for line in old["lines"]), None]


def test_what_this_checkout_makes_is_not_found_by_a_tag_that_names_a_published_image(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    records = made_up_records(project)
    older = Catalog(images=records.catalog.images[:1], events=records.catalog.events[:1])
    rows = gather(take_stock(project, replace(records, catalog=older, evidence={}))).upgrades
    published, *here = (row for row in rows if row.target == "tiny@2.0/cpu")
    assert "tiny" in published.names
    assert [row.names for row in here] == [()]


def data_of(files: dict[str, bytes], name: str) -> Any:
    """Read the data of a page's script."""
    _, _, text = files[f"{name}-data.js"].decode().partition("JSON.parse('")
    return json.loads(text.removesuffix("');\n").replace(r"\\", "\\"))


def test_an_upgrade_is_found_by_tag_and_day_and_digests_are_where_asked(files: dict[str, bytes]) -> None:
    new, old, *_ = data_of(files, "upgrade")["answers"]
    assert {"tiny@2.0/cpu", "tiny", "2026-11-14"} <= {*old["names"]}
    assert (old["title"], old["chip"], new["chip"]) == ("tiny@2.0/cpu", "a newer one", "newest")
    shown = " ".join([old["title"], *old["names"], *(text for text, _ in old["lines"])])
    assert "1" * 12 not in shown
    assert old["more"].startswith(f"digest {'1' * 12}, newest ")
    assert re.fullmatch("digest [0-9a-f]{12}, image ID [0-9a-f]{12}", new["more"])
    assert "sha256:1" not in files["upgrade.html"].decode(), "nothing is there before something is typed"


def test_packages_are_found_without_a_scan_and_the_page_says_when_one_comes(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    data = data_of(files, "vulnerabilities")
    by_title = {answer["title"]: answer for answer in data["answers"]}
    assert by_title["CVE-2026-1001"]["chip"] == "high"
    [[version, numbers]] = by_title["torch"]["lines"]
    assert re.fullmatch(r"[\d.]+:", version)
    assert {data["links"][number][1] for number in numbers} <= set(files)
    project = make_site_checkout(tmp_path / "checkout")
    assert nightly_at(project) == ""
    workflow = project.root / ".github" / "workflows" / "nightly.yml"
    workflow.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / ".github" / "workflows" / "nightly.yml", workflow)
    assert re.fullmatch(r"\d\d:\d\d UTC", nightly_at(project))
    page = render(gather(take_stock(project, RegistryRecords(REGISTRY))))["vulnerabilities.html"].decode()
    assert f"every night at {nightly_at(project)}" in page
    assert "grype sbom:packages.cdx.json" in page


def test_which_images_have_a_vulnerability(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    [row] = json.loads(files["vulnerabilities.json"])["vulnerabilities"]
    assert (row["id"], row["images"]) == ("CVE-2026-1001", [TINY])
    assert [f"images/{TINY}.html"] in [link[1:] for link in data_of(files, "vulnerabilities")["links"]]
    told = "1 high (grype 0.119.0 on 2026-11-15, database of 2026-11-14)"
    assert told in pages["vulnerabilities.html"].text
    assert told in pages[f"images/{TINY}.html"].text
    assert "Not scanned, as far as this site knows." in pages[BIG].text


def test_hostile_text_is_shown_and_never_markup(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    shown = [path for path, page in pages.items() if HOSTILE in page.text]
    assert {"mods.html", "models/tiny.html", "status.html", f"images/{TINY}.html"} <= set(shown)
    for name in ("upgrade", "vulnerabilities"):
        assert "<img src=x" in json.dumps(data_of(files, name))
    for path, data in files.items():
        if not path.endswith(".json"):
            assert b"<script>" not in data, path
            assert b"<img src=x" not in data, path
    assert json.loads(files["mods.json"])["mods"][0]["summary"].endswith(HOSTILE)


def test_every_page_has_its_data_beside_it(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    for path in pages:
        if path not in {"images.html", "compare.html"}:
            assert json.loads(files[path.replace(".html", ".json")])["format"] == 1
    index = json.loads(files["index.json"])
    for entry in (*index["models"], *index["images"]):
        assert entry["page"] in files
        assert entry["json"] in files


def test_published_image_is_current_with_its_evidence(pages: dict[str, Page], files: dict[str, bytes]) -> None:
    page = pages[f"images/{TINY}.html"].text
    document = json.loads(files[f"images/{TINY}.json"])
    assert document["state"] == "current"
    assert document["tested"] == "passed"
    assert document["reference"] == f"{REGISTRY}@{document['digest']}"
    assert "SBOM, signature" in page
    assert [line["changed"] for line in document["history"]] == [["vllm 1.0 → 2.0"], ["first"]]
    assert document["older_run"].endswith(f"{REGISTRY}@sha256:{'1' * 64}")
    assert "The digest is on record in this repository." in page
    assert document["docker_run"].endswith(document["reference"])
    assert "~/.cache/huggingface:/root/.cache/huggingface" in document["docker_run"]


def test_neighbours_say_what_is_left_to_pull(files: dict[str, bytes]) -> None:
    tiny, big = (json.loads(files[f"images/{TINY.replace('tiny', name)}.json"]) for name in ("tiny", "big"))
    [other] = tiny["neighbours"]
    present = {layer["digest"] for layer in big["layers"]}
    left = [layer["bytes"] for layer in tiny["layers"] if layer["digest"] not in present]
    assert other == {"slug": big["slug"], "target": "big@2.0/cpu", "bytes": sum(left)}
    assert 0 < len(left) < len(tiny["layers"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"images/{TINY.replace('arm64', 'amd64')}.html", "a layer has never been built"),
        (BIG, "not known to be published"),
        ("models/big.html", "but are not locked"),
        ("models/big.html", "vLLM 1.0 on gpu, cpu: nobody has such a machine"),
        ("models/big.html", "This project has not measured this model yet."),
        ("models/tiny.html", "matrix.yaml has no memory figures"),
        ("models/big.html", "Tools are off: coding agents need"),
        ("status.html", "broken.json: The benchmark result cannot be read."),
        ("packages/vllm-2.0-cpu-arm64.html", "not on record"),
        (f"images/{TINY}.html", "Known fault: it stops after an hour"),
        (f"images/{TINY}.html", "Merged: fast drafts are inside since 1.9."),
        ("models/big.html", "Somebody's Spark: the patch is inside."),
        ("models/big.html", "./inv run --target big --set MAX_NUM_SEQS=4"),
        ("models/tiny.html", "known fault: it stops after an hour"),
    ],
)
def test_what_is_missing_or_wrong_is_said(pages: dict[str, Page], path: str, said: str) -> None:
    assert said in pages[path].text


def test_a_version_that_was_served_nowhere_says_so_on_its_pages(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    for path in (project.locks / "2.0").glob("cpu-*.toml"):
        path.unlink()
    files = render(gather(take_stock(Project(project.root), RegistryRecords(REGISTRY))))
    for name in ("models/big.html", "images/big-v2.0-gpu-arm64.html"):
        assert "the smoke level serve needs the image's GPU" in Page(files[name].decode()).text


def test_without_a_registry_nothing_counts_as_published(tmp_path: Path) -> None:
    files = render(small_contents(tmp_path / "checkout", published=False))
    first = Page(files["index.html"].decode())
    assert "No registry was asked" in first.text
    assert first.text.index("No registry was asked") < first.text.index("What for"), "above the answers"
    assert "Not published" in first.text
    clone, build, run = first.commands[0].splitlines()
    assert clone.startswith("git clone https://"), "a visitor has no checkout"
    assert build.startswith("./inv build --target ")
    assert run.startswith("./inv run --target ")
    index = json.loads(files["index.json"])
    assert {image["state"] for image in index["images"]} == {"can be built", "planned"}
    assert {image["tested"] for image in index["images"]} == {"no record"}
    assert "Nothing was published yet" in Page(files["status.html"].decode()).text


def test_a_model_is_shown_on_a_platform_that_has_an_image(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    records = made_up_records(project)
    image, event = records.catalog.images[-1], records.catalog.events[-1]
    for platform in project.matrix.archs["cpu"].platforms:
        moved = {tag: Pointer(image.digest, {platform: image.digest}) for tag in event.moved}
        catalog = Catalog((replace(image, platform=platform),), (replace(event, moved=moved),))
        contents = gather(take_stock(project, replace(records, catalog=catalog, evidence={}, contents={})))
        [tiny] = (model for model in contents.models if model.name == "tiny")
        assert tiny.image == f"tiny-v2.0-cpu-{platform.removeprefix('linux/')}"


def test_the_command_of_a_model_comes_before_its_settings(pages: dict[str, Page]) -> None:
    for name in ("big", "tiny"):
        ids = pages[f"models/{name}.html"].ids
        places = [ids.index(part) for part in ("picker-start", "picker-form", "clients", "memory", "settings")]
        assert places == sorted(places)


def test_a_model_without_tools_names_its_parser_with_a_line_to_copy() -> None:
    project = Project(REPOSITORY)
    served = describe_cell(project, select_one(project.matrix, "gemma4-31b"))
    client = client_of(Preview(project.root, served.description, served.model))
    assert (client.tools, client.parser) == ("", "gemma4")
    template = make_environment().get_template("clients.html")
    text = template.render(model={"name": "gemma4-31b", "client": client})
    assert "-e ENABLE_AUTO_TOOL_CHOICE=1 -e TOOL_CALL_PARSER=gemma4" in text


def test_feed_has_the_times_of_the_catalog(files: dict[str, bytes]) -> None:
    found = ET.fromstring(files["feed.xml"])  # noqa: S314 - our own file
    atom = "{http://www.w3.org/2005/Atom}"
    assert found.findtext(f"{atom}updated") == "2026-11-15T03:04:05Z"
    entries = found.findall(f"{atom}entry")
    times = [entry.findtext(f"{atom}updated") for entry in entries]
    assert times == ["2026-11-15T03:04:05Z", "2026-11-14T03:04:05Z"]
    assert len({entry.findtext(f"{atom}id") for entry in entries}) == 2


def test_search_finds_models_images_mods_settings_and_problems(files: dict[str, bytes]) -> None:
    entries = data_of(files, "search")
    kinds = {"model", "how to", "image", "mod", "setting", "problem", "exit code", "question", "package", "CVE"}
    assert {entry[0] for entry in entries} == kinds
    assert all(entry[2].partition("#")[0] in files for entry in entries)


def test_no_command_to_copy_has_a_gap_to_fill(pages: dict[str, Page]) -> None:
    commands = [command for page in pages.values() for command in page.commands]
    assert len(commands) > 10
    assert not [command for command in commands if re.search("…|\\bIMAGE\\b|\\bTARGET\\b", command)]


def test_first_command_is_of_an_image_that_exists(files: dict[str, bytes], pages: dict[str, Page]) -> None:
    index = json.loads(files["index.json"])
    published = [image["digest"] for image in index["images"] if image["state"] == "current"]
    assert any(pages["index.html"].commands[0].endswith(f"@{digest}") for digest in published)


def test_digest_of_the_catalog_alone_is_said_to_be_unverified_and_a_feed_is_always_xml(tmp_path: Path) -> None:
    contents = small_contents(tmp_path / "checkout")
    [night, *_] = contents.status.nights
    change = replace(night.changes[0], changed=("not\ufffeXML\x1b\ud800",))
    odd = replace(contents, status=replace(contents.status, nights=(replace(night, changes=(change,)),)))
    assert "not XML" in str(ET.fromstring(feed(odd)).findtext(".//{*}entry/{*}title"))  # noqa: S314
    images = [
        replace(image, published_digest=f"sha256:{'3' * 64}", state="update waiting") if image.slug == TINY else image
        for image in contents.images
    ]
    page = Page(render(replace(contents, images=images))[f"images/{TINY}.html"].decode()).text
    assert "catalog, which is not signed, and this commit makes another" in page
    assert not [text for text in contents.recipes.values() if "3" * 64 in text]


def test_others_figures_stand_at_the_top_and_the_default_version_first(files: dict[str, bytes]) -> None:
    page, document = files["models/big.html"].decode(), json.loads(files["models/big.json"])
    assert page.index("one user on GB10, one report") < page.index('id="start"')
    assert {"slowest": 5.5, "typical": 5.5, "fastest": 5.5, "gpu": "GB10"}.items() <= document["speed"].items()
    # 60 GB at 232 GB/s are 3.9 steps per second; 5.5 tokens per second cannot be one by one.
    assert "limit without a drafter3.9 tokens/s: a step reads 60 GB and makes 1 token" in Page(page).text
    assert [round(row["limit"]["share"], 2) for row in document["reported"] if row["limit"]] == [1.42]
    assert 'href="https://forum.example/1?a=1&amp;b=2">A forum &lt;b&gt;of some kind&lt;/b&gt;</a>, 2026-04' in page
    assert [row["users"] for row in document["speeds"]["gb10"]] == [1], "its image drafts nothing"
    defaults = [version["default"] for version in document["versions"]]
    assert defaults == [True] + [False] * (len(defaults) - 1)
    versions = [one["version"] for one in json.loads(files["mods.json"])["mods"][0]["versions"]]
    assert versions == sorted(versions, reverse=True)


def test_the_fastest_model_comes_first_with_its_figure(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    figures = project.root / "data" / "published.yaml"
    figures.write_text(figures.read_text().replace("[big]", "[tiny]"))
    contents = gather(take_stock(project, made_up_records(project)))
    assert [model.name for model in contents.models] == ["tiny", "big"]
    files = render(contents)
    assert '<a href="models/tiny.html#figures">5.5</a>' in files["index.html"].decode()


def test_long_history_is_cut_and_says_so(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    records = made_up_records(project)
    both, count = records.catalog.events, HISTORY + 10
    events = tuple(replace(both[number % 2], id=str(number)) for number in range(count))
    catalog = replace(records.catalog, events=events)
    contents = gather(take_stock(project, replace(records, catalog=catalog)))
    image = contents.by_slug[TINY]
    assert (len(image.history), image.older) == (HISTORY, 10)
    assert "10 older: " in render(contents)[f"images/{TINY}.html"].decode()


def test_there_are_files_for_language_models_and_recipes(files: dict[str, bytes]) -> None:
    text = files["llms.txt"].decode()
    assert text.startswith("# ")
    for path in ("models/big.html", "models/tiny.html", "troubles.html"):
        assert f"]({path})" in text
        assert path in files
    assert "recipes/.sparkrun/registry.yaml" in files
    assert b"registry.yaml" in files["sparkrun-registry.tar"]


def test_machines_with_known_faults_are_listed_with_source_and_date(files: dict[str, bytes]) -> None:
    page, listed = files["troubles.html"].decode(), json.loads(files["troubles.json"])["hosts"]
    assert {host["host"] for host in listed} == {fault["host"] for fault in hosts.known()}
    for host in listed:
        assert all(str(escape(host[part])) in page for part in ("host", "what", "source", "seen"))


def test_measured_images_are_compared_with_an_interval_if_nothing_else_differs(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    folder = project.root / "data" / "results"
    slow, fast = (BOUND.model_copy(update={"target": f"{name}@2.0/cpu/arm64"}) for name in ("tiny", "big"))
    result((64, 65, 63), bound=slow).write(folder / "tiny" / "slow.json")
    result((128, 130, 126), bound=fast, tools={"vllm bench serve": "2.0"}).write(folder / "tiny" / "fast.json")
    result((1, 2, 3), bound=fast, profile="users").write(folder / "tiny" / "other.json")
    contents = gather(take_stock(project, made_up_records(project)))
    [found] = contents.by_slug[TINY].compared
    assert (found.other, found.verdict) == ("big@2.0/cpu/arm64", "better")
    assert found.ratio
    ratio, low, high = found.ratio
    assert low < ratio < high
    assert ratio == pytest.approx(2, abs=0.01)


def test_figures_of_generated_weights_stand_apart_from_those_of_the_model(tmp_path: Path) -> None:
    project = make_site_checkout(tmp_path / "checkout")
    model = {"target": "big@2.0/gpu", "model": "/root/.cache/huggingface/generated-small"}
    measurements = tuple(at_speed(speed, users=users) for users, speed in ((1, 500), (64, 12_000)))
    made = result(bound=BOUND.model_copy(update=model), measurements=measurements)
    made.write(project.root / "data" / "results" / "tiny" / "made.json")
    contents = gather(take_stock(project, made_up_records(project)))
    page = render(contents)["models/big.html"].decode()
    assert "This project has not measured this model yet." in page
    assert "Own measurements, generated weights" in page
    assert "generated-small" in page
    assert "1: 500, 64: 12000" in page
    [big] = (model for model in contents.models if model.name == "big")
    assert (big.measured, [one.shape for one in big.generated]) == ((), ["generated-small"])
    [tiny] = (model for model in contents.models if model.name == "tiny")
    assert tiny.measured
    assert not tiny.generated
