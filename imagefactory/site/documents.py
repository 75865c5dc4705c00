"""The site for programs: JSON beside every page, index.json, the Atom feed, and the data of the search."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Final
from urllib.parse import quote_plus
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import BaseModel

from imagefactory.site.choosing import ordered_by
from imagefactory.site.guides import plain
from imagefactory.site.home_page import ModelCard
from imagefactory.site.lookups import package_versions
from imagefactory.site.model_page import SYNONYMS, search_words
from imagefactory.site.site_contents import SiteContents
from imagefactory.site.starts import RESERVES, Command
from imagefactory.site.status_page import NightChange

FORMAT: Final = 1
_LONGEST: Final = 240  # characters of a text that is searched
_ENTRIES: Final = 50  # of the feed
SETTING_WORDS: Final = {
    "MAX_MODEL_LEN": "context length window tokens",
    "MAX_NUM_SEQS": "users concurrency parallel requests batch",
    "GPU_MEMORY_UTILIZATION": "ram vram share oom",
    "KV_DISK": "cache ssd nvme restart offload prefix",
    "LIMIT_MM_PER_PROMPT": "vision images pictures multimodal",
    "TOOL_CALL_PARSER": "tools function calling agents mcp",
    "REASONING_PARSER": "thinking",
    "VLLM_API_KEY_FILE": "password token security",
}
"""Other words for settings, by which people look for them."""
_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""XML has no way to write these characters, not even escaped."""


def to_json(document: object) -> str:
    """Write JSON, the same for the same content."""
    return json.dumps(document, indent=1, ensure_ascii=False, default=_plain_value) + "\n"


def _plain_value(value: object) -> object:
    if is_dataclass(value):
        return vars(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def as_script(name: str, document: object) -> str:
    """Return a script that sets a variable: pages opened as files may not fetch JSON.

    Browsers parse JSON in a string in half the time of an object in a script.
    """
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, default=_plain_value)
    # No tag can end the script, no quote the string, and no separator the line in an old browser.
    for sign in "<>&'\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    doubled = text.replace("\\", "\\\\")
    return f"window.{name} = JSON.parse('{doubled}');\n"


def page_documents(contents: SiteContents) -> dict[str, Mapping[str, object]]:
    """Return the JSON document of each page, by the page's path without its ending."""
    troubles = [{"symptom": plain(entry.symptom), "remedy": plain(entry.remedy)} for entry in contents.guides.troubles]
    tasks = [{"task": entry.task, "how": plain(entry.how)} for entry in contents.guides.tasks]
    documents: dict[str, Mapping[str, object]] = {
        **{f"models/{model.name}": vars(model) for model in contents.models},
        **{f"images/{image.slug}": vars(image) for image in contents.images},
        **{f"packages/{packages.slug}": vars(packages) for packages in contents.packages},
        "mods": {"mods": contents.mods},
        "configurations": {"choices": contents.guides.choices},
        "troubles": {
            "tasks": tasks,
            "troubles": troubles,
            "exit_codes": contents.guides.exit_codes,
            "hosts": contents.hosts,
        },
        "status": vars(contents.status),
        "upgrade": {"images": contents.upgrades},
        "vulnerabilities": {"vulnerabilities": contents.vulnerabilities},
    }
    return {path: {"format": FORMAT, **document} for path, document in documents.items()}


def index_document(contents: SiteContents) -> Mapping[str, object]:
    """Return index.json: where everything is, with what programs choose by."""
    return {
        "format": FORMAT,
        "title": contents.title,
        "source": contents.source,
        "registry": contents.stock.records.registry,
        "models": [
            {
                "name": model.name,
                "repo": model.repo,
                "weights": model.weights,
                "state": model.state,
                **_addresses(f"models/{model.name}"),
            }
            for model in contents.models
        ],
        "images": [
            {
                "target": image.target,
                "state": image.state,
                "tested": image.tested,
                "bytes": image.bytes,
                "tags": image.tags,
                "digest": image.published_digest or image.digest,
                **_addresses(f"images/{image.slug}"),
            }
            for image in contents.images
        ],
        "mods": [{"name": mod.name, "summary": mod.summary} for mod in contents.mods],
        "pages": ["compare", "mods", "configurations", "troubles", "status", "upgrade", "vulnerabilities"],
        "choices": contents.choices,
        "feed": "feed.xml",
        "recipes": sorted(contents.recipes),
    }


def starts_document(contents: SiteContents) -> Mapping[str, object]:
    """Return what scripts compute with: machines, images, the order by use, and cards of models."""
    return {
        "reserves": RESERVES,
        "machines": contents.machines,
        "images": contents.starts,
        "build": Command.of_checkout(contents.source),
        "order": contents.order,
        "ordered": {use: ordered_by(use) for use in contents.order},
        "models": {model.name: ModelCard.of(model) for model in contents.models},
    }


