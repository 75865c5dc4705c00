"""What tests of compiles share."""

import pytest

from imagefactory.compile.toolchain import CompileProject


@pytest.fixture
def project(compile_checkout: CompileProject) -> CompileProject:
    return compile_checkout
