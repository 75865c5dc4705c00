"""Reads the licences that packages declare: wheels in their METADATA, Debian packages in their copyright file.

This happens once, when a file is locked, and is recorded (see licence_record). A declaration that is no SPDX name
becomes a LicenseRef.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final, Literal
from zipfile import ZipFile

from debian.deb822 import Deb822

from imagefactory.assemble.layers.debian.deb import DebPackage, data_files, reading
from imagefactory.publish.attest import spdx

Says = Literal["expression", "field", "classifier", "text", "copyright", "elsewhere", "nothing"]
"""Where a package declares its licence: License-Expression, License, a classifier, a licence text, a copyright file."""
SAID_ELSEWHERE: Final[Mapping[str, str]] = {
    # In the SBOM of its wheel.
    "kernels-data": "Apache-2.0",
    # In the headers of its source files.
    "nvshmem4py-cu13": "Apache-2.0",
    # In its repository; other releases of it have metadata that say so.
    "sentencepiece": "Apache-2.0",
}
"""The licences of distributions whose metadata name none, and where they are declared."""
DOCUMENTS: Final = "usr/share/doc"
_LICENCE_FILE = re.compile(r"[^/]+\.dist-info/(?:.*/)?[^/]*(LICEN[CS]E|COPYING|NOTICE|3RD|THIRD)[^/]*", re.IGNORECASE)
_MAX_TEXT = 4_000_000


@dataclass(frozen=True)
class DeclaredLicence:
    """A package's licence as an SPDX expression, where it is declared, and GNU licences that its notices mention."""

    licence: str
    says: Says
    notices: tuple[str, ...] = ()


def wheel_licence(archive: ZipFile) -> DeclaredLicence:
    names = archive.namelist()
    metadata = next(name for name in names if name.count("/") == 1 and name.endswith(".dist-info/METADATA"))
    headers = HeaderParser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
    texts = [
        archive.read(info).decode("utf-8", "replace")
        for info in archive.infolist()
        if _LICENCE_FILE.fullmatch(info.filename) and info.file_size <= _MAX_TEXT
    ]
    field = headers.get("License", "")
    licence, says = _wheel_licence(headers)
    own = {name.partition("-")[0] for name in spdx.copyleft(licence)}
    mentioned = {name for text in (*texts, field) for name in gnu_licences(text)}
    notices = sorted(name for name in mentioned if name.partition("-")[0] not in own)
    return DeclaredLicence(licence, says, tuple(notices))


def _wheel_licence(headers: Message) -> tuple[str, Says]:
    if expression := headers.get("License-Expression", ""):
        return spdx.from_text(expression) or spdx.reference(expression), "expression"
    field = headers.get("License", "")
    if named := spdx.from_text(field):
        return named, "field"
    if known := spdx.from_classifiers(headers.get_all("Classifier", [])):
        return known, "classifier"
    if field and "\n" not in field.strip():
        return spdx.reference(field), "field"
    elsewhere = SAID_ELSEWHERE.get(headers.get("Name", ""))
    return (elsewhere, "elsewhere") if elsewhere else (spdx.UNDECLARED, "nothing")


def deb_licence(package: DebPackage, file: Path) -> DeclaredLicence | str:
    """Return the licence of a Debian package, or the name of the package whose documentation it shares."""
    folder = f"{DOCUMENTS}/{package.name}"
    with reading(package), data_files(file) as members:
        for path, link, content in members:
            if link and path in (folder, f"{folder}/copyright"):
                return link.removesuffix("/copyright").rpartition("/")[2]
            if content is not None and path == f"{folder}/copyright":
                return copyright_licence(content().decode("utf-8", "replace"))
    return DeclaredLicence(spdx.UNDECLARED, "nothing")


def copyright_licence(text: str) -> DeclaredLicence:
    """Return the licence in a Debian copyright file; one in prose is read for its references to common licences.

    `debian.copyright` is too strict for this: it refuses files that lack a Format field (libwayland's, for one).
    """
    paragraphs = Deb822.iter_paragraphs(text.splitlines(), use_apt_pkg=False)
    named = (paragraph.get("License", "").partition("\n")[0].strip() for paragraph in paragraphs)
    found = spdx.every(spdx.from_debian(name) for name in named if name)
    if found:
        return DeclaredLicence(found, "copyright")
    later = "+" if re.search(r"any\s+later\s+version", text) else ""
    pointed = re.findall(r"/usr/share/common-licenses/([A-Za-z]+(?:-[0-9](?:\.[0-9])?)?)", text)
    names = {"BSD-3-Clause" if name == "BSD" else name for name in pointed}
    spoken = (spdx.from_debian(f"{name}{later}" if "GPL-" in name else name) for name in names)
    return DeclaredLicence(spdx.every(spoken) or spdx.UNDECLARED, "text")


_GNU_NAME = re.compile(
    r"GNU\s+(?P<kind>LESSER\s+|LIBRARY\s+|AFFERO\s+)?GENERAL\s+PUBLIC\s+LICEN[CS]E"
    r"(?:[\s,]+(?:as published by the Free Software Foundation[;,]\s+(?:either\s+)?)?"
    r"v(?:ersion)?\s*(?P<version>[23](?:\.[01])?))?",
    re.IGNORECASE,
)
_GNU_TAG = re.compile(r"(?<![A-Za-z-])(?P<kind>A|L)?GPL-(?P<version>[23](?:\.[01])?)(?![0-9])")
_WHOLE_TEXT = re.compile(
    r"GNU\s+(?P<kind>LESSER\s+|LIBRARY\s+|AFFERO\s+)?GENERAL\s+PUBLIC\s+LICENSE\s+Version\s+(?P<version>[23](?:\.[01])?),"
    r".{1000,40000}?END\s+OF\s+TERMS\s+AND\s+CONDITIONS(?:.{0,5000}?instead\s+of\s+this\s+License)?",
    re.DOTALL,
)
_ONLY_MENTIONED = re.compile(
    # The Mozilla licence lists the licences that it is compatible with; Python's mentions an earlier one of its own.
    r"\"Secondary License\"\s+means.{0,500}?licenses\."
    r"|distributed\s+under\s+the\s+GNU\s+General\s+Public\s+License\s+\(GPL\)",
    re.DOTALL,
)


def gnu_licences(text: str) -> set[str]:
    """Return the GNU licences that a text mentions, with the version if it has one.

    The text of one GNU licence mentions the others, so a whole text counts only as itself.
    """
    matches = list(_WHOLE_TEXT.finditer(text))
    rest = _ONLY_MENTIONED.sub("", _WHOLE_TEXT.sub("", text))
    found: set[str] = set()
    for match in (*matches, *_GNU_NAME.finditer(rest), *_GNU_TAG.finditer(rest)):
        kind = (match["kind"] or " ").strip().upper()[:1]
        family = f"{kind if kind in ('A', 'L') else ''}GPL"
        version = match["version"] or ""
        found.add(f"{family}-{version if '.' in version else version + '.0'}" if version else family)
    versioned = {name.partition("-")[0] for name in found if "-" in name}
    return {name for name in found if "-" in name or name not in versioned}
