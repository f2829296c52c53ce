"""The command line: all commands, and how every foreseeable error becomes a sentence and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from qualify import __version__
from qualify.cli.coverage import coverage_command
from qualify.cli.images import image_command, inspect_command, lock_command
from qualify.cli.options import EXIT_CODES
from qualify.cli.publishing import publish_command
from qualify.cli.reports import compare_runs_command, export_command, report_command
from qualify.cli.runs import judge_command, plan_command, run_command
from qualify.cli.signing import keygen_command, sign_command, verify_command
from qualify.errors import ExitCode, QualifyError

SECTIONS = {
    "Qualify a release": (run_command, plan_command, judge_command),
    "Look at what a run left": (report_command, coverage_command, compare_runs_command, export_command),
    "Images": (lock_command, image_command, inspect_command),
    "Sign and publish": (keygen_command, sign_command, verify_command, publish_command),
}
"""All commands in the order in which somebody new needs them."""


class _Commands(click.Group):
    """Lists the commands in sections instead of one alphabet."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections of `--help`."""
        widest = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                # the same first column in every section
                rows = [(str(item.name).ljust(widest), item.get_short_help_str(100)) for item in commands]
                formatter.write_dl(rows)


@click.group(cls=_Commands, epilog=EXIT_CODES, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="qualify")
def cli() -> None:
    """Decides, with evidence, whether a composed LLM serving image may be published.

    A release (images/NAME/release.yaml) is served three ways: baseline, candidate, and a control with one
    known fault. The same questions are asked of each. The answers give one verdict, bound to one digest, and
    everything that was seen is kept in a bundle, a directory. Begin with `qualify run images/ds4-cpu`.
    """


for _command in (command for section in SECTIONS.values() for command in section):
    cli.add_command(_command)


def spread(words: Sequence[str]) -> list[str]:
    """Lets `--baseline A B C` stand for `--baseline A --baseline B --baseline C`, as shells expand patterns.

    Args:
        words: The command line after the program's name.

    Returns:
        The words with each file option repeated before each of its files.
    """
    option = ""
    result: list[str] = []
    for word in words:
        if word.startswith("-"):
            option = word if word in ("--baseline", "--candidate", "--control") else ""
            result += [] if option else [word]
        else:
            result += [option, word] if option else [word]
    return result


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def run_command_line() -> int:
    """Runs the command line and turns every foreseeable error into a sentence and an exit code.

    Returns:
        The exit code.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return cli.main(spread(sys.argv[1:]), standalone_mode=False) or ExitCode.QUALIFIED
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort) as error:
        # click takes the end of any file for the end of the terminal's input; nothing here asks a question
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except QualifyError as error:
        print(f"qualify: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.MACHINERY
    except OSError as error:
        # A full disk, a directory that cannot be written: the machine's trouble, not the release's.
        print(f"qualify: {error}", file=sys.stderr)
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            print("  Make room where bundles and reports go, and call it again.", file=sys.stderr)
        return ExitCode.MACHINERY
