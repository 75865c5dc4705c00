"""Signing keys: ECDSA P-256, in PEM files that openssl and cosign read."""

import base64
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from platformdirs import user_config_path

from imagefactory.errors import TrustError
from imagefactory.store.paths import expand_home, open_regular

KEY_VARIABLE: Final = "FACTORY_SIGNING_KEY"
PASSWORD_VARIABLE: Final = "FACTORY_SIGNING_PASSWORD"  # noqa: S105 - the name of a variable
_BEGINNING = "-----BEGIN"
_NEW = "Make a pair with `./inv keys.new`."
_ALGORITHM = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
"""Deterministic, so that nothing is attached twice."""


@dataclass(frozen=True)
class PublicKey:
    """A key to check signatures with, and where it came from."""

    key: ec.EllipticCurvePublicKey
    origin: str

    @property
    def hint(self) -> str:
        """Return the key's hint in bundles: the hash of its DER form."""
        der = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(der).digest()).decode()

    def fits(self, signature: bytes, data: bytes) -> bool:
        try:
            self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, _ALGORITHM)


def default_key_path() -> Path:
    return expand_home(str(user_config_path("imagefactory") / "signing.key"), "HOME")


def new_key_pair(private: Path, public: Path) -> None:
    """Make a key pair in two files; existing keys are never overwritten."""
    if private.resolve() == public.resolve():
        why = "The public key, which everybody may see, would replace the private one."
        fix = "Name two files (--private, --public)."
        raise cannot_sign("Both keys would go to the same file.", private, why, fix)
    for path in (private, public):
        if path.exists():
            fix = "Move it away first, or name other files (--private, --public)."
            raise cannot_sign("A key exists already.", path, "An overwritten key is lost for good.", fix)
    key = ec.generate_private_key(ec.SECP256R1())
    password = _password()
    protection: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
    try:
        private.parent.mkdir(parents=True, exist_ok=True)
        public.parent.mkdir(parents=True, exist_ok=True)
        # The mode is set as the file is created: nobody can open it in between. O_EXCL spares one that just appeared.
        with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        where, fix = error.filename or private, "Name files that you may write (--private, --public)."
        raise cannot_sign("The key cannot be written.", where, f"{error.strerror}.", fix) from None


def read_private_key(given: str) -> ec.EllipticCurvePrivateKey:
    """Read a private key from a file, or from PEM text, as in a secret of a CI system."""
    where = f"the variable {KEY_VARIABLE}" if given.lstrip().startswith(_BEGINNING) else given
    fix = f"It must be a private key in PEM; an encrypted one needs {PASSWORD_VARIABLE}. {_NEW}"
    with _reading("The signing key", where, fix):
        key = load_pem_private_key(_pem(given), _password())
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise _unknown_kind(where)


def read_public_key(path: Path) -> PublicKey:
    fix = "It must be a public key in PEM, as `./inv keys.new`, cosign and openssl write it."
    with _reading("The key to check with", str(path), fix):
        key = load_pem_public_key(_pem(str(path)))
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return PublicKey(key, str(path))
    raise _unknown_kind(str(path))


@contextmanager
def _reading(what: str, where: str, fix: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise cannot_sign(f"{what} cannot be read.", where, why, fix) from None


def _password() -> bytes | None:
    return os.environ.get(PASSWORD_VARIABLE, "").encode() or None


def _pem(given: str) -> bytes:
    if given.lstrip().startswith(_BEGINNING):
        return given.encode()
    try:
        with open_regular(expand_home(given, "the key's path")) as file:
            return file.read()
    except OSError as error:
        # The variable may hold a key that was damaged, which must not be printed.
        where = f"the variable {KEY_VARIABLE}" if given == os.environ.get(KEY_VARIABLE) else given
        fix = f"Name a PEM file. {_NEW}"
        raise cannot_sign("The key file cannot be read.", where, f"{error.strerror}.", fix) from None


def _unknown_kind(where: str) -> TrustError:
    why = "Images are signed with ECDSA on the curve P-256."
    return cannot_sign("This kind of key is not supported.", where, why, _NEW)


def cannot_sign(what: str, where: Path | str, why: str, fix: str) -> TrustError:
    return TrustError("cannot-sign", what, where=where, why=why, fix=fix)
