"""Signing a bundle that was sealed without a key: where the key is not where the GPUs are."""

from __future__ import annotations

from pathlib import Path

from qualify.evidence.bundle import Bundle, verify
from qualify.evidence.signature import read_private_key
from qualify.evidence.statement import sign_bundle
from qualify.evidence.verification import check_written_verdict
from qualify.findings import Verdict
from qualify.judging import judge_bundle


def sign_sealed(bundle: Bundle, key: Path) -> Verdict:
    """Signs a bundle that was sealed without a key, after judging it again.

    Args:
        bundle: A sealed bundle.
        key: The private key.

    Returns:
        The verdict that was signed, whatever it is.

    Raises:
        EvidenceError: The bundle is damaged, was never sealed, or its verdict is not what its evidence gives.
        UsageError: The key is wrong, or the verdict binds to nothing.
    """
    signer = read_private_key(key)
    verify(bundle)
    verdict = judge_bundle(bundle)
    check_written_verdict(bundle, verdict)
    sign_bundle(bundle, verdict, signer)
    return verdict
