"""Commands that run and judge: run, plan, judge."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import click

from qualify.cli.images import registry_option
from qualify.cli.options import (
    BUNDLE,
    EXIT_CODES,
    FILE,
    FILES,
    models_option,
    no_control_option,
    policy_option,
    profile_option,
    release_argument,
    sealed_bundle,
)
from qualify.errors import ExitCode, UsageError
from qualify.evidence.digests import canonical_json
from qualify.findings import Verdict
from qualify.images.stage import compose_for
from qualify.inputs import read_inputs
from qualify.judging import judge_bundle, judge_foreign
from qualify.loopback import loopback_url
from qualify.pipeline import Options, run_release
from qualify.planning import make_plan
from qualify.preview import NOT_COMPOSED, NOT_MADE, preview
from qualify.release import LocalModel
from qualify.reporting.outcome import tell_outcome
from qualify.reporting.progress import Progress
from qualify.reporting.terminal import console_for
from qualify.scenario import Profile
from qualify.transcript import Arm


@click.command("run", epilog=EXIT_CODES)
@release_argument
@click.option(
    "--bundles",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bundles"),
    show_default=True,
    help="Directory that gets a new bundle: everything that was seen, the verdict and the reports.",
)
@models_option
@no_control_option
@click.option(
    "--attach",
    "attached",
    multiple=True,
    metavar="ARM=URL",
    help="Use a server that is already running on this machine, e.g. baseline=http://127.0.0.1:8001. "
    "Give it once for the baseline, once for the candidate, and once for the control if there is one.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    help="Port of the server, and of the first where several run side by side. Default: free ones.",
)
@policy_option
@profile_option
@click.option("--fresh", is_flag=True, help="Serve every arm again, even if nothing has changed.")
@click.option("--key", type=FILE, help="Sign the statement with this private key (`qualify keygen`).")
@registry_option
def run_command(
    release: Path,
    bundles: Path,
    models: Path,
    no_control: bool,
    attached: tuple[str, ...],
    port: int | None,
    policy: Path | None,
    profile: Profile | None,
    fresh: bool,
    key: Path | None,
    registry: str,
) -> int:
    """Serves RELEASE (a directory with release.yaml, or the file) three ways and gives a verdict.

    What happens is told on standard error; the verdict, its reasons and limitations stand on standard output
    at the end. The bundle holds the same in full: report.html to look at, summary.txt and summary.md,
    junit.xml, receipt.json. In a GitHub job the summary also goes to the job's page.

    Arms that an earlier run has finished with the same inputs are not served again.

    Example: qualify run images/ds4-cpu --profile smoke
    """
    options = Options(
        release=release,
        bundles=bundles,
        models=models,
        with_control=not no_control,
        urls=_urls(attached),
        port=port,
        policy=policy,
        profile=profile,
        fresh=fresh,
        key=key,
        registry=registry,
    )
    with Progress() as progress:
        return run_release(options, progress, console_for(sys.stdout))


@click.command("judge", epilog=EXIT_CODES)
@click.argument("bundle", type=BUNDLE, required=False)
@click.option("--baseline", multiple=True, type=FILES, help="Transcripts of the baseline, two runs or more.")
@click.option("--candidate", multiple=True, type=FILES, help="Transcripts of the candidate.")
@click.option("--control", multiple=True, type=FILES, help="Transcripts of the control.")
@click.option(
    "--date",
    metavar="YYYY-MM-DD",
    help="Day of the runs, with which the expiry of waivers is compared. Default: today.",
)
@policy_option
def judge_command(
    bundle: Path | None,
    baseline: tuple[Path, ...],
    candidate: tuple[Path, ...],
    control: tuple[Path, ...],
    date: str | None,
    policy: Path | None,
) -> int:
    """Judges BUNDLE again, or transcripts made elsewhere, and prints verdict.json on standard output.

    BUNDLE is a directory that `qualify run` left and sealed. Needs no server, no GPU and no network. The
    summary for people goes to standard error. --baseline, --candidate and --control take any number of files:
    --baseline a.json b.json --candidate c.json.
    """
    if bundle is not None and not (baseline or candidate or control or date):
        return _print_judgement(judge_bundle(sealed_bundle(bundle), policy), str(bundle))
    if bundle is not None or not (baseline and candidate):
        raise UsageError("give a bundle, or at least one --baseline and one --candidate file")
    verdict = judge_foreign(baseline, candidate, control, run_date=_day(date), policy_file=policy)
    return _print_judgement(verdict, "the files given")


@click.command("plan", epilog=EXIT_CODES)
@release_argument
@models_option
@no_control_option
@policy_option
@profile_option
@registry_option
@click.option(
    "--model-config",
    type=FILES,
    help="config.json of the release's model: checks and shows what can be known without weights and image.",
)
@click.option(
    "--files-only",
    is_flag=True,
    help="Check the files and show what they say; build no image and make no model.",
)
def plan_command(
    release: Path,
    models: Path,
    no_control: bool,
    policy: Path | None,
    profile: Profile | None,
    registry: str,
    model_config: Path | None,
    files_only: bool,
) -> int:
    """Checks RELEASE and prints what a run of it would do, without starting a server.

    For each arm it prints command, mounts and environment. The plan of a release that is served in containers
    names its image, which is therefore built and pushed to the staging registry; --model-config and
    --files-only do without, and then nothing is pinned.
    """
    inputs = read_inputs(
        release, with_control=not no_control, policy_file=policy, profile=profile, model_config=model_config
    )
    model = inputs.release.model
    if files_only or model_config is not None:
        arms = preview(inputs, inputs.path(model.path) if isinstance(model, LocalModel) else NOT_MADE)
        shown = {"release": inputs.release.name, "pinned": False, "arms": arms}
    else:
        image = compose_for(inputs, registry, attached=False, say=Progress().say)
        planned = make_plan(inputs, {}, models, image)
        arms = preview(inputs, planned.model, image.identity.reference if image else NOT_COMPOSED)
        shown = {"plan_id": planned.plan.plan_id, "plan": planned.plan, "arms": arms}
    sys.stdout.buffer.write(canonical_json(shown))
    return ExitCode.QUALIFIED


def _urls(attached: tuple[str, ...]) -> dict[Arm, str]:
    urls = {}
    for item in attached:
        name, separator, url = item.partition("=")
        if not separator or name not in list(Arm):
            raise UsageError(f"--attach {item}: give ARM=URL with ARM one of {', '.join(Arm)}")
        if Arm(name) in urls:
            raise UsageError(f"--attach gives {name} twice")
        urls[Arm(name)] = loopback_url(url)
    if urls and not {Arm.BASELINE, Arm.CANDIDATE} <= set(urls):
        raise UsageError("--attach needs at least baseline=URL and candidate=URL")
    return urls


def _day(text: str | None) -> str:
    try:
        return (datetime.date.fromisoformat(text) if text else datetime.date.today()).isoformat()
    except ValueError as error:
        raise UsageError(f"--date {text}: {error}; give YYYY-MM-DD") from error


def _print_judgement(verdict: Verdict, where: str) -> int:
    sys.stdout.buffer.write(canonical_json(verdict))
    sys.stdout.flush()
    tell_outcome(console_for(sys.stderr), verdict, where, "verdict.json")
    return verdict.result.exit_code
