"""Judges a large run and reports time and memory: ``python -m qualify.bench.judge [POSITIONS ...]``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qualify.bench.memory import peak_bytes
from qualify.findings import Result
from qualify.gate import judge
from qualify.policy import Policy
from qualify.record import ArmRecord, ArmState, ExpectedRequest, RunRecord, ScenarioExpectation
from qualify.runtable import RequestHead, RunTable
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode, RunKey

TOKENS, ROWS, TOP, VOCABULARY, CONTEXT = 40, 16, 20, 129_280, 3_000
"""Tokens a request, requests at once, listed tokens, vocabulary of DeepSeek V4, shortest prompt."""

NOISE = 0.03
"""Standard deviation of the noise in the log probabilities."""

SECONDS, BYTES = 10.0, 1 << 30
"""What a million positions may take."""

POLICY = Policy.model_validate({"format": "qualify/policy/1", "name": "benchmark"})
RUNS = (
    RunKey(Arm.BASELINE, Decode.FORCED, 1),
    RunKey(Arm.BASELINE, Decode.FORCED, 2),
    RunKey(Arm.CANDIDATE, Decode.FORCED, 1),
    RunKey(Arm.CONTROL, Decode.FORCED, 1),
)


def build_record(positions: int) -> RunRecord:
    """A run whose every arm answered so many positions; noise everywhere, a packed stride in the control.

    Args:
        positions: Positions of one run, rounded down to whole batches.
    """
    batches = max(1, positions // (TOKENS * ROWS))
    requests = batches * ROWS
    names = [f"load/main/{number:06d}" for number in range(requests)]
    return RunRecord(
        release="benchmark",
        run_date="2026-12-01",
        subject="unbound",
        scope=(("evidence", "synthetic"),),
        replay="as made",
        scenarios=(
            ScenarioExpectation(
                name="load",
                decode_ways=("forced",),
                control_can_act=True,
                requests=tuple(
                    ExpectedRequest(
                        request_id=name,
                        scenario="load",
                        judged=True,
                        context_tokens=CONTEXT + number % ROWS,
                        max_tokens=TOKENS,
                        prompt_sha256=name,
                    )
                    for number, name in enumerate(names)
                ),
            ),
        ),
        arms={
            arm: ArmRecord(
                arm=arm, state=ArmState.SERVED, fault="packed-stride" if arm is Arm.CONTROL else None
            )
            for arm in Arm
        },
        runs={key: _run(key, names) for key in RUNS},
        steps={arm: _steps(arm, names, batches) for arm in Arm},
        control_configured=True,
        max_model_len=32_768,
        compress_ratio=128,
    )


def _run(key: RunKey, names: Sequence[str]) -> RunTable:
    positions = len(names) * TOKENS
    top_ids = np.empty((positions, TOP), dtype=np.int32)
    top_logprobs = np.empty((positions, TOP), dtype=np.float32)
    token_ids = np.empty(positions, dtype=np.int32)
    logprobs = np.empty(positions, dtype=np.float32)
    batch = TOKENS * ROWS
    for start in range(0, positions, batch):
        part = slice(start, start + batch)
        ids, values = _batch(key, start)
        token_ids[part], logprobs[part] = ids[:, 0], values[:, 0]
        order = np.argsort(-values, axis=1)[:, :TOP]
        top_ids[part] = np.take_along_axis(ids, order, axis=1)
        top_logprobs[part] = np.take_along_axis(values, order, axis=1)
    heads = tuple(_head(key, name, number) for number, name in enumerate(names))
    return RunTable(
        key=key,
        heads=heads,
        token_ids=token_ids,
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        duplicates=(),
    )


def _batch(key: RunKey, start: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Token ids and log probabilities of one batch: 24 candidates, the same in all runs, with noise."""
    listed = TOP + 4
    true = np.random.default_rng(start)
    shape = (TOKENS * ROWS, listed)
    ids = true.integers(0, VOCABULARY // listed, shape) + np.arange(listed) * (VOCABULARY // listed)
    values = -2.0 - 0.25 * np.arange(listed) + true.normal(0, 0.1, shape)
    own = np.random.default_rng([start, RUNS.index(key)])
    values += own.normal(0, NOISE, shape)
    if key.arm is Arm.CONTROL:
        rows = np.arange(TOKENS * ROWS) // TOKENS
        values += (rows > 0)[:, None] * true.normal(0, 0.5, shape)
    return ids.astype(np.int32), values - np.log(np.exp(values).sum(axis=1, keepdims=True) * 1.05)


def _head(key: RunKey, name: str, number: int) -> RequestHead:
    return RequestHead(
        request_id=name,
        server_request_id=f"{name}@{key}",
        scenario="load",
        phase="main",
        index=number % ROWS,
        judged=True,
        prompt_sha256=name,
        context_tokens=CONTEXT + number % ROWS,
        max_tokens=TOKENS,
        forced_sha256=name,
        finish_reason="length",
        failure=None,
        sent_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
        complete=True,
        start=number * TOKENS,
        length=TOKENS,
    )


def _steps(arm: Arm, names: Sequence[str], batches: int) -> StepTable:
    """One decode step for each token after the first of each batch of each of the arm's runs."""
    runs = [key for key in RUNS if key.arm is arm]
    count = len(runs) * batches * (TOKENS - 1)
    step = np.repeat(np.arange(count, dtype=np.int32), ROWS)
    row = np.tile(np.arange(ROWS, dtype=np.int32), count)
    return StepTable(
        decode=np.ones(count, dtype=bool),
        replayed=np.full(count, arm is not Arm.BASELINE),
        whole=np.full(count, arm is not Arm.BASELINE),
        rows=np.full(count, ROWS, dtype=np.int32),
        padded_rows=np.full(count, ROWS, dtype=np.int32),
        step=step,
        request=step // (TOKENS - 1) * ROWS + row,
        row=row,
        computed=CONTEXT + row + step % (TOKENS - 1),
        reached=CONTEXT + row + 1 + step % (TOKENS - 1),
        server_request_ids=tuple(f"{name}@{key}" for key in runs for name in names),
    )


def main(arguments: Sequence[str]) -> int:
    """Judges runs of growing size; fails where a million positions take more than they may.

    Judging uses one thread, so its processor time is what it takes on a machine with nothing else to do.

    Args:
        arguments: Positions of each run to judge; a quarter, half and a whole million where left out.
    """
    failed = False
    for positions in [int(argument) for argument in arguments] or [250_000, 500_000, 1_000_000]:
        record = build_record(positions)
        compared = len(record.runs[RUNS[0]].token_ids)
        clock, processor = time.perf_counter(), time.process_time()
        verdict = judge(record, POLICY, "0" * 64)
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        peak = peak_bytes() or 0
        print(
            f"{compared:9,d} positions of each of {len(RUNS)} runs: {verdict.result}; {processor:.1f} s of "
            f"one core ({processor / compared * 1e6:.1f} us a position), {clock:.1f} s by the clock; peak "
            f"memory {peak / 2**20:.0f} MiB with the input"
        )
        allowed = SECONDS * max(1.0, compared / 1e6)
        failed |= processor > allowed or peak > BYTES or verdict.result is not Result.QUALIFIED
        del record
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
