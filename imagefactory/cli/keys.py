"""Commands for the keys that sign images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli.command import command

if TYPE_CHECKING:
    from imagefactory.project.project import Project


@command(
    help={
        "private": "write the private key to this file (default: in your configuration folder)",
        "public": "write the public key to this file (default: keys/signing.pub, which you commit)",
    }
)
def new(project: Project, private: str = "", public: str = "") -> None:
    """Create a key pair for signing images; FACTORY_SIGNING_PASSWORD encrypts the private key."""
    from imagefactory.publish.attest.keys import default_key_path, new_key_pair
    from imagefactory.publish.attest.signing import TRUSTED
    from imagefactory.store.paths import expand_home

    secret = expand_home(private, "--private").absolute() if private else default_key_path()
    shown = expand_home(public, "--public").absolute() if public else project.root / TRUSTED / "signing.pub"
    new_key_pair(secret, shown)
    print(secret)
    print(shown)
