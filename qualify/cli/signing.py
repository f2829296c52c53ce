"""Commands about keys and signed statements: keygen, sign, verify."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from securesystemslib.signer import SSlibKey

from qualify.cli.options import EXIT_CODES, FILE, PLAIN_EXIT_CODES, bundle_argument, public_key_option, today
from qualify.errors import EvidenceError, ExitCode, UsageError
from qualify.evidence.bundle import STATEMENT, Bundle
from qualify.evidence.digests import canonical_json
from qualify.evidence.signature import generate_key, read_public_key
from qualify.evidence.statement import Statement, sha256_of
from qualify.evidence.verification import check_age, verify_bundle, verify_statement
from qualify.signing import sign_sealed


@click.command("keygen", epilog=PLAIN_EXIT_CODES)
@click.argument("private", type=click.Path(dir_okay=False, path_type=Path))
def keygen_command(private: Path) -> int:
    """Makes a pair of keys: PRIVATE, which signs, and PRIVATE.pub, which verifies.

    The private key is not encrypted; its file is readable by its owner alone. Keep it out of bundles, images
    and repositories.
    """
    public = private.with_name(private.name + ".pub")
    print(f"{generate_key(private, public)}  {private} (private), {public} (public)")
    return ExitCode.QUALIFIED


@click.command("sign", epilog=EXIT_CODES)
@bundle_argument
@click.option("--key", required=True, type=FILE, help="Private key (`qualify keygen`).")
def sign_command(bundle: Path, key: Path) -> int:
    """Judges BUNDLE again and signs a statement about it, for runs without --key.

    Exits as the verdict that is signed says.
    """
    verdict = sign_sealed(Bundle(bundle), key)
    print(f"{bundle / STATEMENT}: signed, {verdict.result}", file=sys.stderr)
    return verdict.result.exit_code


@click.command("verify", epilog=EXIT_CODES)
@click.argument("target", type=click.Path(exists=True, path_type=Path))
@public_key_option
@click.option("--statement", type=FILE, help="Signed statement. Default: the one in the bundle.")
@click.option(
    "--digest",
    metavar="sha256:...",
    help="The image that the statement must be about; needed where TARGET is a statement without its bundle.",
)
@click.option("--max-age-days", type=click.IntRange(1), help="Refuse a run that was longer ago.")
def verify_command(
    target: Path, key: Path, statement: Path | None, digest: str | None, max_age_days: int | None
) -> int:
    """Verifies TARGET, a bundle or a signed statement, and prints the statement on standard output.

    Needs no network. Of a bundle every file and the verdict itself are checked. Exits 0 only if what was
    verified says qualified.
    """
    found = _verified(target, read_public_key(key), statement, digest)
    if max_age_days is not None:
        check_age(found, today(), max_age_days)
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
