"""Connects to a local TLS server, with and without trust in its certificate."""

import json
import ssl
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

SUBJECT = "/CN=localhost"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        # curl 8 takes a TLS connection that ends without a farewell for an error unless it knows the length.
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"well")

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


folder = Path(tempfile.mkdtemp())
certificate, key = folder / "certificate", folder / "key"
subprocess.run(
    ["/usr/bin/openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", SUBJECT,
     "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
    check=True,
    capture_output=True,
)  # fmt: skip
server = HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"https://localhost:{server.server_port}/"


def asked(trusting: ssl.SSLContext) -> str:
    try:
        with urlopen(address, context=trusting, timeout=20) as answer:
            return str(answer.read().decode())
    except URLError as error:
        return type(error.reason).__name__


def curl(*options: str) -> int:
    return subprocess.run(
        ["/usr/bin/curl", "--silent", "--output", "/dev/null", "--max-time", "20", *options, address],
        check=False,
    ).returncode


import certifi  # noqa: E402 - the authorities of requests and the client of the model hub

report = {
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"],
    "authorities_of_packages": ssl.create_default_context(cafile=certifi.where()).cert_store_stats()["x509_ca"],
    "trusted": asked(ssl.create_default_context(cafile=str(certificate))),
    "not_trusted": asked(ssl.create_default_context()),
    "curl_trusted": curl("--cacert", str(certificate)),
    "curl_not_trusted": curl(),
}
sys.stdout.write(json.dumps(report) + "\n")
