"""The emulated path passes the contract, and fails it with the stride defect in."""

import pytest

from .suite import run_suite

SUBJECT = ("--subject", "ds4_kernels.contracts.emulated:build", "--examples", "5")


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--fault", "packed-stride"), 1)])
def test_emulated_path(tmp_path, more, code):
    run = run_suite(tmp_path, *SUBJECT, *more)
    assert run.code == code, run.output
    assert bool(run.failed) == bool(code)
