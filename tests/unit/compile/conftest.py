"""What tests of compiles share."""

from __future__ import annotations

import pytest

from imagefactory.compile.toolchain import CompileProject


@pytest.fixture
def project(compile_checkout: CompileProject) -> CompileProject:
    return compile_checkout
