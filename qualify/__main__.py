"""Entry point of `qualify` and `python -m qualify`.

Python ends a process with exit code 1 for any uncaught exception, which here would read as *rejected*. A
mistake of the harness itself, at import too, is the machinery's failure. An interruption stays one.
"""

import asyncio
import sys
import traceback
from typing import NoReturn

_MACHINERY = 4
_INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command line and exits with one of the codes of `docs/exit-codes.md`."""
    try:
        from qualify.cli.main import run_command_line

        code = int(run_command_line())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        code = _INTERRUPTED
    except BaseException:  # SystemExit too: nothing but a verdict may end with 1
        traceback.print_exc()
        print("qualify: this is a mistake in qualify itself, not a verdict", file=sys.stderr)
        code = _MACHINERY
    sys.exit(code)


if __name__ == "__main__":
    main()
