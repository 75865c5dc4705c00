"""Lists the servers, and finds that of a cell."""

from collections.abc import Mapping
from typing import Final

from imagefactory.project.cells import Cell
from imagefactory.project.servers import sglang, vllm
from imagefactory.project.servers.server import Server

SERVERS: Final[Mapping[str, Server]] = {server.name: server for server in (vllm.SERVER, sglang.SERVER)}


def server_of(cell: Cell) -> Server:
    return SERVERS[cell.server]
