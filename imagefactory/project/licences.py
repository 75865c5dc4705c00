"""Licences of distributions whose metadata name none, and where they are declared instead."""

from collections.abc import Mapping
from typing import Final

DECLARED_ELSEWHERE: Final[Mapping[str, str]] = {
    # In the SBOM of its wheel.
    "kernels-data": "Apache-2.0",
    # In the headers of its source files.
    "nvshmem4py-cu13": "Apache-2.0",
    # In its repository; other releases of it have metadata that say so.
    "sentencepiece": "Apache-2.0",
}
