"""The commands of this checkout, which `./inv` runs and `invoke` loads."""

import os
import sys

try:
    from pathlib import Path

    from imagefactory.cli.program import collection, main

    namespace = collection(root=Path(__file__).resolve().parent)
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    os._exit(130)

if __name__ == "__main__":
    main(namespace)
