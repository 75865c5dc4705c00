"""A repository of its own for each test, in a real registry that requires tokens."""

import pytest

from imagefactory.oci.registry.repository import Repository
from tests.fixtures.registries import GuardedRegistry


@pytest.fixture
def repository(guarded_registry: GuardedRegistry) -> Repository:
    """Open a new repository."""
    return guarded_registry.repository()
