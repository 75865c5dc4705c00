"""Signed statements: an in-toto statement in a DSSE envelope, in a sigstore bundle, as cosign attaches them.

One format for keys and for identities, so that cosign and other tools find and check what we attach.
https://github.com/secure-systems-lab/dsse, https://docs.sigstore.dev/about/bundle/,
https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final, Self

from imagefactory.store.digests import Digest, canonical_json, parse_json

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
SIGNATURE_PREDICATE: Final = "https://sigstore.dev/cosign/sign/v1"
"""What `cosign verify` looks for: a statement that says nothing but "I signed this"."""


class BadBundleError(ValueError):
    """An attachment is not a bundle with one signed statement."""


@dataclass(frozen=True)
class Statement:
    """A statement about an image."""

    predicate_type: str
    predicate: dict[str, Any]
    subject: Digest
    subject_name: str

    def payload(self) -> bytes:
        """Write the in-toto statement, the same for the same content."""
        algorithm, _, value = self.subject.partition(":")
        return canonical_json(
            {
                "_type": STATEMENT_TYPE,
                "subject": [{"name": self.subject_name, "digest": {algorithm: value}}],
                "predicateType": self.predicate_type,
                "predicate": self.predicate,
            }
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        try:
            document = parse_json(payload)
            [subject] = document["subject"]
            return cls(
                str(document["predicateType"]),
                dict(document["predicate"]),
                Digest(f"sha256:{subject['digest']['sha256']}"),
                str(subject.get("name", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadBundleError(f"its statement cannot be read ({type(error).__name__})") from None


@dataclass(frozen=True)
class Bundle:
    """A signed statement as it is stored; do not trust anything in it before checking the signature."""

    data: bytes
    payload_type: str
    payload: bytes
    signature: bytes
    key_hint: str | None
    """A hint at the key that signed it; None if it was signed with an identity."""

    @classmethod
    def read(cls, data: bytes) -> Self:
        try:
            document = parse_json(data)
            envelope = document["dsseEnvelope"]
            # DSSE allows several signatures, a bundle exactly one.
            [signature] = envelope["signatures"]
            key = document["verificationMaterial"].get("publicKey")
            return cls(
                data,
                str(envelope["payloadType"]),
                base64.b64decode(envelope["payload"], validate=True),
                base64.b64decode(signature["sig"], validate=True),
                None if key is None else str(key.get("hint", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise BadBundleError(f"it is not a signed statement ({type(error).__name__})") from None

    @property
    def claim(self) -> str:
        """The type of statement that it claims to hold; empty if that cannot be read."""
        try:
            return Statement.read(self.payload).predicate_type
        except BadBundleError:
            return ""


def write_bundle(payload: bytes, signature: bytes, hint: str) -> bytes:
    return canonical_json(
        {
            "mediaType": MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": hint}},
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
    )


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """Encode type and payload unambiguously (DSSE's pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
