"""Commands that make reports from bundles: report, export, compare-runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

import click

from qualify.cli.options import BUNDLE, EXIT_CODES, bundle_argument, policy_option, sealed_bundle
from qualify.errors import EvidenceError, ExitCode, UsageError
from qualify.evidence.bundle import Bundle
from qualify.evidence.digests import canonical_json
from qualify.findings import Result
from qualify.rendering import read_material, write_reports
from qualify.reporting.compare_runs import compare_runs, print_comparison
from qualify.reporting.export import make_export
from qualify.reporting.progress import Progress
from qualify.reporting.terminal import console_for

_WORST_FIRST = (ExitCode.MACHINERY, ExitCode.REJECTED, ExitCode.INCONCLUSIVE, ExitCode.QUALIFIED)


@click.command("report", epilog=EXIT_CODES)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=BUNDLE)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the reports, one folder a bundle. Default: BUNDLE.reports beside each bundle.",
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


@click.command("export", epilog=EXIT_CODES)
@bundle_argument
@policy_option
def export_command(bundle: Path, policy: Path | None) -> int:
    """Prints BUNDLE in the field names in which release engineers keep receipts, as JSON.

    schema_version, status, image, image_id, registry_digest, gpu_ids, source_trees, runtime_packages,
    runtime_validation, limitations, artifacts. The bundle is verified and judged again; what it holds no
    evidence of is null, and the field `unknown` says why. Exits as the verdict says.
    """
    material = read_material(sealed_bundle(bundle), policy)
    sys.stdout.buffer.write(canonical_json(make_export(material)))
    return material.verdict.result.exit_code


@click.command("compare-runs")
@click.argument("first", metavar="A", type=BUNDLE)
@click.argument("second", metavar="B", type=BUNDLE)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text is a table for people: lines that changed are marked with *. JSON holds every line.",
)
def compare_runs_command(first: Path, second: Path, style: str) -> int:
    """Shows what changed from bundle A to bundle B: verdict, subject, scope, policy, floor, coverage, speed.

    Both bundles are verified and judged again, each by its own policy. A comparison is no verdict: the exit
    code is 0 if both could be read, 2 for wrong usage, and 3 if one was never sealed or is damaged.
    """
    found = compare_runs(read_material(sealed_bundle(first)), read_material(sealed_bundle(second)))
    if style == "json":
        sys.stdout.buffer.write(canonical_json(found))
    else:
        print_comparison(console_for(sys.stdout), found)
    return ExitCode.QUALIFIED


def _report(bundle: Path, target: Path, policy: Path | None, progress: Progress) -> ExitCode:
    bundle, target = bundle.resolve(), target.resolve()
    if target == bundle or bundle in target.parents:
        raise UsageError(
            "the reports would change the sealed bundle; name another directory", where=str(target)
        )
    try:
        links = quote(Path(os.path.relpath(bundle, target)).as_posix()) + "/"
        material = read_material(Bundle(bundle), policy, links)
        if material.verdict.result is Result.QUALIFIED:
            # a run that was cut short has its page; one that would pass must be whole
            sealed_bundle(bundle)
    except EvidenceError as error:
        print(f"qualify: {error}", file=sys.stderr)
        return error.exit_code
    missing = write_reports(material, Bundle(target), progress.say)
    print(f"{target}: {material.verdict.result}")
    if missing:
        print(f"qualify: {target}: could not be written: {', '.join(missing)}", file=sys.stderr)
        return ExitCode.MACHINERY
    return material.verdict.result.exit_code
