"""Signs statements and checks signatures, with a key or with the identity of a CI job (sigstore)."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.asymmetric import ec

from imagefactory.errors import TrustError
from imagefactory.project.project import Project
from imagefactory.publish.attest import keys
from imagefactory.publish.attest.bundles import (
    PAYLOAD_TYPE,
    BadBundleError,
    Bundle,
    Statement,
    pre_authentication,
    write_bundle,
)
from imagefactory.publish.attest.keys import PublicKey, cannot_sign
from imagefactory.store.digests import canonical_json, parse_json

GITHUB_ISSUER: Final = "https://token.actions.githubusercontent.com"
GITHUB_IDENTITY: Final = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
"""GitHub sets it for a job that may ask for an identity (`permissions: id-token: write`)."""
_CLAIMS: Final = "1.3.6.1.4.1.57264.1"
"""Where sigstore's certificates keep claims: https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md"""
_WORKFLOWS: Final = "/.github/workflows/"
_WHERE: Final = "the environment of this command"
TRUSTED: Final = "keys"
"""The folder with the public keys (*.pub) that are trusted to sign a checkout's images."""


class NotTrustedError(Exception):
    """A signature is not trusted: it is by somebody else, or over something else. The message is the reason."""


@dataclass(frozen=True)
class Verifier:
    """Whose signatures count: those of some keys, and those of some workflows, each on one branch or tag."""

    keys: tuple[PublicKey, ...] = ()
    identities: tuple[str, ...] = ()
    """https://github.com/OWNER/NAME/.github/workflows/FILE@REF, as certificates name them."""

    def check(self, bundle: Bundle) -> str:
        """Return who signed a bundle; raise NotTrustedError if that does not count."""
        if bundle.payload_type != PAYLOAD_TYPE:
            raise NotTrustedError(f"it holds {bundle.payload_type}, not a statement")
        return self._check_identity(bundle) if bundle.key_hint is None else self._check_key(bundle)

    def _check_key(self, bundle: Bundle) -> str:
        # A hint at the key may be missing, and proves nothing: without a match, every key is tried.
        named = [key for key in self.keys if key.hint == bundle.key_hint]
        signed = pre_authentication(bundle.payload_type, bundle.payload)
        for key in named or self.keys:
            if key.fits(bundle.signature, signed):
                return f"key {key.origin}"
        if named:
            raise NotTrustedError("its signature does not fit its content")
        other_key = "another key" if self.keys else "a key, and none is known to check with"
        raise NotTrustedError(f"it is signed with {other_key} (hint {bundle.key_hint or 'none'})")

    def _check_identity(self, bundle: Bundle) -> str:
        """Check certificate, transparency log and signature; needs the network for sigstore's root of trust."""
        try:
            from sigstore.errors import Error  # noqa: PLC0415 - optional
            from sigstore.models import Bundle as SigstoreBundle  # noqa: PLC0415
        except ImportError:
            raise NotTrustedError(
                "it is signed with an identity; checking that needs sigstore (locks/environment/sign.txt)"
            ) from None
        try:
            certified = SigstoreBundle.from_json(bundle.data)
            _, payload = _sigstore_verifier().verify_dsse(certified, self)
        except (Error, ValueError, OSError) as error:
            raise NotTrustedError(f"sigstore says: {error}") from None
        if payload != bundle.payload:
            raise NotTrustedError("it can be read in two ways")
        return f"identity {_claim(certified.signing_certificate, 18)}"

    def verify(self, certificate: x509.Certificate) -> None:
        """Raise NotTrustedError unless the certificate is for one of the workflows; sigstore calls this."""
        # Fulcio's numbers: issuer, source repository, its ref, and the build config, the workflow that was started.
        issuer, repository, ref, workflow = (_claim(certificate, number) for number in (8, 12, 14, 18))
        file, _, at = workflow.partition("@")
        if issuer != GITHUB_ISSUER:
            raise NotTrustedError(f"its identity was issued by {issuer}, not by {GITHUB_ISSUER}")
        if repository not in {identity.partition(_WORKFLOWS)[0] for identity in self.identities}:
            raise NotTrustedError(f"it is signed by another repository, {repository}")
        if file not in {identity.partition("@")[0] for identity in self.identities}:
            raise NotTrustedError(f"it is signed by another workflow of {repository}, {workflow}")
        if workflow not in self.identities or ref != at:
            raise NotTrustedError(f"it is signed on another branch or tag, {ref}")
        # The subject is the workflow with the job: of a reusable workflow, the one that was called.
        if _subjects(certificate) != [workflow]:
            raise NotTrustedError(f"it is signed by a workflow that {workflow} called")


def _claim(certificate: x509.Certificate, number: int) -> str:
    oid = x509.ObjectIdentifier(f"{_CLAIMS}.{number}")
    try:
        extension = certificate.extensions.get_extension_for_oid(oid).value
    except x509.ExtensionNotFound:
        raise NotTrustedError(f"its certificate is not that of a workflow: it has no {oid.dotted_string}") from None
    return asn1.decode_der(str, extension.public_bytes())


def _subjects(certificate: x509.Certificate) -> list[str]:
    with suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.UniformResourceIdentifier)
    return []


