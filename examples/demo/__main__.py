"""`python -m examples.demo`."""

from __future__ import annotations

import sys

from resumable.errors import ResumableError

from .announcement import announce
from .extras import check_extras
from .harness import ProcessError
from .options import parse_options


def main() -> int:
    """Run the demo; return the exit status: 0, 1 if anything differs or fails, 2 if it could not be run."""
    options = parse_options()
    try:
        check_extras()
        sys.stdout.write(announce(options))
        sys.stdout.flush()  # the imports of the next line take seconds
        from .command import run_demo  # noqa: PLC0415  # imports what was just looked for

        return run_demo(options)
    except (ResumableError, ProcessError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1 if isinstance(error, ProcessError) else 2


if __name__ == "__main__":
    sys.exit(main())
