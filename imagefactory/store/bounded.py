"""HTTP responses that are kept in memory, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import requests

MOST = 128 * 1024 * 1024
"""More than any page of an index, or any list of Debian packages, has."""
_BLOCK = 256 * 1024


class TooLargeError(requests.RequestException, ValueError):
    """A response is larger than the limit; asking again would not help."""


def get_bounded(
    get: Callable[..., requests.Response],
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: tuple[float, float],
    limit: int = MOST,
) -> requests.Response:
    """Send a GET request and read its whole body, unpacked; raise TooLargeError beyond the limit."""
    return read_bounded(get(url, headers=headers, timeout=timeout, stream=True), limit)


def read_bounded(answer: requests.Response, limit: int) -> requests.Response:
    """Read the whole body of a streamed response, unpacked; raise TooLargeError beyond the limit."""
    with answer:
        body = bytearray()
        for piece in answer.iter_content(_BLOCK):
            body += piece
            if len(body) > limit:
                raise TooLargeError(f"the answer has more than {limit:,} bytes", response=answer)
        answer._content = bytes(body)  # noqa: SLF001 - requests itself cannot limit a body
        return answer
