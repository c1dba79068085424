"""`python -m resumable`."""

from __future__ import annotations

import sys

from resumable.cli import main

if __name__ == "__main__":
    sys.exit(main())
