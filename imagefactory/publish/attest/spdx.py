"""Licence names of Python and Debian packages as SPDX expressions.

A name that SPDX does not have becomes a LicenseRef, which repeats what the package says and claims nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

UNDECLARED: Final = "NOASSERTION"
"""SPDX's word for a licence that nobody stated."""
_LONGEST_EXPRESSION = 300

_COPYLEFT = re.compile(r"(?<![A-Za-z])(AGPL|LGPL|GPL)(?=[-0-9.+]|\b)")

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


def from_text(text: str) -> str | None:
    """Read a licence from a free-text field; None if it names no known licence."""
    text = " ".join(text.split())
    if not text or len(text) > _LONGEST_EXPRESSION:
        return None
    return _SPELLINGS.get(text.lower()) or _canonical(text)


def from_classifiers(classifiers: Iterable[str]) -> str | None:
    """Read a licence from trove classifiers; several of them all apply."""
    found = {
        _CLASSIFIERS[last]
        for classifier in classifiers
        if classifier.startswith("License ::") and (last := classifier.rpartition(" :: ")[2]) in _CLASSIFIERS
    }
    return every(found)


def reference(text: str) -> str:
    """Make a LicenseRef from a name that SPDX does not have."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:60].strip("-")
    return f"LicenseRef-{slug}" if slug else UNDECLARED


def from_debian(name: str) -> str:
    """Translate a licence of a machine-readable copyright file: short names with `and`, `or`, commas and exceptions.

    https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/#license-syntax: a comma gives `and` the lower
    precedence, which is the one place where it differs from SPDX.
    """
    groups = re.split(r",\s*and\s+", name.strip())
    return every(_debian_choice(group) for group in groups) or UNDECLARED


def every(expressions: Iterable[str]) -> str | None:
    """Join expressions that all apply, without duplicates; None if there are none."""
    parts = sorted({part for expression in expressions for part in _conjuncts(expression)} - {UNDECLARED})
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else " AND ".join(_grouped(part) for part in parts)


def copyleft(expression: str) -> tuple[str, ...]:
    """List the GPL, LGPL and AGPL licences in an expression, even if another one may be chosen instead."""
    words = re.findall(r"[A-Za-z0-9.+-]+", expression)
    return tuple(dict.fromkeys(word for word in words if _COPYLEFT.search(word)))


def unavoidable(expression: str) -> str:
    """Drop choices that offer an alternative to the GNU licences."""
    kept = [
        part
        for part in _conjuncts(expression)
        if all(copyleft(alternative) for alternative in part.split(" OR "))
    ]
    return " AND ".join(_grouped(part) for part in kept)


def _debian_choice(text: str) -> str:
    """Translate a group without commas."""
    alternatives = re.split(r"\s+(?:and/)?or\s+", text.strip(" ,"))
    sums = [re.split(r"\s+and\s+", alternative.strip(" ,")) for alternative in alternatives]
    return " OR ".join(" AND ".join(map(_debian_name, parts)) for parts in sums)


def _debian_name(text: str) -> str:
    """Translate one short name, with its exception where it has one."""
    with_exception = re.fullmatch(r"(.+?)\s+with\s+(.+?)[- ]exception", text, re.IGNORECASE) or re.fullmatch(
        r"(.+?)(?:-with)?-([a-z]+)-exception", text, re.IGNORECASE
    )
    if with_exception:
        licence, exception = _debian_name(with_exception[1]), _EXCEPTIONS.get(with_exception[2].lower())
        combined = exception and _canonical(f"{licence} WITH {exception}")
        return combined or reference(text)
    gnu = _GNU.fullmatch(text) or _GNU.fullmatch(text.replace(".0", ""))
    if gnu:
        return _gnu(*gnu.groups())
    return _DEBIAN.get(text.lower()) or _canonical(text) or reference(text)


def _gnu(family: str, version: str | None, later: str | None) -> str:
    if version is None:
        version, later = ("2.0" if family == "LGPL" else "1.0"), "+"
    number = version if "." in version else f"{version}.0"
    return f"{family}-{number}-{'or-later' if later else 'only'}"


def _conjuncts(expression: str) -> list[str]:
    """Split an expression at ANDs outside of parentheses; one with an OR there stays whole."""
    parts, depth, current = [], 0, ""
    for word in re.split(r"(\s+|[()])", expression):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word == "OR":
            return [expression]
        if depth == 0 and word == "AND":
            parts.append(current.strip())
            current = ""
        else:
            current += word
    return [part[1:-1] if part.startswith("(") else part for part in (*parts, current.strip())]


def _grouped(expression: str) -> str:
    return f"({expression})" if " OR " in expression else expression


def _canonical(text: str) -> str | None:
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return None
