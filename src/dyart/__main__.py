"""``python -m dyart``: the command line."""

import sys

from dyart.cli import main

if __name__ == "__main__":
    sys.exit(main())
