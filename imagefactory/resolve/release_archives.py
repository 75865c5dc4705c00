"""Source locks: the archives of vLLM releases that mods are checked against and compiles start from."""

from __future__ import annotations

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imagefactory.errors.locks import WheelMissingError
from imagefactory.locks.files import LockedSource
from imagefactory.matrix.matrix import Tool
from imagefactory.store.digests import Sha256
from imagefactory.store.indexes import Indexes, WheelLocation
from imagefactory.store.ranges import RangeFile


def lock_sources(project: str, release: str, indexes: Indexes) -> list[LockedSource]:
    """Pin the sdist and one wheel of a release; the Python files are the same in all of its wheels."""
    offers = [
        offer
        for offer in indexes.files(project)
        if _version_of(offer.file) == Version(release) and offer.sha256
    ]
    wheels = sorted((offer for offer in offers if offer.file.endswith(".whl")), key=lambda offer: offer.file)
    sdists = [offer for offer in offers if offer.file.endswith(".tar.gz")]
    if not wheels or not sdists:
        raise WheelMissingError(
            f"The index lacks the {'wheel' if not wheels else 'sdist'} of {project} {release}.",
            where=f"matrix.yaml, vllm.{release}",
            why="Mods are checked against both.",
            fix="Check PIP_INDEX_URL and UV_INDEX_URL (`invoke doctor`).",
        )
    with requests.Session() as session:
        return [_locked(project, release, offer, session) for offer in (wheels[0], sdists[0])]


def lock_sdist(project: str, release: str, indexes: Indexes) -> LockedSource:
    """Pin the sdist of a release."""
    offers = [
        offer
        for offer in indexes.files(project)
        if offer.file.endswith(".tar.gz") and _version_of(offer.file) == Version(release) and offer.sha256
    ]
    if not offers:
        raise WheelMissingError(
            f"The index lacks the sdist of {project} {release}.",
            where=f"{project} {release}",
            why="It has to be compiled from source.",
            fix="Check PIP_INDEX_URL and UV_INDEX_URL (`invoke doctor`).",
        )
    with requests.Session() as session:
        return _locked(project, release, offers[0], session)


def lock_tool(tool: Tool, machine: str, indexes: Indexes) -> LockedSource:
    """Pin the wheel of a program for one machine architecture."""
    suffix = {"amd64": "x86_64.whl", "arm64": "aarch64.whl"}[machine]
    offers = [
        offer
        for offer in indexes.files(tool.distribution)
        if offer.file.endswith(suffix) and "manylinux" in offer.file and offer.sha256
        if _version_of(offer.file) == Version(tool.version)
    ]
    if not offers:
        raise WheelMissingError(
            f"No index has a wheel of {tool.distribution} {tool.version} for {machine}.",
            where="matrix.yaml, tools",
            why="The factory runs it on that architecture.",
            fix="Choose another version, or check PIP_INDEX_URL and UV_INDEX_URL (`invoke doctor`).",
        )
    with requests.Session() as session:
        return _locked(tool.distribution, tool.version, min(offers, key=lambda offer: offer.file), session)


def _locked(project: str, release: str, offer: WheelLocation, session: requests.Session) -> LockedSource:
    local = offer.local
    size = local.stat().st_size if local is not None else RangeFile(offer.url, session).size
    return LockedSource(
        name=project, version=release, file=offer.file, sha256=Sha256(offer.sha256 or ""), size=size
    )


def _version_of(file: str) -> Version | None:
    try:
        if file.endswith(".whl"):
            return parse_wheel_filename(file)[1]
        return parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
