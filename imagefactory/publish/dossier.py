"""The dossier of an image: all that is attached to it, from one listing of its referrers.

Records are read when somebody first asks for them, and only once. Whoever may write to a registry can attach anything,
so there is a bound on what is read, what is no record is named and left out, and a record counts for the image that it
names, whatever it is attached to.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING, Final, Self, TypeVar

from pydantic import BaseModel, ValidationError

from imagefactory.errors import REGISTRY_OUTAGES, FactoryError, InputError, RegistryError, clean
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import contents
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import Attachment
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.wording import first_problem
from imagefactory.publish.attest import bundles
from imagefactory.publish.attest.bundles import BadBundleError, Bundle
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE, VulnerabilityRecord
from imagefactory.store.digests import Digest, Sha256

if TYPE_CHECKING:
    from imagefactory.check.answers.record import AnswersRecord
    from imagefactory.check.answers.result import AnswersResult
    from imagefactory.check.smoke.record import SmokeRecord

SMOKE_TYPE: Final = "application/vnd.imagefactory.smoke.v1+json"
ANSWERS_TYPE: Final = "application/vnd.imagefactory.answers.v1+json"
PANEL_TYPE: Final = "application/vnd.imagefactory.panel.v1+json+gzip"
SBOM_TYPE: Final = "application/vnd.cyclonedx+json"
_RECORDS: Final = {SMOKE_TYPE: "smoke record", ANSWERS_TYPE: "answers record", VULNERABILITIES_TYPE: "scan record"}
_LARGEST: Final = 32 * 1024 * 1024
"""Bytes of one attachment. A bundle holds an SBOM of up to 16 MiB, in base64."""
_MOST_BYTES: Final = 2 * _LARGEST
"""Bytes of all attachments of one type."""
_MOST: Final = 1000
"""How many attachments of one type are read."""

_LONGEST: Final = 300
"""Characters of the reason why a record is left out: some of them are its author's."""
_AHEAD: Final = timedelta(days=1)
"""How far the clock of whoever wrote a record may be ahead."""
Record = TypeVar("Record", bound=BaseModel)

Content = tuple[Digest, bytes | str]
"""An artifact and what it holds; a string is the reason why that cannot be read."""