def _addresses(path: str) -> dict[str, str]:
    return {"page": f"{path}.html", "json": f"{path}.json"}


def search_entries(contents: SiteContents) -> list[list[str]]:
    """Return what the search looks through: kind, title, address, text, and other words for it."""
    return [[kind, title, path, text[:_LONGEST], *more] for kind, title, path, text, *more in _entries(contents)]


def _entries(contents: SiteContents) -> Iterator[tuple[str, ...]]:
    for model in contents.models:
        drafters = (drafter.repo for drafter in model.drafters)
        text = " ".join([model.repo or "", model.weights, *model.badges, *drafters])
        words = search_words(contents.stock.project.matrix.models[model.name])
        yield "model", model.name, f"models/{model.name}.html", text, words
    for number, task in enumerate(contents.guides.tasks, 1):
        yield "how to", task.task, f"troubles.html#task-{number}", plain(task.how), task.words
    for image in contents.images:
        digest = image.published_digest or image.digest or ""
        text = " ".join([image.gpu, image.platform, digest, *image.mods])
        yield "image", image.target, f"images/{image.slug}.html", text
    yield from _questions(contents)
    for mod in contents.mods:
        yield "mod", mod.name, f"mods.html#{mod.name}", mod.summary
    for setting in contents.first.settings:
        path = f"models/{contents.first.name}.html#{setting.name}"
        yield "setting", setting.name, path, plain(setting.meaning), SETTING_WORDS.get(setting.name, "")
    for number, trouble in enumerate(contents.guides.troubles, 1):
        yield "problem", plain(trouble.symptom), f"troubles.html#problem-{number}", plain(trouble.remedy)
    for number, host in enumerate(contents.hosts, 1):
        yield "problem", host["host"], f"troubles.html#host-{number}", f"{host['what']}. {host['remedy']}"
    for code, meaning in contents.guides.exit_codes.items():
        yield "exit code", str(code), f"troubles.html#code-{code}", meaning


def _questions(contents: SiteContents) -> Iterator[tuple[str, ...]]:
    """Yield what leads to an answer of a page: uses, upgrades, vulnerabilities, packages."""
    for use in contents.order:
        words = " ".join(SYNONYMS.get(word, "") for word in (use, *use.split()))
        yield "question", f"Which model for {use}?", f"index.html#for={quote_plus(use)}", ordered_by(use), words
    changes, cves = "see what changes if you pull today", "see which images have a CVE or a package"
    yield "how to", changes, "upgrade.html", "by tag, day, digest or image ID", "update upgrade newer"
    yield "how to", cves, "vulnerabilities.html", "known vulnerabilities", "security scan grype cve sbom"
    for row in contents.vulnerabilities:
        about = f"{row.severity}: {', '.join(row.packages)}"
        yield "CVE", row.id, f"vulnerabilities.html#q={quote_plus(row.id)}", about, " ".join(row.aliases)
    for name, versions in package_versions(contents.packages).items():
        yield "package", name, f"vulnerabilities.html#q={quote_plus(name)}", ", ".join(versions)


def feed(contents: SiteContents) -> str:
    """Return the feed, newest image first; its times are those of the catalog."""
    changes = [change for night in contents.status.nights for change in night.changes][:_ENTRIES]
    root = Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _text(root, "title", f"{contents.title}: new images")
    _text(root, "id", f"{contents.source}#images")
    # Atom requires a time (RFC 4287, section 4.1.1).
    _text(root, "updated", changes[0].time if changes else "1970-01-01T00:00:00Z")
    _text(SubElement(root, "author"), "name", contents.title)
    SubElement(root, "link", rel="self", href="feed.xml")
    for change in changes:
        _entry(root, contents, change)
    indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _entry(root: Element, contents: SiteContents, change: NightChange) -> None:
    entry = SubElement(root, "entry")
    verb = "rolled back to" if change.kind == "rollback" else "published"
    _text(entry, "title", f"{change.target} {verb}: {', '.join(change.changed)}")
    _text(entry, "id", f"{contents.source}#{change.digest}-{change.time}")
    _text(entry, "updated", change.time)
    if change.slug:
        SubElement(entry, "link", rel="alternate", type="text/html", href=f"images/{change.slug}.html")
    _text(entry, "summary", f"{contents.stock.records.registry}@{change.digest} · {', '.join(change.tags)}")
    if change.notes:
        _text(entry, "content", "\n".join(f"- {line}" for line in change.notes))


def _text(parent: Element, name: str, text: str) -> None:
    SubElement(parent, name).text = _NOT_XML.sub(" ", text)
