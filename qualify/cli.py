"""Commands and options, nothing else."""

from __future__ import annotations

import datetime
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from securesystemslib.signer import SSlibKey

from qualify import __version__
from qualify.errors import EvidenceError, ExitCode, QualifyError, UsageError
from qualify.evidence.bundle import STATEMENT, Bundle
from qualify.evidence.digests import canonical_json
from qualify.evidence.signature import generate_key, read_public_key
from qualify.evidence.statement import Statement, sha256_of
from qualify.evidence.verification import check_age, verify_bundle, verify_statement
from qualify.findings import Verdict
from qualify.images.commands import image_command, lock_command, registry_option
from qualify.inputs import read_inputs
from qualify.loopback import loopback_url
from qualify.pipeline import Options, compose_for, judge_bundle, judge_foreign, run_release, sign_sealed
from qualify.planning import make_plan
from qualify.publish import Publication, publish, read_publication_policy
from qualify.registry.reference import parse_reference
from qualify.reporting.progress import Progress
from qualify.reporting.terminal import print_verdict
from qualify.transcript import Arm

_EXIT_CODES = """Exit codes: 0 qualified, 1 rejected, 2 wrong usage, 3 inconclusive, 4 the machinery failed,
130 interrupted."""

_release = click.argument("release", type=click.Path(exists=True, path_type=Path))
_models = click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("models"),
    show_default=True,
    help="Directory for synthetic checkpoints.",
)
_without_control = click.option(
    "--no-control", is_flag=True, help="Leave the control out; then nothing can be qualified."
)
_policy = click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge by this policy instead of the release's or bundle's own.",
)


_FILE = click.Path(dir_okay=False, path_type=Path)
_bundle = click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
_public_key = click.option("--key", required=True, type=_FILE, help="Public key of whoever signs releases.")


_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(epilog=_EXIT_CODES)
@click.version_option(__version__, prog_name="qualify")
def cli() -> None:
    """Decides, with evidence, whether a composed LLM serving image may be published."""


@cli.command(epilog=_EXIT_CODES)
@_release
@click.option(
    "--bundles",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bundles"),
    show_default=True,
    help="Directory that holds the bundles.",
)
@_models
@_without_control
@click.option(
    "--attach",
    "attached",
    multiple=True,
    metavar="ARM=URL",
    help="Use a server that is already running on this machine, e.g. baseline=http://127.0.0.1:8001. "
    "Give baseline and candidate, and control if there is one.",
)
@click.option("--port", type=click.IntRange(1024, 65535), help="Port for the servers; default: a free one.")
@_policy
@click.option("--fresh", is_flag=True, help="Serve every arm again, even if nothing has changed.")
@click.option("--key", type=_FILE, help="Sign the statement with this private key (`qualify keygen`).")
@registry_option
def run(
    release: Path,
    bundles: Path,
    models: Path,
    no_control: bool,
    attached: tuple[str, ...],
    port: int | None,
    policy: Path | None,
    fresh: bool,
    key: Path | None,
    registry: str,
) -> int:
    """Serves RELEASE (a directory with release.yaml, or the file) three ways and gives a verdict.

    Arms that an earlier run has finished with the same inputs are not served again.
    """
    options = Options(
        release=release,
        bundles=bundles,
        models=models,
        with_control=not no_control,
        urls=_urls(attached),
        port=port,
        policy=policy,
        fresh=fresh,
        key=key,
        registry=registry,
    )
    return run_release(options, Progress(), _console())


@cli.command("judge", epilog=_EXIT_CODES)
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--baseline", multiple=True, type=_FILES, help="Transcripts of the baseline, two runs or more.")
@click.option("--candidate", multiple=True, type=_FILES, help="Transcripts of the candidate.")
@click.option("--control", multiple=True, type=_FILES, help="Transcripts of the control.")
@click.option("--date", help="Day of the runs (ISO), which waivers' expiry is compared with; default: today.")
@_policy
def judge_command(
    bundle: Path | None,
    baseline: tuple[Path, ...],
    candidate: tuple[Path, ...],
    control: tuple[Path, ...],
    date: str | None,
    policy: Path | None,
) -> int:
    """Judges BUNDLE again, or transcripts made elsewhere, and prints verdict.json on standard output.

    Needs no server, no GPU and no network. The summary for people goes to standard error. --baseline,
    --candidate and --control take any number of files: --baseline a.json b.json --candidate c.json.
    """
    if bundle is not None and not (baseline or candidate or control or date):
        return _print_judgement(judge_bundle(Bundle(bundle), policy), str(bundle))
    if bundle is not None or not (baseline and candidate):
        raise UsageError("give a bundle, or at least one --baseline and one --candidate file")
    verdict = judge_foreign(baseline, candidate, control, run_date=_day(date), policy_file=policy)
    return _print_judgement(verdict, "the files given")


