"""What the library uses of the program that runs inside images: the only module that imports it.

So what a container decides, the host and the site show; they do not decide it again. An edit of what is named here
changes images, and may change what the library does.
"""

from images.serve.program import checkpoint, checks, heat, holders, hosts, loading, memory, network, settings, show
from images.serve.program import image as images
from images.serve.program.command import flag_words
from images.serve.program.drafting import LOW_ACCEPTANCE
from images.serve.program.findings import FAIL, OK, Start
from images.serve.program.keys import SIMILAR
from images.serve.program.readings import Gpu, Readings
from images.serve.program.servers.known import server_of
from images.serve.program.servers.server import Server
from images.serve.program.weights import File as WeightFile
from images.serve.program.weights import needed as needed_files
from images.serve.program.weights import read_list as list_weights

__all__ = (
    "FAIL",
    "LOW_ACCEPTANCE",
    "OK",
    "SIMILAR",
    "Gpu",
    "Readings",
    "Server",
    "Start",
    "WeightFile",
    "checkpoint",
    "checks",
    "flag_words",
    "heat",
    "holders",
    "hosts",
    "images",
    "list_weights",
    "loading",
    "memory",
    "needed_files",
    "network",
    "server_of",
    "settings",
    "show",
)
