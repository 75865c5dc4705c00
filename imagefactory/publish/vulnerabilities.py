"""Known vulnerabilities of images: what a scanner found in their packages, attached to each image with date and source.

The scanner is Grype, which the nightly runs on one list of all locked packages; its JSON is read here. Matches are
by package and version, so one scan tells about every image that has the package.
https://github.com/anchore/grype/blob/main/grype/presenter/models/document.go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AliasPath, AwareDatetime, BaseModel, Field, ValidationError

from imagefactory.errors import InputError
from imagefactory.project.locks.files import Frozen
from imagefactory.project.matrix import Severity, VulnerabilityRules
from imagefactory.project.wording import first_problem
from imagefactory.store.digests import Digest
from imagefactory.store.progress import count

VULNERABILITIES_TYPE: Final = "application/vnd.imagefactory.vulnerabilities.v1+json"
SEVERITIES: Final = (*get_args(Severity), "negligible", "unknown")
AGAIN: Final = timedelta(days=7)
"""After this time, an image gets a record again although it would say the same."""
_KINDS: Final = {"pkg:pypi/": "wheel", "pkg:deb/": "deb"}


class Vulnerability(Frozen):
    """A vulnerability of one package."""

    id: str
    aliases: tuple[str, ...] = ()
    severity: Annotated[str, Field(pattern=f"^({'|'.join(SEVERITIES)})$")]
    package: str
    """With its kind, such as `wheel torch`."""
    version: str
    fixed_in: tuple[str, ...] = ()


class VulnerabilityRecord(Frozen):
    """What was known about an image on a day."""

    format: Literal[1] = 1
    digest: str
    scanned: AwareDatetime
    scanner: str
    database: str
    """When the scanner's database was made."""
    not_scanned: tuple[str, ...] = ()
    """Packages of the image that the scanner was not given."""
    found: tuple[Vulnerability, ...] = ()

    @property
    def line(self) -> str:
        """The counts in one line, with their date and source."""
        # By id: what several packages have counts once.
        counts = Counter(flaw.severity for flaw in {flaw.id: flaw for flaw in self.found}.values())
        summary = ", ".join(f"{counts[name]} {name}" for name in SEVERITIES if counts[name]) or "none known"
        missing = f"; not scanned: {count(len(self.not_scanned), 'package')}" if self.not_scanned else ""
        # The first ten characters of a timestamp are its day.
        return f"{summary}{missing} ({self.scanner} on {self.scanned:%Y-%m-%d}, database of {self.database[:10]})"

    def refused_by(self, rules: VulnerabilityRules) -> list[str]:
        """List the vulnerabilities that matrix.yaml does not allow."""
        return [
            f"{flaw.id} ({flaw.severity}) in {flaw.package} {flaw.version}"
            for flaw in self.found
            if not {flaw.id, *flaw.aliases} & rules.accept.keys()
            if {flaw.id, *flaw.aliases} & {*rules.ids} or (flaw.fixed_in and flaw.severity in rules.refused)
        ]

    def repeats(self, earlier: VulnerabilityRecord | None) -> bool:
        """Whether an earlier record is recent and says the same."""
        if earlier is None or (earlier.found, earlier.not_scanned) != (self.found, self.not_scanned):
            return False
        return self.scanned - earlier.scanned < AGAIN


class _Match(BaseModel):
    """A package with a vulnerability, as Grype found it; what is not read here is ignored."""

    id: str = Field(validation_alias=AliasPath("vulnerability", "id"))
    severity: str = Field("unknown", validation_alias=AliasPath("vulnerability", "severity"))
    fixed_in: tuple[str, ...] = Field((), validation_alias=AliasPath("vulnerability", "fix", "versions"))
    related: tuple[dict[str, Any], ...] = Field((), validation_alias="relatedVulnerabilities")
    name: str = Field(validation_alias=AliasPath("artifact", "name"))
    version: str = Field(validation_alias=AliasPath("artifact", "version"))
    purl: str = Field(validation_alias=AliasPath("artifact", "purl"))


class Scan(BaseModel):
    """A result of Grype, as `grype -o json` writes it."""

    matches: tuple[_Match, ...]
    scanner: str = Field(validation_alias=AliasPath("descriptor", "name"))
    version: str = Field(validation_alias=AliasPath("descriptor", "version"))
    scanned: AwareDatetime = Field(validation_alias=AliasPath("descriptor", "timestamp"))
    database: str = Field(validation_alias=AliasPath("descriptor", "db", "status", "built"))

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InputError(
                "bad-scan",
                "The scanner's result cannot be read.",
                where=path,
                why=f"{first_problem(error)}.",
                fix="Write it with Grype: `./inv sbom --target all >packages.cdx.json`, then `grype "
                "sbom:packages.cdx.json --by-cve -o json --file scan.json`.",
            ) from None

    @cached_property
    def found(self) -> list[Vulnerability]:
        """What was found in wheels and Debian packages, the worst first."""
        flaws = []
        for match in self.matches:
            kind = next((kind for start, kind in _KINDS.items() if match.purl.startswith(start)), None)
            severity = match.severity.lower()
            if kind:
                flaw = Vulnerability(
                    id=match.id,
                    aliases=tuple(sorted({str(related.get("id")) for related in match.related} - {match.id})),
                    severity=severity if severity in SEVERITIES else "unknown",
                    package=f"{kind} {match.name}",
                    version=match.version,
                    fixed_in=match.fixed_in,
                )
                flaws.append(flaw)
        return sorted(flaws, key=lambda flaw: (SEVERITIES.index(flaw.severity), flaw.id, flaw.package))

    def record(
        self, digest: Digest, packages: Mapping[str, str], given: Iterable[tuple[str, str]]
    ) -> VulnerabilityRecord:
        """Record what it says about the packages of an image; `given` are those that the scanner looked at."""
        scannable = {(name, version) for name, version in packages.items() if not name.startswith("model ")}
        return VulnerabilityRecord(
            digest=digest,
            scanned=self.scanned,
            scanner=f"{self.scanner} {self.version}",
            database=self.database,
            not_scanned=tuple(sorted(" ".join(package) for package in scannable - set(given))),
            found=tuple(flaw for flaw in self.found if (flaw.package, flaw.version) in scannable),
        )