@cache
def _sigstore_verifier() -> Any:  # noqa: ANN401 - there may be no sigstore to take a type from
    """Fetch sigstore's root of trust, once."""
    from sigstore.verify import Verifier as SigstoreVerifier  # noqa: PLC0415 - optional

    return SigstoreVerifier.production()


class KeySigner:
    """Signs with a private key; works offline."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, origin: str) -> None:
        self._key = key
        self._public = PublicKey(key.public_key(), origin)
        self.name = f"key {origin}"
        self.hint = self._public.hint
        self.verifier = Verifier(keys=(self._public,))

    def sign(self, statement: Statement) -> bytes:
        payload = statement.payload()
        signature = keys.sign(self._key, pre_authentication(PAYLOAD_TYPE, payload))
        return write_bundle(payload, signature, self.hint)


class IdentitySigner:
    """Signs as a CI job: sigstore issues a certificate for a few minutes, and logs its use publicly."""

    def __init__(self) -> None:
        try:
            from sigstore.errors import Error  # noqa: PLC0415 - optional
            from sigstore.models import ClientTrustConfig  # noqa: PLC0415
            from sigstore.oidc import IdentityToken, detect_credential  # noqa: PLC0415
            from sigstore.sign import SigningContext  # noqa: PLC0415
        except ImportError:
            why = "It is not installed: this environment was not made by `./inv`, which adds it where it is needed."
            fix = "Use `./inv`, install locks/environment/sign.txt, or give a key (FACTORY_SIGNING_KEY)."
            raise cannot_sign("Signing with an identity needs the package sigstore.", _WHERE, why, fix) from None
        self._failures = (Error, ValueError, OSError)
        try:
            self._token = IdentityToken(detect_credential() or "")
            self._context: Any = SigningContext.from_trust_config(ClientTrustConfig.production())
        except self._failures as error:
            raise _no_identity(error) from None
        self.name = f"identity {own_identity()}"
        self.verifier = Verifier(identities=(own_identity(),))

    def sign(self, statement: Statement) -> bytes:
        from sigstore.dsse import Statement as SigstoreStatement  # noqa: PLC0415 - optional

        try:
            with self._context.signer(self._token) as signer:
                bundle = signer.sign_dsse(SigstoreStatement(statement.payload()))
        except self._failures as error:
            raise _no_identity(error) from None
        return canonical_json(parse_json(bundle.to_json()))


Signer = KeySigner | IdentitySigner


def _no_identity(error: Exception) -> TrustError:
    why = f"{error}" or type(error).__name__
    fix = "In GitHub Actions give the job `permissions: id-token: write`; elsewhere sign with a key."
    return cannot_sign("Nothing can be signed with this job's identity.", _WHERE, why, fix)


def own_identity() -> str:
    """Return the identity of the workflow that this job belongs to; empty outside of GitHub Actions."""
    workflow = os.environ.get("GITHUB_WORKFLOW_REF", "")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}" if workflow else ""


def signs_as_job(given: str = "") -> bool:
    """Whether `find_signer` would use the identity of a CI job, which needs sigstore."""
    return bool(os.environ.get(GITHUB_IDENTITY)) and not _key_named(given)


def _key_named(given: str) -> str:
    default = keys.default_key_path()
    return given or os.environ.get(keys.KEY_VARIABLE) or (str(default) if default.exists() else "")


def find_signer(project: Project, given: str = "") -> Signer | None:
    """Find the signer: the named key, the user's own key, or the CI job's identity; None if there is none.

    A workflow that is not trusted to sign is refused: nobody could verify what it publishes.
    """
    named = _key_named(given)
    if named:
        origin = "from FACTORY_SIGNING_KEY" if named.lstrip().startswith("-----") else named
        return KeySigner(keys.read_private_key(named), origin)
    if not signs_as_job():
        return None
    if own_identity() not in project.matrix.identities:
        where = own_identity() or "the variable GITHUB_WORKFLOW_REF, which is not set"
        trusted = ", ".join(project.matrix.identities) or "nobody: `origin` of this checkout is not on github.com"
        why = f"`source` and `signers` in matrix.yaml trust {trusted}."
        fix = "Run it on the branch that is trusted, or correct `source`, or `signers` if your branch has another name."
        raise cannot_sign("This workflow is not trusted to sign images.", where, why, fix)
    return IdentitySigner()


def find_trust(project: Project, given: Sequence[str] = (), signer: Signer | None = None) -> Verifier:
    """Return who is trusted: the named keys or those of the checkout, the workflows that may sign, and a signer."""
    paths = [Path(name) for name in given] or sorted((project.root / TRUSTED).glob("*.pub"))
    trusted = tuple(keys.read_public_key(path) for path in paths)
    if isinstance(signer, KeySigner):
        trusted += signer.verifier.keys
    return Verifier(trusted, project.matrix.identities)


def read_trusted(bundle: Bundle, verifier: Verifier) -> tuple[Statement, str]:
    """Return a statement and its signer; raise NotTrustedError if the signer is not trusted."""
    signer = verifier.check(bundle)
    try:
        return Statement.read(bundle.payload), signer
    except BadBundleError as error:
        raise NotTrustedError(str(error)) from None
