"""Tests that every list of servers names the same ones."""

from typing import get_args

from imagefactory.project.cells import Cell
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import TITLES
from imagefactory.project.servers.known import SERVERS, server_of
from images.shipped.conditions import Condition
from images.shipped.values import ServerName


def test_matrix_mods_and_factory_know_the_same_servers() -> None:
    assert list(SERVERS) == list(TITLES) == list(get_args(ServerName))
    assert set(TITLES) <= Matrix.model_fields.keys() & Condition.model_fields.keys()


def test_server_of_a_cell_is_told_by_its_version() -> None:
    versions = {"0.32.0": "vLLM", "0.28.0-graft": "vLLM", "nightly": "vLLM", "sglang-0.5.21": "SGLang"}
    cells = {version: Cell("m", version, "gb10", "linux/arm64") for version in versions}
    assert {version: server_of(cell).title for version, cell in cells.items()} == versions
