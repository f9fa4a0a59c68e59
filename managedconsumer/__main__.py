"""``python -m managedconsumer``."""

from __future__ import annotations

import sys

from managedconsumer.cli import main

if __name__ == "__main__":
    sys.exit(main())
