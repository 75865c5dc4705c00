"""Reads the licences that packages declare, as SPDX expressions: from METADATA of wheels, and Debian copyright files.

This happens once, when a file is locked, and is recorded (see licence_record). A name that SPDX does not have becomes a
LicenseRef, which repeats what the package says and claims nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal
from zipfile import ZipFile

from debian.deb822 import Deb822

from imagefactory.assemble.layers.debian.deb import DebPackage, data_files, reading
from imagefactory.project.licences import DECLARED_ELSEWHERE

if TYPE_CHECKING:
    from license_expression import Licensing

UNDECLARED: Final = "NOASSERTION"
"""SPDX's word for a licence that nobody stated."""
_REFERENCE: Final = "LicenseRef-"
_LONGEST_EXPRESSION = 300
_GNU_WORD = re.compile(r"(?<![A-Za-z0-9.-])(?:[A-Za-z0-9.]+-)*(?:AGPL|LGPL|GPL)(?![A-Za-z])[A-Za-z0-9.+-]*")

_CLASSIFIERS: Final = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "Other/Proprietary License": "LicenseRef-Proprietary",
}
"""The last part of a trove classifier. "BSD License" is not here: it does not say which."""

_SPELLINGS: Final = {
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "the mit license": "MIT",
    "isc license": "ISC",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "2-clause bsd license": "BSD-2-Clause",
    "nvidia proprietary software": "LicenseRef-NVIDIA-Proprietary",
}

_DEBIAN: Final = {
    "agpl-3": "AGPL-3.0-only",
    "agpl-3+": "AGPL-3.0-or-later",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "artistic-2": "Artistic-2.0",
    "bsd3": "BSD-3-Clause",
    "bsl-1": "BSL-1.0",
    "cc0": "CC0-1.0",
    "expat": "MIT",
    "gfdl-1.2+": "GFDL-1.2-or-later",
    "gfdl-1.3+-no-invariant": "GFDL-1.3-no-invariants-or-later",
    "gfdl-niv-1.3": "GFDL-1.3-no-invariants-only",
    "gfdl-niv-1.3+": "GFDL-1.3-no-invariants-or-later",
    "mit/x11": "MIT",
    "openldap-2.8": "OLDAP-2.8",
}
"""Names in machine-readable copyright files that SPDX spells differently."""

_GNU = re.compile(r"(A?L?GPL)-?(?:v?([123](?:\.[01])?))?(\+)?")
_EXCEPTIONS: Final = {
    "autoconf": "Autoconf-exception-generic",
    "autoconf-data": "Autoconf-exception-generic",
    "bison": "Bison-exception-2.2",
    "bison-2.2": "Bison-exception-2.2",
    "libtool": "Libtool-exception",
    "texinfo": "Texinfo-exception",
    "linux-syscall-note": "Linux-syscall-note",
}


_LOADING = Lock()


def _licensing() -> Licensing:
    """Return SPDX's list of licences; the first of several threads loads it, and the others wait."""
    with _LOADING:
        return _loaded()


@cache
def _loaded() -> Licensing:
    from license_expression import get_spdx_licensing  # noqa: PLC0415 - only where expressions are read; it is slow

    licensing = get_spdx_licensing()
    # `parse` builds the automaton when it is first needed, and lets other threads use it before it is whole.
    licensing.get_advanced_tokenizer()
    return licensing


def from_text(text: str) -> str | None:
    """Read a licence from a free-text field; None if it names no known licence."""
    from license_expression import ExpressionError  # noqa: PLC0415

    text = " ".join(text.split())
    if not text or len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        parsed = _licensing().parse(_SPELLINGS.get(text.lower(), text))
    except ExpressionError:
        return None
    unknown = _licensing().unknown_license_keys(parsed)
    return None if any(not key.startswith(_REFERENCE) for key in unknown) else str(parsed)


def reference(text: str) -> str:
    """Make a LicenseRef from a name that SPDX does not have."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:60].strip("-")
    return f"{_REFERENCE}{slug}" if slug else UNDECLARED


def is_known(expression: str) -> bool:
    """Whether an expression names licences of SPDX's list only."""
    return expression != UNDECLARED and _REFERENCE not in expression


def from_debian(name: str) -> str:
    """Translate a licence of a machine-readable copyright file: short names with `and`, `or`, commas and exceptions.

    https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/#license-syntax: a comma gives `and` the lower
    precedence, which is the one place where it differs from SPDX.
    """
    groups = re.split(r",\s*and\s+", name.strip())
    return every(_debian_choice(group) for group in groups) or UNDECLARED


def every(expressions: Iterable[str]) -> str | None:
    """Join expressions that all apply, without duplicates; None if there are none."""
    parts = sorted({expression for expression in expressions if expression != UNDECLARED})
    joined = " AND ".join(f"({part})" for part in parts)
    return str(_licensing().parse(joined).simplify()) if parts else None


def copyleft(expression: str) -> tuple[str, ...]:
    """List the GPL, LGPL and AGPL licences in an expression, even if another one may be chosen instead."""
    return tuple(dict.fromkeys(_GNU_WORD.findall(expression)))


@cache
def is_unavoidable(expression: str) -> bool:
    """Whether every choice that an expression offers has a GNU licence in it."""

    def bound(part: Any) -> bool:  # noqa: ANN401 - the library's nodes have no types
        if part.isliteral:
            return bool(copyleft(str(part)))
        return (any if isinstance(part, _licensing().AND) else all)(map(bound, part.args))

    return bool(expression) and bound(_licensing().parse(expression))


