"""No tag without a signature: the gate looks at what is attached, whoever was to sign it."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.errors.publishing import NotPromotableError, UnsignedError
from imagefactory.errors.supply import SigningError
from imagefactory.publish.attest.attachments import STATEMENTS, attach_statement
from imagefactory.publish.attest.bundles import Statement
from imagefactory.publish.attest.keys import default_key_path, new_key_pair, read_private_key
from imagefactory.publish.attest.signing import KeySigner
from imagefactory.publish.records import attach_record
from imagefactory.publish.staging import Staged
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import Publisher, smoke_record


@pytest.fixture
def tested(publisher: Publisher) -> Staged:
    """Push an image that passed its tests and that nobody signed."""
    [staged] = publisher.push()
    attach_record(publisher.repository, smoke_record(staged.digest, staged.plan.key))
    return staged


@pytest.fixture
def stranger(tmp_path: Path) -> KeySigner:
    new_key_pair(tmp_path / "other.key", tmp_path / "other.pub")
    return KeySigner(read_private_key(str(tmp_path / "other.key")), "somebody else's")


def refused(publisher: Publisher) -> FactoryError:
    error = publisher.refusal()
    assert publisher.tags() == {}
    return error


def test_an_unsigned_image_gets_no_tag(publisher: Publisher, tested: Staged) -> None:
    error = refused(publisher)
    assert isinstance(error, UnsignedError)
    assert tested.digest in error.where
    assert all(f"no trusted {name}" in error.why for name in STATEMENTS.values())


def test_the_signatures_of_a_stranger_do_not_count(
    publisher: Publisher, tested: Staged, stranger: KeySigner
) -> None:
    for kind in STATEMENTS:
        statement = Statement(kind, {}, tested.digest, "an image")
        attach_statement(publisher.repository, tested.pushed.descriptor, statement, stranger)
    assert isinstance(refused(publisher), UnsignedError)


@pytest.mark.parametrize("missing", STATEMENTS)
def test_each_statement_is_required(publisher: Publisher, tested: Staged, missing: str) -> None:
    for kind in STATEMENTS.keys() - {missing}:
        statement = Statement(kind, {}, tested.digest, "an image")
        attach_statement(publisher.repository, tested.pushed.descriptor, statement, publisher.signer)
    error = refused(publisher)
    assert isinstance(error, UnsignedError)
    assert error.why == f"signed: no trusted {STATEMENTS[missing]}."


def test_statements_about_another_image_do_not_count(publisher: Publisher, tested: Staged) -> None:
    publisher.change(1000)
    [other] = publisher.push()
    for kind in STATEMENTS:
        statement = Statement(kind, {}, tested.digest, "an image")
        attach_statement(publisher.repository, other.pushed.descriptor, statement, publisher.signer)
    attach_record(publisher.repository, smoke_record(other.digest, other.plan.key))
    assert isinstance(refused(publisher), UnsignedError)


def test_a_failed_test_is_named_beside_the_missing_signature(publisher: Publisher) -> None:
    publisher.push()
    error = refused(publisher)
    assert isinstance(error, NotPromotableError)
    assert "smoke: no record" in error.why
    assert "signed: no trusted signature" in error.why


def test_only_unsigned_promotes_what_nobody_signed(publisher: Publisher, tested: Staged) -> None:
    done = publisher.invoke("promote", "--target", "tiny")
    assert (done.returncode, publisher.tags()) == (UnsignedError.exit_code, {}), done.stderr
    assert "--unsigned" in done.stderr
    done = publisher.invoke("promote", "--target", "tiny", "--unsigned")
    assert done.returncode == 0, done.stderr
    assert publisher.tags()["latest"] == tested.digest


@pytest.mark.parametrize("command", ["publish", "ci.promote"])
def test_publishing_without_a_key_is_refused_before_anything_is_pushed(
    publisher: Publisher, command: str
) -> None:
    default_key_path().unlink()
    done = publisher.invoke(command, "--target", f"tiny/cpu/{MACHINE}")
    assert done.returncode == SigningError.exit_code, done.stderr
    assert "keys.new" in done.stderr
    assert publisher.repository.resolve("catalog") is None
