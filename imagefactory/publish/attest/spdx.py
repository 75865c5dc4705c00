"""Licence names of Python and Debian packages as SPDX expressions.

A name that SPDX does not have becomes a LicenseRef, which repeats what the package says and claims nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from license_expression import Licensing

UNDECLARED: Final = "NOASSERTION"
"""SPDX's word for a licence that nobody stated."""
_REFERENCE: Final = "LicenseRef-"
_LONGEST_EXPRESSION = 300
_GNU_WORD = re.compile(r"(?:[A-Za-z0-9.]+-)*(?:AGPL|LGPL|GPL)(?![A-Za-z])[A-Za-z0-9.+-]*")

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


@cache
def _licensing() -> Licensing:
    """Load SPDX's list of licences, which takes a moment."""
    from license_expression import get_spdx_licensing  # noqa: PLC0415 - only where expressions are read

    return get_spdx_licensing()


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


def from_classifiers(classifiers: Iterable[str]) -> str | None:
    """Read a licence from trove classifiers; several of them all apply."""
    last = (one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License ::"))
    return every(_CLASSIFIERS[name] for name in last if name in _CLASSIFIERS)


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
    parts = sorted({one for one in expressions if one != UNDECLARED})
    joined = " AND ".join(f"({part})" for part in parts)
    return str(_licensing().parse(joined).simplify()) if parts else None


def copyleft(expression: str) -> tuple[str, ...]:
    """List the GPL, LGPL and AGPL licences in an expression, even if another one may be chosen instead."""
    return tuple(dict.fromkeys(_GNU_WORD.findall(expression)))


def is_unavoidable(expression: str) -> bool:
    """Whether every choice that an expression offers has a GNU licence in it."""

    def bound(part: Any) -> bool:  # noqa: ANN401 - the library's nodes have no types
        if part.isliteral:
            return bool(copyleft(str(part)))
        return (any if isinstance(part, _licensing().AND) else all)(map(bound, part.args))

    return bool(expression) and bound(_licensing().parse(expression))


def _debian_choice(text: str) -> str:
    """Translate a group without commas."""
    words = re.split(r"\s+((?:and/)?or|and)\s+", text.strip(" ,"))
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
        version, later = ("2.0" if family == "LGPL" else "1.0"), "+"
    number = version if "." in version else f"{version}.0"
    return f"{family}-{number}-{'or-later' if later else 'only'}"
