"""Signs statements and checks signatures, with a key or with the identity of a CI job (sigstore)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from imagefactory.errors.supply import SigningError
from imagefactory.locks.project import Project
from imagefactory.publish.attest import keys
from imagefactory.publish.attest.bundles import (
    PAYLOAD_TYPE,
    BadBundleError,
    Bundle,
    Statement,
    pre_authentication,
    write_bundle,
)
from imagefactory.store.digests import canonical_json

GITHUB_ISSUER: Final = "https://token.actions.githubusercontent.com"
GITHUB_IDENTITY: Final = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
"""GitHub sets it for a job that may ask for an identity (`permissions: id-token: write`)."""
TRUSTED: Final = "keys"
"""The folder with the public keys (*.pub) that are trusted to sign a checkout's images."""


class NotTrustedError(Exception):
    """A signature is not trusted: it is by somebody else, or over something else. The message is the reason."""


@dataclass(frozen=True)
class KeyVerifier:
    """Trusts the signatures of some keys."""

    trusted: tuple[keys.PublicKey, ...]

    def check(self, bundle: Bundle) -> str:
        """Return who signed a bundle; raise NotTrustedError if that key is not trusted.

        A hint at the key may be missing, and proves nothing: without a match, every key is tried.
        """
        named = [key for key in self.trusted if key.hint == bundle.key_hint] or list(self.trusted)
        for key in named:
            if key.fits(bundle.signature, bundle.signed_bytes):
                return f"key {key.origin}"
        if not self.trusted:
            raise NotTrustedError("it is signed with a key, and no key is known to check with")
        if bundle.key_hint in {key.hint for key in self.trusted}:
            raise NotTrustedError("its signature does not fit its content")
        raise NotTrustedError(f"it is signed with another key (hint {bundle.key_hint or 'none'})")


@dataclass(frozen=True)
class IdentityVerifier:
    """Trusts the signatures of a repository's own workflows."""

    repository: str

    def check(self, bundle: Bundle) -> str:
        """Check certificate, transparency log and signature; needs the network for sigstore's root of trust."""
        try:
            from sigstore.errors import Error  # noqa: PLC0415 - optional
            from sigstore.models import Bundle as SigstoreBundle  # noqa: PLC0415
            from sigstore.verify import policy  # noqa: PLC0415
        except ImportError:
            raise NotTrustedError(
                "it is signed with an identity; checking that needs sigstore (locks/environment/sign.txt)"
            ) from None
        wanted = policy.AllOf(
            [policy.OIDCIssuer(GITHUB_ISSUER), policy.OIDCSourceRepositoryURI(self.repository)]
        )
        try:
            _sigstore_verifier().verify_dsse(SigstoreBundle.from_json(bundle.data), wanted)
        except (Error, ValueError, OSError) as error:
            raise NotTrustedError(f"sigstore says: {error}") from None
        return f"identity {self.repository}"


@cache
def _sigstore_verifier() -> Any:  # noqa: ANN401 - there may be no sigstore to take a type from
    """Fetch sigstore's root of trust, once."""
    from sigstore.verify import Verifier as SigstoreVerifier  # noqa: PLC0415 - optional

    return SigstoreVerifier.production()


@dataclass(frozen=True)
class Trust:
    """Everybody whose signatures a checkout trusts."""

    key: KeyVerifier
    identity: IdentityVerifier

    def check(self, bundle: Bundle) -> str:
        """Verify a bundle by key or by identity, whichever it was signed with."""
        if bundle.payload_type != PAYLOAD_TYPE:
            raise NotTrustedError(f"it holds {bundle.payload_type}, not a statement")
        return (self.identity if bundle.key_hint is None else self.key).check(bundle)


