"""Commands compared with the help of a server."""

import pytest

from tests.smoke.test_container import unexplained

HELP = """usage: server serve [-h] --model-path PATH [--dtype {auto,half}]
                    [--port PORT] [--trust-remote-code]
options:
  --port PORT, --listen PORT
                        Where to listen.
"""


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("server serve --model-path a --dtype half --port 1 --trust-remote-code", []),
        ("server serve --model-type llm --listen 1", []),
        ("server serve --dtype float8", ["--dtype float8"]),
        ("server serve --ports 1 --dtype auto", ["--ports"]),
    ],
)
def test_flags_and_values_that_the_help_lacks_are_found(command: str, wrong: list[str]) -> None:
    assert unexplained(command.split(), HELP) == wrong
