"""Signatures: who signed what, and everything that must not count as a signature."""

import base64
import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from imagefactory.cli.command import find_publisher
from imagefactory.publish.attest.bundles import (
    PAYLOAD_TYPE,
    BadBundleError,
    Bundle,
    Statement,
    pre_authentication,
    write_bundle,
)
from imagefactory.publish.attest.keys import (
    KEY_VARIABLE,
    PASSWORD_VARIABLE,
    default_key_path,
    new_key_pair,
    read_private_key,
    read_public_key,
    sign,
)
from imagefactory.publish.attest.signing import (
    GITHUB_IDENTITY,
    TRUSTED,
    KeySigner,
    NotTrustedError,
    Verifier,
    find_signer,
    find_trust,
    read_trusted,
)
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.local_sigstore import Job, LocalSigstore
from tests.fixtures.small_factory import SmallFactory

IMAGE, OTHER = Digest(f"sha256:{'1' * 64}"), Digest(f"sha256:{'2' * 64}")
STATEMENT = Statement("https://example/said", {"a": [1, "ü"]}, IMAGE, "registry.example/image")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    private = tmp_path / "signing.key"
    new_key_pair(private, private.with_suffix(".pub"))
    return private


def trusting(*keys: Path) -> Verifier:
    public = tuple(read_public_key(path.with_suffix(".pub")) for path in keys)
    return Verifier(public, (Job().identity,))


def signer_of(key: Path) -> KeySigner:
    return KeySigner(read_private_key(str(key)), str(key))


def forged(data: bytes, *path: str | int, value: object) -> Bundle:
    """Replace a value in the JSON of a bundle."""
    part = document = json.loads(data)
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return Bundle.read(json.dumps(document).encode())


def pem(key: Any, folder: Path) -> Path:
    """Write a key pair of any kind."""
    private = folder / "other.key"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    private.with_suffix(".pub").write_bytes(public)
    return private


def test_a_signed_statement_can_be_read_back_and_is_encoded_as_dsse_says(key: Path) -> None:
    bundle = Bundle.read(signer_of(key).sign(STATEMENT))
    statement, signer = read_trusted(bundle, trusting(key))
    assert statement == STATEMENT
    assert str(key.with_suffix(".pub")) in signer
    # The example of the specification.
    assert pre_authentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["payload"], base64.b64encode(replace(STATEMENT, subject=OTHER).payload()).decode()),
        (["payloadType"], "text/plain"),
        (["signatures", 0, "sig"], base64.b64encode(b"nothing").decode()),
    ],
)
def test_a_change_of_any_part_is_noticed(key: Path, path: list[str | int], value: str) -> None:
    bundle = forged(signer_of(key).sign(STATEMENT), "dsseEnvelope", *path, value=value)
    with pytest.raises(NotTrustedError):
        read_trusted(bundle, trusting(key))


def test_another_key_does_not_count_and_a_hint_at_a_trusted_one_proves_nothing(key: Path, tmp_path: Path) -> None:
    other = pem(ec.generate_private_key(ec.SECP256R1()), tmp_path)
    bundle = Bundle.read(signer_of(other).sign(STATEMENT))
    with pytest.raises(NotTrustedError, match="another key"):
        trusting(key).check(bundle)
    assert trusting(key, other).check(bundle)
    hint = read_public_key(key.with_suffix(".pub")).hint
    path = ("verificationMaterial", "publicKey", "hint")
    with pytest.raises(NotTrustedError, match="does not fit"):
        trusting(key).check(forged(signer_of(other).sign(STATEMENT), *path, value=hint))


