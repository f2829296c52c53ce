"""The same record and policy give the same bytes, whatever process and processor judge."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from qualify.gate import judge
from tests.judgefactory import POLICY, World, build, no_fault, packed

ROOT = Path(__file__).parents[2]


def digest() -> str:
    """Digest of verdicts on runs without and with noise, right and wrong."""
    found = hashlib.sha256()
    for noise in (0.0, 0.05, 0.5):
        for fault in (no_fault, packed):
            record = build(World(scenarios={"eight": 8, "twelve": 12}, noise=noise), candidate=fault)
            found.update(msgspec.json.encode(judge(record, POLICY, "0" * 64), order="sorted"))
    return found.hexdigest()


def elsewhere(**environment: str) -> str:
    command = "from tests.compare.test_same_bytes import digest; print(digest())"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("seed", ["1", "2"])
def test_other_hash_seeds_give_the_same_bytes(seed: str) -> None:
    assert elsewhere(PYTHONHASHSEED=seed) == digest()


def test_an_older_processor_gives_the_same_bytes() -> None:
    from numpy._core import _multiarray_umath as core

    present = [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]
    assert elsewhere(NPY_DISABLE_CPU_FEATURES=" ".join(present)) == digest()
