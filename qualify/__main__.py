"""Entry point of `qualify` and `python -m qualify`.

Python ends a process with exit code 1 for any uncaught exception, which here would read as *rejected*. A
mistake of the harness itself, at import too, is the machinery's failure.
"""

import sys
import traceback
from typing import NoReturn

_MACHINERY = 4


def main() -> NoReturn:
    """Runs the command line and exits with one of the codes of `docs/exit-codes.md`."""
    try:
        from qualify.cli.main import run_command_line

        code = int(run_command_line())
    except Exception:
        traceback.print_exc()
        print("qualify: this is a mistake in qualify itself, not a verdict", file=sys.stderr)
        code = _MACHINERY
    sys.exit(code)


if __name__ == "__main__":
    main()
