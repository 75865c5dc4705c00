"""The bundle of certificate authorities that TLS clients trust, as update-ca-certificates would make it."""

from __future__ import annotations

import re

from imagefactory.layers.debian.tree import Tree
from imagefactory.oci.entry import Kind

BUNDLE = "etc/ssl/certs/ca-certificates.crt"

_CERTIFICATE = re.compile(r"usr/share/ca-certificates/(.+\.crt)")
_HEADER = """\
# Certificates that update-ca-certificates(8) puts into /etc/ssl/certs.
# A line that begins with ! leaves out a certificate. Own ones go to /usr/local/share/ca-certificates.
"""


def add_certificates(tree: Tree) -> None:
    """Concatenate all certificates into one file.

    Debian also makes a link per certificate, named by a hash, for programs that look them up one by one. They are
    not needed: curl and apt read the bundle, and OpenSSL's default file (`cert.pem`, in package openssl) leads to it.
    """
    found = {
        match[1]: tree.read(entry.path)
        for entry in tree
        if entry.kind is Kind.FILE and (match := _CERTIFICATE.fullmatch(entry.path))
    }
    if not found:
        return
    # A file without a newline at its end would glue two certificates together.
    tree.add_file(BUNDLE, b"".join(data.rstrip(b"\n") + b"\n" for data in found.values()))
    tree.add_file("etc/ca-certificates.conf", _HEADER + "".join(f"{name}\n" for name in found))
    tree.add_folder("usr/local/share/ca-certificates")
