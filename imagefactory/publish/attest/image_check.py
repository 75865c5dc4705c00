"""Checks a published image: who signed it, what it claims, and whether this checkout agrees."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from imagefactory.errors import NO_CONTENT, FactoryError, InputError, RegistryError, TrustError, clean
from imagefactory.oci.registry.artifacts import contents
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.project import Project
from imagefactory.publish.attest import provenance, sbom
from imagefactory.publish.attest.attachments import STATEMENTS
from imagefactory.publish.attest.bundles import Bundle, Statement
from imagefactory.publish.attest.sbom import first_difference
from imagefactory.publish.attest.signing import NotTrustedError, Verifier, read_trusted
from imagefactory.publish.dossier import Content, Dossier
from imagefactory.publish.history import check_tag
from imagefactory.publish.image_contents import images_of, unfit_index
from imagefactory.store.digests import Digest, Sha256, canonical_json, parse_json
from imagefactory.store.progress import Say, count

FindingState = Literal["ok", "failed", "not checked", "not counted"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    """What was checked, such as the tag or the layers; docs/supply-chain.md lists all."""
    state: FindingState
    detail: str


@dataclass(frozen=True)
class Checked:
    """The findings about an image, and this checkout's plan if the image was made from it."""

    reference: str
    digest: Digest
    findings: tuple[Finding, ...]
    plan: Plan | None
    commit: str | None
    """The commit that the signed provenance names."""
    cell: Cell | None = None
    """What the image says it is."""


def check_image(
    project: Project,
    repository: Repository,
    trust: Verifier,
    say: Say,
    *,
    every_byte: bool = False,
) -> list[Checked]:
    """Check an image, or all of an index; `every_byte` downloads the layers and hashes them."""
    reference = repository.reference
    manifest = repository.require_manifest(reference.digest or reference.tag or "latest")
    checked = [
        _Check(project, repository, image, listed, trust, say).run(every_byte=every_byte)
        for image, listed in images_of(repository, manifest)
    ]
    targets = {str(image.cell or "a foreign image") for image in checked}
    if len(targets) > 1:
        why = f"it mixes the images of several targets: {', '.join(sorted(targets))}"
        raise unfit_index(repository, manifest, why)
    return checked


def refuse_failing(checked: Checked, *, strict: bool = False) -> None:
    """Raise if a check failed, or with `strict` was not made: about content first, then tag, record and signature."""
    failed = {finding.check for finding in checked.findings if finding.state == "failed"}
    shown = {"failed"}
    if not failed:
        if not strict or all(finding.state != "not checked" for finding in checked.findings):
            return
        name, what, shown = "not-checked", "Not everything could be checked.", {"not checked"}
        fix = f"Check out {checked.commit or 'the commit of the image'} and try again, or leave out --strict."
    elif failed & {"configuration", "provenance", "sbom", "layers"}:
        name = "tampered"
        what = "The image, or something attached to it, is not what was signed or recorded."
        fix = (
            "You: do not use it; pull it by its digest from a registry you trust, or build it yourself. The owner of "
            "the registry: find out who wrote there, delete what is wrong, and publish the image again."
        )
    elif "tag" in failed:
        name, what = "wrong-tag", "The tag does not name the image that it should."
        fix = (
            "You: do not use it; pull by the digest that `./inv history` lists. The owner of the registry: find out "
            "who moved the tag; `./inv promote` or `./inv rollback` sets it again."
        )
    elif "record" in failed:
        name, what = "record-disagrees", "This checkout records another image."
        fix = (
            "You: do not use it before you know whether locks/layers.toml was edited (`git diff`, `git log`). If it "
            "was not, tell whoever published the image: it is not what the locks give."
        )
    elif any(finding.check == "statement" for finding in checked.findings):
        name, what = "no-trusted-signature", "The image is not signed by anybody who is trusted."
        shown = {"failed", "not counted"}
        fix = (
            "You: do not use it, unless you trust one of those who signed; then name the key (--key) or the workflow "
            "(`source` and `signers` in matrix.yaml). Whoever published it: sign it with a key, or in a workflow that "
            "counts."
        )
    else:
        name, what = "unsigned-image", "Nobody signed the image."
        fix = "You: do not use it. Whoever published it: sign it (`./inv promote --key`), or publish it again."
    why = "; ".join(f"{finding.check}: {finding.detail}" for finding in checked.findings if finding.state in shown)
    raise TrustError(name, what, where=checked.reference, why=why, fix=fix)