def test_an_identity_cannot_be_checked_without_sigstore(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    certified = {"certificate": {"rawBytes": ""}}
    bundle = forged(signer_of(key).sign(STATEMENT), "verificationMaterial", value=certified)
    with pytest.raises(NotTrustedError, match="needs sigstore"):
        trusting(key).check(bundle)


def test_the_nightly_on_the_default_branch_may_sign_with_this_sigstore_and_this_statement(
    sigstore: LocalSigstore, small_factory: SmallFactory
) -> None:
    trust, signed = find_trust(small_factory.project), sigstore.sign(STATEMENT, Job())
    statement, signer = read_trusted(Bundle.read(signed), trust)
    assert statement == STATEMENT
    assert signer == f"identity {Job().identity}"
    other = base64.b64encode(replace(STATEMENT, subject=OTHER).payload()).decode()
    changed = forged(signed, "dsseEnvelope", "payload", value=other)
    for bundle in (changed, Bundle.read(LocalSigstore().sign(STATEMENT, Job()))):
        with pytest.raises(NotTrustedError, match="sigstore says"):
            trust.check(bundle)


NOT_TRUSTED = {
    "another issuer": (Job(issuer="https://issuer.example"), "was issued by https://issuer.example"),
    "another repository": (Job(repository="https://git.example/fork"), "another repository, .*fork"),
    "a repository with a longer name": (Job(repository="https://git.example/factory2"), "another repository"),
    "another workflow": (Job(workflow=".github/workflows/mods.yml"), "another workflow of .*mods.yml"),
    "another branch": (Job(ref="refs/heads/feature"), "another branch or tag, refs/heads/feature"),
    "a tag": (Job(ref="refs/tags/main"), "another branch or tag, refs/tags/main"),
    "a called workflow": (Job(called="https://git.example/x/.github/workflows/y.yml@main"), "called"),
}


@pytest.mark.parametrize(("job", "reason"), NOT_TRUSTED.values(), ids=NOT_TRUSTED)
def test_no_other_job_may_sign(sigstore: LocalSigstore, small_factory: SmallFactory, job: Job, reason: str) -> None:
    """Refuse a signature that sigstore itself finds valid in every respect."""
    bundle = Bundle.read(sigstore.sign(STATEMENT, job))
    with pytest.raises(NotTrustedError, match=reason):
        find_trust(small_factory.project).check(bundle)


def test_a_fork_names_its_own_workflows(sigstore: LocalSigstore, small_factory: SmallFactory) -> None:
    job = Job(workflow=".github/workflows/publish.yml", ref="refs/heads/trunk")
    small_factory.edit_matrix("\ndefaults:", f"\nsigners: [{job.workflow}@{job.ref}]\ndefaults:")
    trust = find_trust(small_factory.project)
    assert trust.check(Bundle.read(sigstore.sign(STATEMENT, job)))
    with pytest.raises(NotTrustedError, match="another workflow"):
        trust.check(Bundle.read(sigstore.sign(STATEMENT, Job())))


@pytest.mark.parametrize(
    "setting",
    ["signers: [nightly.yml]", "signers: [.github/workflows/nightly.yml]", "signers: [x/y.yml@refs/heads/main]"],
)
def test_a_workflow_that_may_sign_has_a_path_and_a_branch(small_factory: SmallFactory, setting: str) -> None:
    small_factory.edit_matrix("\ndefaults:", f"\n{setting}\ndefaults:")
    with raises("bad-matrix", match=setting.partition(":")[0]):
        find_trust(small_factory.project)


@pytest.mark.parametrize("workflow", ["mods.yml@refs/heads/main", "nightly.yml@refs/heads/feature"])
def test_a_job_that_nobody_would_trust_does_not_publish(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch, workflow: str
) -> None:
    monkeypatch.setenv(GITHUB_IDENTITY, "token")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", f"factory/.github/workflows/{workflow}")
    with raises("cannot-sign", match="not trusted to sign") as caught:
        find_signer(small_factory.project)
    assert Job().identity in caught.value.why


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"dsseEnvelope": {"signatures": []}}', b"\xff", b'{"dsseEnvelope": 3}']
)
def test_malformed_bundles_are_refused(data: bytes) -> None:
    with pytest.raises(BadBundleError):
        Bundle.read(data)


