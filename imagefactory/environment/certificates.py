"""Trust the certificate authorities of the machine, so that a company's proxy or mirror just works."""

from __future__ import annotations

import os
import ssl
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "REQUESTS_CA_BUNDLE"
"""The variable that requests reads; without it, requests trusts only the bundle that it ships with."""
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)


def trust_the_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make this process and its children trust what the machine trusts, unless the user named a bundle."""
    if environment.get(VARIABLE) or environment.get("CURL_CA_BUNDLE"):
        return
    named = (
        environment.get("SSL_CERT_FILE"),
        environment.get("PIP_CERT"),
        ssl.get_default_verify_paths().cafile,
    )
    found = next((path for path in (*named, *_BUNDLES) if path and Path(path).is_file()), None)
    if found:
        environment[VARIABLE] = found