@cli.command(epilog=_EXIT_CODES)
@_release
@_models
@_without_control
@_policy
@registry_option
def plan(release: Path, models: Path, no_control: bool, policy: Path | None, registry: str) -> int:
    """Checks RELEASE and prints what a run of it would do, without starting a server.

    The plan of a release that is served in containers names its image, which is therefore built.
    """
    inputs = read_inputs(release, with_control=not no_control, policy_file=policy)
    image = compose_for(inputs, registry, {}, Progress())
    planned = make_plan(inputs, {}, models, image).plan
    sys.stdout.buffer.write(canonical_json({"plan_id": planned.plan_id, "plan": planned}))
    return ExitCode.QUALIFIED


@cli.command(epilog=_EXIT_CODES)
@click.argument("private", type=click.Path(dir_okay=False, path_type=Path))
def keygen(private: Path) -> int:
    """Makes a pair of keys: PRIVATE, which signs, and PRIVATE.pub, which verifies.

    The private key is not encrypted; its file is readable by its owner alone. Keep it out of bundles, images
    and repositories.
    """
    public = private.with_name(private.name + ".pub")
    print(f"{generate_key(private, public)}  {private} (private), {public} (public)")
    return ExitCode.QUALIFIED


@cli.command(epilog=_EXIT_CODES)
@_bundle
@click.option("--key", required=True, type=_FILE, help="Private key (`qualify keygen`).")
def sign(bundle: Path, key: Path) -> int:
    """Judges BUNDLE again and signs a statement about it, for runs without --key.

    Exits as the verdict that is signed says.
    """
    verdict = sign_sealed(Bundle(bundle), key)
    print(f"{bundle / STATEMENT}: signed, {verdict.result}", file=sys.stderr)
    return verdict.result.exit_code


@cli.command("verify", epilog=_EXIT_CODES)
@click.argument("target", type=click.Path(exists=True, path_type=Path))
@_public_key
@click.option("--statement", type=_FILE, help="Signed statement; default: the one in the bundle.")
@click.option("--digest", help="sha256:... of the image, where TARGET is a statement without its bundle.")
@click.option("--max-age-days", type=click.IntRange(1), help="Refuse a statement whose run is older.")
def verify_command(
    target: Path, key: Path, statement: Path | None, digest: str | None, max_age_days: int | None
) -> int:
    """Verifies TARGET, a bundle or a signed statement, and prints the statement on standard output.

    Needs no network. Of a bundle every file and the verdict itself are checked. Exits 0 only if what was
    verified says qualified.
    """
    found = _verified(target, read_public_key(key), statement, digest)
    if max_age_days is not None:
        check_age(found, _today(), max_age_days)
    sys.stdout.buffer.write(canonical_json(found))
    return found.run.verdict.exit_code


def _verified(target: Path, key: SSlibKey, statement: Path | None, digest: str | None) -> Statement:
    if target.is_dir():
        found = verify_bundle(Bundle(target), key, statement).statement
        checked = "signature, every file of the bundle, and the verdict"
        if digest is not None and found.subject[0].digest["sha256"] != sha256_of(digest):
            raise EvidenceError(f"is about {found.run.subject}, not about {digest}", where=str(target))
    else:
        if digest is None or statement is not None:
            raise UsageError("of a statement alone, say with --digest which image it must be about")
        found = verify_statement(target, key, sha256_of(digest))
        checked = "signature and digest; the bundle was not at hand"
    print(f"{target}: {found.run.verdict}, {found.run.subject} (checked: {checked})", file=sys.stderr)
    return found


@cli.command("publish", epilog=_EXIT_CODES)
@_bundle
@_public_key
@click.option(
    "--to",
    "target",
    required=True,
    metavar="REGISTRY/NAME:TAG",
    help="Release repository and its immutable tag.",
)
@click.option(
    "--from", "source", metavar="REGISTRY/NAME", help="Staging repository; default: the bundle's own."
)
@click.option("--policy", type=_FILE, help="Publication policy; default: GPU, full graphs, a real model.")
@click.option("--channel", "channels", multiple=True, metavar="TAG", help="Move this mutable tag as well.")
@click.option("--dry-run", is_flag=True, help="Check everything and write nothing.")
def publish_command(
    bundle: Path,
    key: Path,
    target: str,
    source: str | None,
    policy: Path | None,
    channels: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Promotes the image that BUNDLE qualified to a release tag and attaches the signed statement.

    Refuses with 1 what was rejected, with 3 evidence that does not hold or is not enough for the publication
    policy, with 2 a tag that is taken, with 4 if a registry is in trouble. The tag is written last.
    """
    publication = Publication(
        bundle=Bundle(bundle),
        key=read_public_key(key),
        policy=read_publication_policy(policy),
        target=parse_reference(target),
        source=parse_reference(source).repository if source else None,
        channels=channels,
        today=_today(),
        dry_run=dry_run,
    )
    publish(publication, Progress().say)
    return ExitCode.QUALIFIED


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


cli.add_command(lock_command)
cli.add_command(image_command)


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


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def _print_judgement(verdict: Verdict, where: str) -> int:
    sys.stdout.buffer.write(canonical_json(verdict))
    sys.stdout.flush()
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 110)
    print_verdict(console, verdict, where)
    return verdict.result.exit_code


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
    except (KeyboardInterrupt, click.Abort):
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
        return ExitCode.MACHINERY