@dataclass
class _Seen:
    """What was read so far. Its keys are digests, so a dossier shares it with those that extend it."""

    listed: list[Descriptor] | None = None
    payloads: dict[Digest, list[Descriptor] | None] = field(default_factory=dict)
    """Artifact -> what its manifest lists; None if the registry does not have it."""
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    left_out: dict[Digest, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dossier:
    """What is attached to an image, listed when somebody first asks; what this process attaches is added to it."""

    repository: Repository
    image: Digest
    subject: Descriptor | None = None
    """The image as attachments name it; asked for if it is not known."""
    added: tuple[Descriptor, ...] = ()
    _seen: _Seen = field(default_factory=_Seen, repr=False, compare=False)

    @classmethod
    def read(cls, repository: Repository, image: Digest) -> Self:
        """List what is attached to an image."""
        dossier = cls(repository, image)
        dossier._seen.listed = referrers.find(repository, image)
        return dossier

    @classmethod
    def begin(cls, repository: Repository, image: Digest, subject: Descriptor, *, is_empty: bool = False) -> Self:
        """Begin with an image that was pushed; it is listed when somebody first asks, unless nothing can be there."""
        return cls(repository, image, subject, _seen=_Seen([] if is_empty else None))

    @property
    def attached(self) -> list[Descriptor]:
        if self._seen.listed is None:
            self._seen.listed = referrers.find(self.repository, self.image)
        return list({artifact.digest: artifact for artifact in (*self._seen.listed, *self.added)}.values())

    def as_of_now(self) -> Self:
        """Return the dossier as the registry has it when it is next asked; what was read stays known."""
        return replace(self, added=(), _seen=replace(self._seen, listed=None))

    def attach(self, *attachments: Attachment) -> Self:
        """Attach artifacts to the image; return the dossier with them, without listing it again."""
        subject = self.subject or self.repository.require_manifest(self.image).descriptor()
        added = referrers.attach_many(self.repository, subject, attachments)
        for artifact, attachment in zip(added, attachments, strict=True):
            described = [payload.descriptor() for payload in attachment.payloads]
            self._seen.payloads[artifact.digest] = described
            for payload, descriptor in zip(attachment.payloads, described, strict=True):
                if isinstance(payload.content, bytes):
                    self._seen.blobs[descriptor.digest] = payload.content
        return replace(self, subject=subject, added=(*self.added, *added))

    def contents(self, artifact_type: str, media_type: str = "", *, decides: bool = False) -> Iterator[Content]:
        """Iterate over what the artifacts of a type hold, each content once.

        What cannot be read stays without effect: only what is required must be there. But if it `decides` about a tag,
        and the registry sends other bytes than it was asked for, those may be the ones that refuse it.
        """
        read: set[Digest] = set()
        left = _MOST_BYTES
        for number, artifact in enumerate(entry for entry in self.attached if entry.artifact_type == artifact_type):
            if number == _MOST or left <= 0:
                yield artifact.digest, f"it is not read, nor what follows: {number} others have all that is read"
                return
            try:
                payloads = self._contents_of(artifact.digest)
                if payloads is None:
                    yield artifact.digest, "it is listed, but not there"
                    continue
                for payload in payloads:
                    if payload.media_type == (media_type or artifact_type) and payload.digest not in read:
                        read.add(payload.digest)
                        content = self._blob(payload.digest, min(left, _LARGEST))
                        left -= len(content)
                        yield artifact.digest, content
            except InputError as error:
                if decides:
                    raise
                yield artifact.digest, f"its bytes are not what its name says: {error.why}"
            except RegistryError as error:
                if error.name in REGISTRY_OUTAGES:
                    raise
                yield artifact.digest, f"it cannot be read: {error.what} {error.why}"

    def _contents_of(self, artifact: Digest) -> list[Descriptor] | None:
        if artifact not in self._seen.payloads:
            manifest = self.repository.manifest(artifact)
            self._seen.payloads[artifact] = contents(self.repository, manifest) if manifest else None
        return self._seen.payloads[artifact]

    def _blob(self, digest: Digest, most: int) -> bytes:
        if digest not in self._seen.blobs:
            self._seen.blobs[digest] = self.repository.blob(digest, most)
        return self._seen.blobs[digest]

    def _records(self, artifact_type: str, kind: type[Record], dated: Callable[[Record], datetime]) -> Iterator[Record]:
        """Iterate over records that can be read; what cannot never was one: a digest names its bytes.

        One from the future would outrank every true one, so it does not count, either.
        """
        for artifact, content in self.contents(artifact_type, decides=True):
            if isinstance(content, str):
                if self._seen.payloads.get(artifact, ()) is None:
                    continue  # it was deleted, and the list was not
                why = content
            else:
                try:
                    record = kind.model_validate_json(content)
                except ValidationError as error:
                    why = first_problem(error)
                else:
                    if dated(record) < datetime.now(UTC) + _AHEAD:
                        yield record
                        continue
                    why = f"it is dated {dated(record):%Y-%m-%d}, which is in the future"
            why = shorten(clean(why), _LONGEST, placeholder=" ...")
            self._seen.left_out[artifact] = f"{_RECORDS[artifact_type]}: {artifact} is left out: {why}"

    @property
    def left_out(self) -> tuple[str, ...]:
        """Why attached records do not count, of those that were read so far."""
        return tuple(self._seen.left_out.values())

    @cached_property
    def smoke_records(self) -> tuple[SmokeRecord, ...]:
        from imagefactory.check.smoke.record import SmokeRecord  # noqa: PLC0415 - few ask for it

        return tuple(self._records(SMOKE_TYPE, SmokeRecord, lambda record: record.started))

    def smoke(self, key: Sha256) -> SmokeRecord | None:
        """Merge the smoke records about an image of a plan; of a level that ran more than once, the last counts."""
        merged: SmokeRecord | None = None
        about = [record for record in self.smoke_records if (record.digest, record.plan_key) == (self.image, key)]
        for record in sorted(about, key=lambda record: record.started):
            merged = record.with_earlier(merged) if merged else record
        return merged

    @cached_property
    def answers_records(self) -> tuple[AnswersRecord, ...]:
        from imagefactory.check.answers.record import AnswersRecord  # noqa: PLC0415 - few ask for it

        return tuple(self._records(ANSWERS_TYPE, AnswersRecord, lambda record: record.started))

    def answers(self, key: Sha256, *others: AnswersRecord) -> AnswersRecord | None:
        """Return the newest verdict about the answers of a plan's image; a failed attempt does not undo one."""
        about = [
            record
            for record in (*self.answers_records, *others)
            if (record.digest, record.plan_key) == (self.image, key)
        ]
        return max(
            about,
            key=lambda record: (record.verdict != "cannot tell", record.started, record.accepted != ""),
            default=None,
        )

    def measurements(self) -> list[AnswersResult]:
        """Read what was measured of the image's answers, newest first; what cannot be read is measured again."""
        from imagefactory.check.answers.result import AnswersResult  # noqa: PLC0415 - few ask for it

        results: list[AnswersResult] = []
        for _, content in self.contents(ANSWERS_TYPE, PANEL_TYPE):
            try:
                # 31: a gzip header (16) and the largest window (15). What inflates to more is cut, and no JSON then.
                text = zlib.decompressobj(wbits=31).decompress(content, _LARGEST) if isinstance(content, bytes) else b""
                results.append(AnswersResult.model_validate_json(text))
            except (zlib.error, ValidationError, FactoryError):
                continue
        about = [result for result in results if result.bound.digest == self.image]
        return sorted(about, key=lambda result: result.started, reverse=True)

    @cached_property
    def scan(self) -> VulnerabilityRecord | None:
        """The newest record of known vulnerabilities."""
        records = self._records(VULNERABILITIES_TYPE, VulnerabilityRecord, lambda record: record.scanned)
        about = [record for record in records if record.digest == self.image]
        return max(about, key=lambda record: record.scanned, default=None)

    @property
    def scan_line(self) -> str:
        """What the newest scan says, or why it cannot be read; empty if there is none."""
        try:
            return self.scan.line if self.scan else ""
        except FactoryError as error:
            return f"{error.what} {error.why}"

    @cached_property
    def bundles(self) -> tuple[tuple[Digest, Bundle | str], ...]:
        """Signed statements, or the reasons why they cannot be read; nobody has checked who signed them."""
        return tuple(_read_bundles(self.contents(bundles.MEDIA_TYPE)))

    @cached_property
    def sboms(self) -> tuple[Content, ...]:
        """The SBOMs that are attached unsigned."""
        return tuple(self.contents(SBOM_TYPE))


def _read_bundles(attached: Iterable[Content]) -> Iterator[tuple[Digest, Bundle | str]]:
    for artifact, content in attached:
        try:
            yield artifact, content if isinstance(content, str) else Bundle.read(content)
        except BadBundleError as error:
            yield artifact, str(error)
