"""Prints every path that the sources of a server name as a route; as a program: `routes.py SERVER`."""

import json
import re
import sys
import sysconfig
from pathlib import Path

ROUTE = re.compile(
    r"""(?:get|post|put|patch|delete|websocket|mount|\b\w*route)\(\s*(?:path=)?f?["'](/[^"']*)["']""",
    re.IGNORECASE,
)

package = Path(sysconfig.get_path("purelib"), sys.argv[1])
files = (path for path in package.rglob("*.py") if "entrypoints" in path.parts)
sys.stdout.write(json.dumps(sorted({route for path in files for route in ROUTE.findall(path.read_text("utf-8"))})))