def require_plan(checked: Checked) -> Plan:
    """Return the plan to rebuild an image from; raise if the image was made from another checkout."""
    if checked.plan is None:
        at = f"commit {checked.commit}" if checked.commit else "the commit that it was made from"
        raise TrustError(
            "rebuild-differs",
            "This checkout cannot rebuild the image.",
            where=checked.reference,
            why="It plans another image: its matrix, locks, mods or serve program are not those of the image.",
            fix=f"Check out {at} and run the command again.",
        )
    return checked.plan


@dataclass
class _Check:
    """Checks one image, step by step; each step adds its findings."""

    project: Project
    repository: Repository
    manifest: StoredManifest
    listed: Mapping[str, str] | None
    """The platform that an index lists the image for."""
    trust: Verifier
    say: Say
    findings: list[Finding] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    cell: Cell | None = None

    def run(self, *, every_byte: bool) -> Checked:
        self._add("manifest", "ok", self.manifest.digest)
        self._read_config()
        dossier = Dossier.read(self.repository, self.manifest.digest)
        statements = self._check_signatures(dossier.bundles)
        commit = self._check_provenance(statements.get(provenance.PREDICATE_TYPE))
        self._check_sbom(statements.get(sbom.PREDICATE_TYPE), dossier.sboms)
        self._check_record()
        self._check_layers(every_byte=every_byte)
        self._show_answers(dossier)
        if dossier.scan_line:
            self._add("known CVEs", "not counted", dossier.scan_line)
        for reason in dossier.left_out:
            self._add("attachment", "not counted", reason)
        reference = str(self.repository.reference.at(self.manifest.digest))
        return Checked(reference, self.manifest.digest, tuple(self.findings), self.plan, commit, self.cell)

    def _add(self, check: str, state: FindingState, detail: str) -> None:
        # Some of it was written by whoever pushed the image, who must not add lines of his own.
        self.findings.append(Finding(check, state, clean(detail)))

    def _read_config(self) -> None:
        """Read the configuration, and find the plan that the image was made from."""
        try:
            digest = Digest(self.manifest.document()["config"]["digest"])
            config = parse_json(self.repository.blob(digest))
            labels: Mapping[str, str] = config["config"]["Labels"]
            planned = labels["imagefactory.plan"]
            self.config = config
        except (InputError, ValueError, KeyError, TypeError) as error:
            foreign = f"this is not an image of the factory ({type(error).__name__})"
            self._add("configuration", "failed", error.why if isinstance(error, InputError) else foreign)
            return
        platform = f"{self.config.get('os')}/{self.config.get('architecture')}"
        listed = self.listed and f"{self.listed.get('os')}/{self.listed.get('architecture')}"
        if listed and listed != platform:
            self._add("configuration", "failed", f"the index lists it for {listed}, but it is for {platform}")
            return
        self._add("configuration", "ok", f"plan {planned}")
        self.cell = Cell.of_labels(labels, platform)
        self._add("target", "ok", f"{self.cell} for {platform}")
        if self.cell in buildable(self.project.matrix) and self.project.is_locked(self.cell):
            with suppress(FactoryError):  # the image's own commit could plan it; the findings say so
                plan = make_plan(self.project, self.cell)
                self.plan = plan if plan.key == planned else None
        image, is_planned = (self.cell, Sha256(planned), self.manifest.digest), self.plan is not None
        if verdict := check_tag(self.project, self.repository, *image, planned=is_planned):
            self._add("tag", *verdict)

    def _check_signatures(self, attached: Sequence[tuple[Digest, Bundle | str]]) -> dict[str, Statement]:
        """Read the statements about exactly this image that a trusted signer made; explain each in a line."""
        statements: dict[str, Statement] = {}
        signers: set[str] = set()
        for digest, bundle in attached:
            name = STATEMENTS.get("" if isinstance(bundle, str) else bundle.claim, "statement")
            try:
                statement, signer = self._read_statement(bundle)
            except NotTrustedError as error:
                # Others may sign too; that does not affect the signatures that count.
                self._add("statement", "not counted", f"{name} {digest}: {error}")
                continue
            self._add("statement", "ok", f"{name} {digest}: signed by {signer}")
            statements[statement.predicate_type] = statement
            signers.add(signer)
        missing = [name for kind, name in STATEMENTS.items() if kind not in statements]
        if missing:
            nothing = "" if attached else ": nothing is attached"
            self._add("signature", "failed", f"no trusted {' and no '.join(missing)}{nothing}")
        else:
            self._add("signature", "ok", ", ".join(sorted(signers)))
        return statements

    def _read_statement(self, bundle: Bundle | str) -> tuple[Statement, str]:
        if not isinstance(bundle, Bundle):
            raise NotTrustedError(bundle)
        statement, signer = read_trusted(bundle, self.trust)
        if statement.subject != self.manifest.digest:
            raise NotTrustedError(f"it is about another image, {statement.subject}")
        return statement, signer

    def _check_provenance(self, statement: Statement | None) -> str | None:
        """Compare the provenance with the image and with this checkout; return the commit that it names."""
        if statement is None:
            self._add("provenance", "not checked", "there is none that is signed")
            return None
        try:
            definition = statement.predicate["buildDefinition"]
            planned = definition["internalParameters"]["plan"]
            modified = bool(definition["internalParameters"]["sourceModified"])
            inputs = _digests(definition["resolvedDependencies"])
            builder = statement.predicate["runDetails"]["builder"]["id"]
        except (KeyError, TypeError) as error:
            self._add("provenance", "failed", f"it cannot be read ({type(error).__name__} {error})")
            return None
        commit = inputs.get("gitCommit")
        summary = f"{builder}, commit {commit or 'unknown'}{' with changes of its own' if modified else ''}"
        labelled = self.config.get("config", {}).get("Labels", {}).get("imagefactory.plan")
        if planned != labelled:
            self._add("provenance", "failed", f"it names the plan {planned}, the image says {labelled}")
        elif self.plan is None:
            detail = f"{summary}; this checkout plans another image, so its locks were not compared"
            self._add("provenance", "not checked", detail)
        else:
            hashes = provenance.input_hashes(self.project, self.plan)
            differing = [name for name, sha256 in hashes.items() if inputs.get(name, sha256) != sha256]
            differ = f"; {', '.join(differing)} differ in this checkout, though they give the same plan"
            self._add("provenance", "not checked" if differing else "ok", summary + (differ if differing else ""))
        return commit

    def _check_sbom(self, statement: Statement | None, attached: Sequence[Content]) -> None:
        """Compare the signed SBOM with the one that is attached unsigned, and with one made from this checkout."""
        signed = None if statement is None else canonical_json(statement.predicate)
        remade = None if self.plan is None else sbom.make_sbom(self.project, self.plan)
        expected = signed or remade
        problems = [
            f"{digest}: {content if isinstance(content, str) else first_difference(content, expected or b'')}"
            for digest, content in attached
            if isinstance(content, str) or (expected and content != expected)
        ]
        if signed is not None and remade is not None and signed != remade:
            problems.append(f"the signed SBOM: {first_difference(signed, remade)}")
        if signed is not None and not attached:
            problems.append("none is attached")
        if problems:
            self._add("sbom", "failed", "; ".join(problems))
        elif not attached:
            self._add("sbom", "not checked", "none is attached")
        elif remade is None:
            detail = "as signed, but this checkout plans another image and cannot make it again"
            self._add("sbom", "not checked", detail if signed else "it is not signed")
        else:
            count = len(parse_json(remade)["components"])
            self._add("sbom", "ok", f"{count} components, as the locks give them")

    def _check_record(self) -> None:
        """Compare the digest with this checkout's record, without building anything."""
        image = KnownLayers(self.project.known_layers).image(self.plan) if self.plan else None
        if self.plan is None:
            self._add("record", "not checked", "this checkout plans another image")
        elif image is None:
            self._add("record", "not checked", "locks/layers.toml does not have all layers")
        elif image.digest == self.manifest.digest:
            self._add("record", "ok", "locks/layers.toml gives the same digest")
        else:
            self._add("record", "failed", _other_layers(self.plan, image.manifest, self.manifest))

    def _check_layers(self, *, every_byte: bool) -> None:
        layers = contents(self.repository, self.manifest)
        names = [str(entry.get("created_by", "")) for entry in self.config.get("history", [])]
        if len(names) != len(layers):
            names = [layer.digest for layer in layers]
        labels = [f"layer {name.removeprefix('imagefactory ')}" for name in names]
        problems = [
            f"{label}: {problem}"
            for label, layer in zip(labels, layers, strict=True)
            if (problem := self._problem_of(layer, label, every_byte=every_byte))
        ]
        for problem in problems:
            self._add("layers", "failed", problem)
        if not problems:
            size = sum(layer.size for layer in layers) / 1e6
            how = "downloaded, every byte as named" if every_byte else "all in the registry"
            self._add("layers", "ok", f"{count(len(layers), 'layer')}, {size:,.1f} MB, {how}")

    def _problem_of(self, layer: Descriptor, label: str, *, every_byte: bool) -> str:
        """Look for a layer, or download it to check every byte; the download is not kept."""
        missing = "the registry does not have it"
        if not every_byte:
            return "" if self.repository.has_blob(layer.digest) else missing
        self.say(f"{label}: {layer.size / 1e6:,.1f} MB")
        with self.project.store.scratch() as scratch:
            try:
                self.repository.download(layer.digest, layer.size, scratch / "layer")
            except RegistryError as error:
                if error.name != NO_CONTENT:
                    raise
                return missing
            except InputError as error:
                return f"{layer.digest} has other bytes: {error.why}"
        return ""

    def _show_answers(self, dossier: Dossier) -> None:
        """Show what the newest record says about the answers, if any; nobody signs it, so it proves nothing."""
        planned = Sha256(self.config.get("config", {}).get("Labels", {}).get("imagefactory.plan", ""))
        try:
            record = dossier.answers(planned)
        except FactoryError as error:
            self._add("answers", "not counted", f"{error.what} {error.why}")
            return
        if record:
            state: FindingState = "ok" if record.verdict == "same" else "not counted"
            self._add("answers", state, record.line.removeprefix("answers "))


def _other_layers(plan: Plan, expected: bytes, manifest: StoredManifest) -> str:
    """Name the first layer that differs from the record."""
    recorded = [layer["digest"] for layer in parse_json(expected)["layers"]]
    published = [layer["digest"] for layer in manifest.document()["layers"]]
    for layer, ours, theirs in zip(plan.layers, recorded, published, strict=False):
        if ours != theirs:
            return f"layer {layer.kind} {layer.name} is {theirs}, locks/layers.toml says {ours}"
    if len(recorded) != len(published):
        return f"it has {len(published)} layers, the plan has {len(recorded)}"
    return "its layers are the recorded ones, but its configuration is another one"


def _digests(dependencies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Read the hashes of a provenance's inputs by name, and the commit."""
    hashes = {str(entry["name"]): str(entry["digest"]["sha256"]) for entry in dependencies if "name" in entry}
    commits = [entry["digest"]["gitCommit"] for entry in dependencies if "gitCommit" in entry["digest"]]
    return hashes | ({"gitCommit": str(commits[0])} if commits else {})
