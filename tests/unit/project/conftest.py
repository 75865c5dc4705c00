"""A small matrix.yaml, loaded or as a file that a test may change."""

from pathlib import Path

import pytest

from imagefactory.project.matrix import Matrix, load_matrix
from tests.fixtures.checkouts import Checkout
from tests.fixtures.small_matrix import MATRIX


@pytest.fixture
def small_matrix(tmp_path: Path) -> Checkout:
    """Make a folder with nothing in it but a small matrix.yaml."""
    checkout = Checkout(tmp_path)
    checkout.matrix.write_text(MATRIX, "utf-8")
    return checkout


@pytest.fixture
def matrix(small_matrix: Checkout) -> Matrix:
    return load_matrix(small_matrix.matrix)