def _debian_choice(text: str) -> str:
    """Translate a group without commas."""
    words = re.split(r"(?<!\s)\s+((?:and/)?or|and)\s+", text.strip(" ,"))
    names = [_debian_name(name.strip(" ,")) for name in words[::2]]
    operators = ["AND" if word == "and" else "OR" for word in words[1::2]]
    return " ".join(word for pair in zip(names, [*operators, ""], strict=True) for word in pair).strip()


def _debian_name(text: str) -> str:
    """Translate one short name, with its exception where it has one."""
    with_exception = re.fullmatch(r"(.+?)\s+with\s+(.+?)[- ]exception", text, re.IGNORECASE) or re.fullmatch(
        r"(.+?)(?:-with)?-([a-z]+)-exception", text, re.IGNORECASE
    )
    if with_exception:
        licence, exception = _debian_name(with_exception[1]), _EXCEPTIONS.get(with_exception[2].lower())
        return (exception and from_text(f"{licence} WITH {exception}")) or reference(text)
    gnu = _GNU.fullmatch(text) or _GNU.fullmatch(text.replace(".0", ""))
    if gnu:
        return _gnu(*gnu.groups())
    return _DEBIAN.get(text.lower()) or from_text(text) or reference(text)


def _gnu(family: str, version: str | None, later: str | None) -> str:
    if version is None:
        # Without a number, any version ever published may be chosen (section 9 of the GPL 2); the LGPL began with 2.0.
        version, later = ("2.0" if family == "LGPL" else "1.0"), "+"
    number = version if "." in version else f"{version}.0"
    return f"{family}-{number}-{'or-later' if later else 'only'}"


Says = Literal["expression", "field", "classifier", "text", "copyright", "elsewhere", "nothing"]
"""Where a package declares its licence: License-Expression, License, a classifier, a licence text, a copyright file."""
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
    # At the top: METADATA of a vendored package is further down.
    metadata = next(name for name in names if name.count("/") == 1 and name.endswith(".dist-info/METADATA"))
    headers = HeaderParser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
    texts = [
        archive.read(info).decode("utf-8", "replace")
        for info in archive.infolist()
        if _LICENCE_FILE.fullmatch(info.filename) and info.file_size <= _MAX_TEXT
    ]
    field = headers.get("License", "")
    licence, says = _wheel_licence(headers)
    families = {name.partition("-")[0] for name in copyleft(licence)}
    mentioned = {name for text in (*texts, field) for name in gnu_licences(text)}
    notices = sorted(name for name in mentioned if name.partition("-")[0] not in families)
    return DeclaredLicence(licence, says, tuple(notices))


def _wheel_licence(headers: Message) -> tuple[str, Says]:
    if expression := headers.get("License-Expression", ""):
        return from_text(expression) or reference(expression), "expression"
    field = headers.get("License", "")
    if named := from_text(field):
        return named, "field"
    classifiers = (line for line in headers.get_all("Classifier", []) if line.startswith("License ::"))
    if licences := every(_CLASSIFIERS.get(line.rpartition(" :: ")[2], UNDECLARED) for line in classifiers):
        return licences, "classifier"
    if field and "\n" not in field.strip():
        return reference(field), "field"
    elsewhere = DECLARED_ELSEWHERE.get(headers.get("Name", ""))
    return (elsewhere, "elsewhere") if elsewhere else (UNDECLARED, "nothing")


def deb_licence(package: DebPackage, file: Path) -> DeclaredLicence | str:
    """Return the licence of a Debian package, or the name of the package whose documentation it shares."""
    folder = f"{DOCUMENTS}/{package.name}"
    with reading(package), data_files(file) as members:
        for path, link, content in members:
            if link and path in (folder, f"{folder}/copyright"):
                return link.removesuffix("/copyright").rpartition("/")[2]
            if content is not None and path == f"{folder}/copyright":
                return copyright_licence(content().decode("utf-8", "replace"))
    return DeclaredLicence(UNDECLARED, "nothing")


def copyright_licence(text: str) -> DeclaredLicence:
    """Return the licence in a Debian copyright file; one in prose is read for its references to common licences.

    `debian.copyright` is too strict for this: it refuses files that lack a Format field (libwayland's, for one).
    """
    paragraphs = Deb822.iter_paragraphs(text.splitlines(), use_apt_pkg=False)
    named = (paragraph.get("License", "").partition("\n")[0].strip() for paragraph in paragraphs)
    expression = every(from_debian(name) for name in named if name)
    if expression:
        return DeclaredLicence(expression, "copyright")
    later = "+" if re.search(r"any\s+later\s+version", text) else ""
    pointed = re.findall(r"/usr/share/common-licenses/([A-Za-z]+(?:-[0-9](?:\.[0-9])?)?)", text)
    names = {"BSD-3-Clause" if name == "BSD" else name for name in pointed}
    spoken = (from_debian(f"{name}{later}" if "GPL-" in name else name) for name in names)
    return DeclaredLicence(every(spoken) or UNDECLARED, "text")


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
    names: set[str] = set()
    for match in (*matches, *_GNU_NAME.finditer(rest), *_GNU_TAG.finditer(rest)):
        kind = (match["kind"] or " ").strip().upper()[:1]
        family = f"{kind if kind in ('A', 'L') else ''}GPL"
        version = match["version"] or ""
        names.add(f"{family}-{version if '.' in version else version + '.0'}" if version else family)
    versioned = {name.partition("-")[0] for name in names if "-" in name}
    return {name for name in names if "-" in name or name not in versioned}
