from __future__ import annotations

import pytest

from qualify.probe import ILLEGAL_MEMORY, NAN, TRACEBACK
from qualify.serving.probes.logsigns import read_signs

READY = "(APIServer pid=7) INFO:     Application startup complete."
STOP = "(EngineCore pid=9) INFO 12-01 10:36:59 [core.py:1] [shutdown] EngineCore: trigger received signal"


@pytest.mark.parametrize(
    ("sign", "line", "harmless"),
    [
        (TRACEBACK, "ERROR 12-01 [a.py:1] Traceback (most recent call last):", "INFO: no trace"),
        (
            ILLEGAL_MEMORY,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "CUDA errors: 0",
        ),
        (NAN, "WARNING 12-01 [s.py:3] logits contain NaN in row 3", "INFO: banana, NANO, nanny"),
    ],
)
def test_each_sign_is_seen_and_its_like_is_not(sign: str, line: str, harmless: str) -> None:
    found = read_signs([READY, line, line])
    assert found is not None
    assert (dict(found.counts), found.first[sign]) == ({sign: 2}, line)
    silent = read_signs([READY, harmless])
    assert silent is not None
    assert not silent.counts


def test_what_was_said_before_serving_and_of_the_stop_does_not_count() -> None:
    trace = "Traceback (most recent call last):"
    found = read_signs([trace, READY, "INFO: fine", STOP, trace])
    assert found is not None
    assert not found.counts


def test_warnings_of_one_kind_are_counted_together() -> None:
    lines = [
        f"(EngineCore pid=9) WARNING 12-01 10:3{n}:00 [gemm.py:20] shape {n * 128} was never tuned"
        for n in range(5)
    ]
    found = read_signs([*lines, "WARNING:root:another"])
    assert found is not None
    assert found.warnings["shape # was never tuned"] == 5
    assert found.warnings["root:another"] == 1


def test_no_log_is_not_an_empty_one() -> None:
    assert read_signs([]) is None