class KeySigner:
    """Signs with a private key; works offline."""

    def __init__(self, key: keys.Private, origin: str) -> None:
        self._key = key
        self._public = keys.PublicKey(key.public_key(), origin)
        self.name = f"key {origin}"
        self.verifier = KeyVerifier((self._public,))

    def sign(self, statement: Statement) -> bytes:
        """Sign a statement with the key."""
        payload = statement.payload()
        signature = keys.sign(self._key, pre_authentication(PAYLOAD_TYPE, payload))
        return write_bundle(payload, signature, self._public.hint)


class IdentitySigner:
    """Signs as a CI job: sigstore issues a certificate for a few minutes, and logs its use publicly."""

    def __init__(self, repository: str) -> None:
        try:
            from sigstore.errors import Error  # noqa: PLC0415 - optional
            from sigstore.models import ClientTrustConfig  # noqa: PLC0415
            from sigstore.oidc import IdentityToken, detect_credential  # noqa: PLC0415
            from sigstore.sign import SigningContext  # noqa: PLC0415
        except ImportError:
            raise SigningError(
                "Signing with an identity needs the package sigstore.",
                where="the environment of this command",
                why="It is not installed: this environment was not made by `./inv`, which adds it where it is needed.",
                fix="Use `./inv`, install locks/environment/sign.txt, or give a key (FACTORY_SIGNING_KEY).",
            ) from None
        self._failures = (Error, ValueError, OSError)
        try:
            self._token = IdentityToken(detect_credential() or "")
            self._context: Any = SigningContext.from_trust_config(ClientTrustConfig.production())
        except self._failures as error:
            raise _no_identity(error) from None
        self.name = f"identity {self._token.identity}"
        self.verifier = IdentityVerifier(repository)

    def sign(self, statement: Statement) -> bytes:
        """Have sigstore sign a statement."""
        from sigstore.dsse import Statement as SigstoreStatement  # noqa: PLC0415 - optional

        try:
            with self._context.signer(self._token) as signer:
                bundle = signer.sign_dsse(SigstoreStatement(statement.payload()))
        except self._failures as error:
            raise _no_identity(error) from None
        return canonical_json(json.loads(bundle.to_json()))


Signer = KeySigner | IdentitySigner
Verifier = KeyVerifier | IdentityVerifier | Trust


def _no_identity(error: Exception) -> SigningError:
    return SigningError(
        "Nothing can be signed with this job's identity.",
        where="the environment of this command",
        why=f"{error}" or type(error).__name__,
        fix="In GitHub Actions give the job `permissions: id-token: write`; elsewhere sign with a key.",
    )


def signs_as_job(given: str = "") -> bool:
    """Whether `find_signer` would use the identity of a CI job, which needs sigstore."""
    has_key = given or os.environ.get(keys.KEY_VARIABLE) or keys.default_key_path().exists()
    return bool(os.environ.get(GITHUB_IDENTITY)) and not has_key


def find_signer(project: Project, given: str = "") -> Signer | None:
    """Find the signer: the named key, the user's own key, or the CI job's identity; None if there is none."""
    own = keys.default_key_path()
    named = given or os.environ.get(keys.KEY_VARIABLE) or (str(own) if own.exists() else "")
    if named:
        origin = "from FACTORY_SIGNING_KEY" if named.lstrip().startswith("-----") else named
        return KeySigner(keys.read_private_key(named), origin)
    return IdentitySigner(project.matrix.source) if signs_as_job() else None


def find_trust(project: Project, given: Sequence[str] = ()) -> Trust:
    """Return who is trusted: the named keys or those of the checkout, and its own workflows."""
    paths = [Path(name) for name in given] or sorted((project.root / TRUSTED).glob("*.pub"))
    trusted = tuple(keys.read_public_key(path) for path in paths)
    return Trust(KeyVerifier(trusted), IdentityVerifier(project.matrix.source))


def read_trusted(bundle: Bundle, verifier: Verifier) -> tuple[Statement, str]:
    """Return a statement and its signer; raise NotTrustedError if the signer is not trusted."""
    signer = verifier.check(bundle)
    try:
        return Statement.read(bundle.payload), signer
    except BadBundleError as error:
        raise NotTrustedError(str(error)) from None
