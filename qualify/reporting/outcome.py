"""Tells how a run came out: to whoever looks at the console, and on the summary page of a CI job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from qualify.findings import Verdict
from qualify.reporting.markdown import markdown
from qualify.reporting.terminal import print_verdict

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file to which GitHub's runner takes what a job's summary page shows."""


def tell_outcome(
    console: Console, verdict: Verdict, where: str, rest: str, environment: Mapping[str, str] = os.environ
) -> None:
    """Prints a verdict, and appends it to the summary page of the CI job where there is one.

    Args:
        console: Where it is printed.
        verdict: The verdict.
        where: Where the evidence is.
        rest: Where all that is cut on one screen can be read.
        environment: Variables of the process.
    """
    print_verdict(console, verdict, where, rest)
    path = environment.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as page:
            page.write(markdown(verdict, Path(where).name) + "\n")
    except OSError as error:
        # the page is a courtesy: the verdict stands without it
        console.print(f"{STEP_SUMMARY}: {path}: {error.strerror}", markup=False, soft_wrap=True)
