"""The commands of this checkout, which `./inv` runs and `invoke` loads."""

from pathlib import Path

from imagefactory.cli.program import collection, main

namespace = collection(root=Path(__file__).resolve().parent)

if __name__ == "__main__":
    main(namespace)
