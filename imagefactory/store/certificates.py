"""Trusts the machine's certificate authorities, so that a company's proxy or mirror works."""

import os
import ssl
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "REQUESTS_CA_BUNDLE"
"""The variable that requests reads; without it, requests trusts only its own bundle."""
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)


def trust_the_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make this process and its children trust the machine's authorities, unless the user set a bundle."""
    if environment.get(VARIABLE) or environment.get("CURL_CA_BUNDLE"):  # requests reads both
        return
    named = [environment.get(variable) for variable in ("SSL_CERT_FILE", "PIP_CERT")]
    for path in (*named, ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if path and Path(path).is_file():
            environment[VARIABLE] = path
            return