def test_a_key_that_the_checkout_does_not_trust_is_named_before_it_signs(
    small_factory: SmallFactory, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_publisher(small_factory.project, str(key), unsigned=False)
    assert "is not in keys/: nobody trusts what it signs" in capsys.readouterr().err
    trusted = small_factory.root / TRUSTED / "signing.pub"
    trusted.parent.mkdir(exist_ok=True)
    trusted.write_bytes(key.with_suffix(".pub").read_bytes())
    find_publisher(small_factory.project, str(key), unsigned=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("payload", [b"{}", b"[]", b'{"subject": []}', b'{"subject": [{"digest": 1}]}'])
def test_malformed_statements_are_refused_though_signed(key: Path, payload: bytes) -> None:
    signature = sign(read_private_key(str(key)), pre_authentication(PAYLOAD_TYPE, payload))
    bundle = Bundle.read(write_bundle(payload, signature, "x"))
    with pytest.raises(NotTrustedError, match="cannot be read"):
        read_trusted(bundle, trusting(key))


def test_a_key_is_for_its_owner_alone_and_never_overwritten(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    for private, public in (
        (key, key.with_name("new.pub")),
        (key.with_name("new.key"), key.with_suffix(".pub")),
    ):
        with raises("cannot-sign", match="already"):
            new_key_pair(private, public)
    assert key.read_bytes() == before
    assert not key.with_name("new.key").exists()
    (key.parent / "file").touch()
    with raises("cannot-sign", match="cannot be written"):
        new_key_pair(key.parent / "file/signing.key", key.with_name("new.pub"))


def test_a_password_protects_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "signing.key"
    monkeypatch.setenv(PASSWORD_VARIABLE, "open sesame")
    new_key_pair(key, key.with_suffix(".pub"))
    assert b"ENCRYPTED" in key.read_bytes()
    assert signer_of(key).sign(STATEMENT)
    for password in ("wrong", ""):
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
        with raises("cannot-sign", match="cannot be read"):
            read_private_key(str(key))


def test_unusable_keys_are_refused(tmp_path: Path, key: Path) -> None:
    with raises("cannot-sign", match="key file cannot be read"):
        read_private_key(str(tmp_path / "missing"))
    with raises("cannot-sign", match="cannot be read"):
        read_private_key(str(key.with_suffix(".pub")))
    with raises("cannot-sign", match="cannot be read"):
        read_public_key(key)
    for unfit in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        other = pem(unfit, tmp_path)
        with raises("cannot-sign", match="not supported"):
            read_private_key(str(other))
        with raises("cannot-sign", match="not supported"):
            read_public_key(other.with_suffix(".pub"))


def test_signers_are_found_in_order(small_factory: SmallFactory, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = small_factory.project
    monkeypatch.delenv(GITHUB_IDENTITY, raising=False)
    assert find_signer(project) is None
    monkeypatch.setitem(sys.modules, "sigstore", None)
    monkeypatch.setenv(GITHUB_IDENTITY, "token")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", Job().identity.removeprefix("https://git.example/"))
    with raises("cannot-sign", match="needs the package sigstore"):
        find_signer(project)
    own = default_key_path()
    new_key_pair(own, own.with_suffix(".pub"))
    assert str(own) in vars(find_signer(project))["name"]
    monkeypatch.setenv(KEY_VARIABLE, key.read_text())
    assert "FACTORY_SIGNING_KEY" in vars(find_signer(project))["name"]
    assert str(key) in vars(find_signer(project, str(key)))["name"]


def test_the_keys_of_a_checkout_are_trusted_unless_others_are_named(
    small_factory: SmallFactory, key: Path, tmp_path: Path
) -> None:
    folder = small_factory.root / "keys"
    new_key_pair(tmp_path / "checkout.key", folder / "one.pub")
    project = small_factory.project
    bundle = Bundle.read(signer_of(tmp_path / "checkout.key").sign(STATEMENT))
    assert find_trust(project).check(bundle)
    with pytest.raises(NotTrustedError):
        find_trust(project, [str(key.with_suffix(".pub"))]).check(bundle)
    with raises("cannot-sign"):
        find_trust(project, [str(tmp_path / "missing.pub")])
