"""No tag without a signature: the gate looks at what is attached, whoever was to sign it."""

from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.publish.attest.attachments import STATEMENTS, signed_attachment
from imagefactory.publish.attest.bundles import Statement
from imagefactory.publish.attest.keys import default_key_path, new_key_pair, read_private_key
from imagefactory.publish.attest.signing import KeySigner, Signer
from imagefactory.publish.staging import Staged
from tests.fixtures.failures import is_failure, refused
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import Publisher, attach_record, smoke_record


def attach_statement(publisher: Publisher, image: Descriptor, statement: Statement, signer: Signer) -> None:
    referrers.attach_many(publisher.repository, image, [signed_attachment(statement, signer.sign(statement))])


@pytest.fixture
def tested(publisher: Publisher) -> Staged:
    """Push an image that passed its tests and that nobody signed."""
    [staged] = publisher.push()
    attach_record(publisher.repository, smoke_record(staged.digest, staged.plan.key))
    return staged


def refusal(publisher: Publisher) -> FactoryError:
    error = publisher.refusal()
    assert publisher.tags() == {}
    return error


def test_an_image_gets_a_tag_once_every_statement_is_signed_by_whom_we_trust(
    publisher: Publisher, tested: Staged, tmp_path: Path
) -> None:
    new_key_pair(tmp_path / "other.key", tmp_path / "other.pub")
    stranger = KeySigner(read_private_key(str(tmp_path / "other.key")), "somebody else's")

    def attach(kind: str, signer: Signer) -> None:
        attach_statement(publisher, tested.pushed.descriptor, Statement(kind, {}, tested.digest, "an image"), signer)

    for kind in STATEMENTS:
        attach(kind, stranger)
    missing = list(STATEMENTS.values())
    for kind in STATEMENTS:
        error = refusal(publisher)
        assert is_failure(error, "unsigned")
        assert tested.digest in error.where
        assert [f"no trusted {name}" in error.why for name in STATEMENTS.values()] == [
            name in missing for name in STATEMENTS.values()
        ]
        attach(kind, publisher.signer)
        missing.remove(STATEMENTS[kind])
    assert publisher.promote().refused == []


def test_statements_about_another_image_do_not_count(publisher: Publisher, tested: Staged) -> None:
    publisher.change(1000)
    [other] = publisher.push()
    for kind in STATEMENTS:
        statement = Statement(kind, {}, tested.digest, "an image")
        attach_statement(publisher, other.pushed.descriptor, statement, publisher.signer)
    attach_record(publisher.repository, smoke_record(other.digest, other.plan.key))
    assert is_failure(refusal(publisher), "unsigned")


def test_only_unsigned_promotes_what_nobody_signed(publisher: Publisher, tested: Staged) -> None:
    default_key_path().unlink()
    done = publisher.invoke("promote", "--target", "tiny")
    assert refused(done, "unsigned"), done.stderr
    assert publisher.tags() == {}
    assert "--unsigned" in done.stderr
    done = publisher.invoke("promote", "--target", "tiny", "--unsigned")
    assert done.returncode == 0, done.stderr
    assert publisher.tags()["latest"] == tested.digest


def test_promote_signs_what_nobody_signed(publisher: Publisher, tested: Staged) -> None:
    done = publisher.invoke("promote", "--target", "tiny")
    assert done.returncode == 0, done.stderr
    assert publisher.tags()["latest"] == tested.digest


def test_publishing_without_a_key_is_refused_before_anything_is_pushed(publisher: Publisher) -> None:
    default_key_path().unlink()
    done = publisher.invoke("publish", "--target", f"tiny/cpu/{MACHINE}")
    assert refused(done, "cannot-sign"), done.stderr
    assert "keys.new" in done.stderr
    assert publisher.repository.resolve("catalog") is None
