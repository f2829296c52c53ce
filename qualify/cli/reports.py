"""Commands that make reports from bundles: report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

import click

from qualify.cli.options import BUNDLE, EXIT_CODES, policy_option
from qualify.errors import EvidenceError, ExitCode, UsageError
from qualify.evidence.bundle import Bundle
from qualify.rendering import read_material, write_reports
from qualify.reporting.progress import Progress

_WORST_FIRST = (ExitCode.MACHINERY, ExitCode.REJECTED, ExitCode.INCONCLUSIVE, ExitCode.QUALIFIED)


@click.command("report", epilog=EXIT_CODES)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=BUNDLE)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the reports, one folder a bundle; default: BUNDLE.reports beside each bundle.",
)
@policy_option
def report_command(bundles: tuple[Path, ...], into: Path | None, policy: Path | None) -> int:
    """Judges each BUNDLE again and writes all its reports anew, report.html among them.

    Needs no server, no GPU and no network. The bundle itself is sealed and stays as it is: the reports go
    beside it. Exits as the verdict says; of several bundles the worst one counts.
    """
    progress = Progress()
    targets = [
        (into / bundle.name) if into else bundle.with_name(bundle.name + ".reports") for bundle in bundles
    ]
    if len(set(targets)) < len(targets):
        raise UsageError(
            "two bundles have the same name; report them one by one, --into different directories"
        )
    codes = [
        _report(bundle, target, policy, progress) for bundle, target in zip(bundles, targets, strict=True)
    ]
    return next(code for code in _WORST_FIRST if code in codes)


def _report(bundle: Path, target: Path, policy: Path | None, progress: Progress) -> ExitCode:
    bundle, target = bundle.resolve(), target.resolve()
    if target == bundle or bundle in target.parents:
        raise UsageError(
            "the reports would change the sealed bundle; name another directory", where=str(target)
        )
    try:
        links = quote(Path(os.path.relpath(bundle, target)).as_posix()) + "/"
        material = read_material(Bundle(bundle), policy, links)
    except EvidenceError as error:
        print(f"qualify: {error}", file=sys.stderr)
        return error.exit_code
    missing = write_reports(material, Bundle(target), progress.say)
    print(f"{target}: {material.verdict.result}")
    if missing:
        print(f"qualify: {target}: could not be written: {', '.join(missing)}", file=sys.stderr)
        return ExitCode.MACHINERY
    return material.verdict.result.exit_code
