"""What `./inv` runs: python tasks COMMAND..., from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts this folder there, whose modules are not meant to be found without their package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from tasks import namespace  # noqa: E402 - see above
from tasks.program import main  # noqa: E402

main(namespace)
