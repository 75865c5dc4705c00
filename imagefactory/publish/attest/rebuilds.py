"""Independent rebuilds: signed statements about which digest a commit gives, when somebody else builds it.

They never count as a publisher's signature, and a publisher's own never count as somebody else's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from imagefactory.errors import FactoryError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.publish.attest import keys
from imagefactory.publish.attest.attachments import attached_bundles
from imagefactory.publish.attest.bundles import Bundle, Statement
from imagefactory.publish.attest.provenance import Run
from imagefactory.publish.attest.signing import NotTrustedError, Verifier, read_trusted, repository_of
from imagefactory.store.digests import Digest

PREDICATE_TYPE: Final = "urn:imagefactory:rebuild:v1"
"""Predicate: `outcome` (same digest, or other digest), `rebuilt`, `target`, `commit`, `builder` and `invocation`."""
_OUTCOMES: Final = {True: "same digest", False: "other digest"}


@dataclass(frozen=True)
class Rebuild:
    """The digest that a published image's commit gave when it was built again."""

    image: Digest
    rebuilt: Digest
    target: str
    commit: str

    @property
    def outcome(self) -> str:
        return _OUTCOMES[self.rebuilt == self.image]

    def statement(self, name: str, run: Run) -> Statement:
        """Return what a rebuilder signs, about the image in this repository."""
        made = {"outcome": self.outcome, "rebuilt": self.rebuilt, "target": self.target, "commit": self.commit}
        made |= {"builder": run.builder} | ({"invocation": run.invocation} if run.invocation else {})
        return Statement(PREDICATE_TYPE, made, self.image, name)


@dataclass
class RebuildCount:
    """What others found when they built an image again, by who they are."""

    same: dict[str, str] = field(default_factory=dict)
    """Name in matrix.yaml -> signer."""
    other: dict[str, str] = field(default_factory=dict)
    uncounted: list[str] = field(default_factory=list)


def named(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({signer})" for name, signer in sorted(found.items()))


def count_rebuilds(
    project: Project, attached: Iterable[tuple[Digest, Bundle | str]], image: Digest, publisher: Verifier
) -> RebuildCount:
    """Count the rebuilders of matrix.yaml who built an image again; whoever speaks twice counts once."""
    count = RebuildCount()
    trust, names = _rebuilders(project)
    for digest, bundle in [*attached, *_attached_elsewhere(project, image, count)]:
        if isinstance(bundle, str) or bundle.claim != PREDICATE_TYPE:
            continue
        try:
            signer, same = _read(bundle, image, trust, publisher)
            name = names[signer]
        except NotTrustedError as error:
            count.uncounted.append(f"rebuild {digest}: {error}")
            continue
        (count.same if same else count.other)[name] = signer
    for name in count.other:
        count.same.pop(name, None)
    return count


def _read(bundle: Bundle, image: Digest, trust: Verifier, publisher: Verifier) -> tuple[str, bool]:
    """Return who rebuilt an image, and whether it came out the same; raise NotTrustedError if it does not count."""
    statement, signer = read_trusted(bundle, trust)
    try:
        publisher.check(bundle)
    except NotTrustedError:
        pass
    else:
        raise NotTrustedError(f"it is signed by the publisher, {signer}, and not by somebody else")
    if statement.subject != image:
        raise NotTrustedError(f"it is about another image, {statement.subject}")
    same = statement.predicate.get("rebuilt") == image
    if statement.predicate.get("outcome") != _OUTCOMES[same]:
        raise NotTrustedError("it contradicts itself")
    return signer, same


def _rebuilders(project: Project) -> tuple[Verifier, dict[str, str]]:
    """Return a verifier that trusts all rebuilders, and their names by signer.

    Workflows of one repository are one rebuilder, and those of the publisher's repository are none.
    """
    public: list[keys.PublicKey] = []
    names: dict[str, str] = {}
    repositories = {repository_of(identity) for identity in project.matrix.identities}
    for name, rebuilder in project.matrix.rebuilders.items():
        if rebuilder.key:
            public.append(keys.read_public_key(project.root / rebuilder.key))
            names[f"key {public[-1].origin}"] = name
        elif rebuilder.identity and (repository := repository_of(rebuilder.identity)) not in repositories:
            repositories.add(repository)
            names[f"identity {rebuilder.identity}"] = name
    identities = tuple(signer.removeprefix("identity ") for signer in names if signer.startswith("identity "))
    return Verifier(tuple(public), identities), names


def _attached_elsewhere(project: Project, image: Digest, count: RebuildCount) -> Iterator[tuple[Digest, Bundle | str]]:
    """Find statements about an image in the registries of rebuilders who may not write to the publisher's."""
    places = {one.statements for one in project.matrix.rebuilders.values() if one.statements}
    for place in sorted(places):
        try:
            with Repository.open(place) as repository:
                yield from list(attached_bundles(repository, image))
        except FactoryError as error:
            count.uncounted.append(f"rebuilds in {place}: {error.what} {error.why}")
