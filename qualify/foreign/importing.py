"""Turns transcripts made by others into a run record, so that two servers somebody compared can be judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from qualify.errors import UsageError
from qualify.foreign.answers import Answer, ForeignRun
from qualify.foreign.formats import Vocabulary, read_file
from qualify.record import (
    AS_RECORDED,
    ArmRecord,
    ArmState,
    ExpectedRequest,
    RunRecord,
    ScenarioExpectation,
)
from qualify.runtable import RunTable, collect
from qualify.steps import StepTable
from qualify.transcript import Arm, Decode, RunKey, Transcript

UNBOUND = "unbound"

Files = dict[Arm, tuple[ForeignRun, ...]]


def read_foreign(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    control: Sequence[Path] = (),
    *,
    run_date: str,
    caught_in: Sequence[str] = (),
) -> RunRecord:
    """Reads files of transcripts and lays them out as a run.

    Args:
        baseline: Files of the baseline; runs are told apart by their number.
        candidate: Files of the candidate, one run.
        control: Files of the control, one run; may be left out.
        run_date: ISO date that waivers' expiry is compared with.
        caught_in: Scenarios in which the control must be caught; every scenario with at least two requests
            where left out.

    Raises:
        UsageError: A file is not what it should be, or two files are the same scenario of the same run.
    """
    vocabulary = Vocabulary()
    paths = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate, Arm.CONTROL: control}
    files = {arm: tuple(read_file(path, vocabulary) for path in paths[arm]) for arm in paths}
    return lay_out(files, run_date=run_date, caught_in=caught_in)


def lay_out(files: Files, *, run_date: str, caught_in: Sequence[str] = ()) -> RunRecord:
    """The same from files that were read already.

    Args:
        files: The files of each arm.
        run_date: ISO date that waivers' expiry is compared with.
        caught_in: Scenarios in which the control must be caught; every scenario with at least two requests
            where left out.

    Returns:
        A record of servers that served to their end; nothing is known of them but what they answered.

    Raises:
        UsageError: Two files are the same scenario of the same run, or an arm has none or too many.
    """
    for arm in (Arm.BASELINE, Arm.CANDIDATE):
        if not files.get(arm):
            raise UsageError(f"no file of the {arm} was given", advice="Give at least one.")
    control = bool(files.get(Arm.CONTROL))
    arms = [Arm.BASELINE, Arm.CANDIDATE] + ([Arm.CONTROL] if control else [])
    runs: dict[RunKey, RunTable] = {}
    asked = _asked([run for arm in arms for run in files[arm]])
    for arm in arms:
        for key, group in _by_run(arm, files[arm]).items():
            runs[key] = collect(key, (item for run in group for item in _transcripts(key, run, asked)))
    scenarios = _scenarios(files, asked, caught_in)
    unknown = sorted(set(caught_in) - {scenario.name for scenario in scenarios})
    if unknown:
        raise UsageError(f"no file is of scenario {', '.join(unknown)}, where the control should be caught")
    lengths = {run.max_model_len for arm in arms for run in files[arm]}
    return RunRecord(
        release="foreign transcripts",
        run_date=run_date,
        subject=UNBOUND,
        scope=(("evidence", "transcripts recorded by others"), ("image", UNBOUND)),
        replay=AS_RECORDED,
        scenarios=scenarios,
        arms={
            arm: ArmRecord(
                arm=arm, state=ArmState.SERVED, fault="as recorded" if arm is Arm.CONTROL else None
            )
            for arm in arms
        },
        runs=runs,
        steps={arm: steps for arm in arms if (steps := _steps(files[arm])) is not None},
        control_configured=control,
        incomplete=_mixtures([run for arm in arms for run in files[arm]]),
        max_model_len=lengths.pop() if len(lengths) == 1 else None,
    )


def _by_run(arm: Arm, files: Iterable[ForeignRun]) -> dict[RunKey, list[ForeignRun]]:
    """Files of each run; runs are numbered anew, in the order of their numbers."""
    groups: dict[tuple[str, int], dict[str, ForeignRun]] = {}
    for run in files:
        group = groups.setdefault((run.decode, run.number), {})
        if run.scenario in group:
            raise UsageError(
                f"is scenario {run.scenario} of {run.decode} run {run.number}, and so is "
                f"{group[run.scenario].where}",
                where=run.where,
                advice=f"Give each scenario of each run of the {arm} once.",
            )
        group[run.scenario] = run
    keyed: dict[RunKey, list[ForeignRun]] = {}
    for decode in Decode:
        numbers = sorted(number for way, number in groups if way == decode)
        if arm is not Arm.BASELINE and len(numbers) > 1:
            raise UsageError(
                f"{len(numbers)} {decode} runs of the {arm} were given",
                advice="One run is judged at a time; only the baseline is given more often.",
            )
        for rank, number in enumerate(numbers, start=1):
            keyed[RunKey(arm, decode, rank)] = list(groups[decode, number].values())
    return keyed


def _asked(files: Iterable[ForeignRun]) -> dict[str, int]:
    """Tokens that each request was asked for: as many as any arm emitted."""
    asked: dict[str, int] = {}
    for run in files:
        for answer in run.answers:
            name = _request_id(run, answer)
            asked[name] = max(asked.get(name, 1), len(answer.token_ids))
    return asked


def _request_id(run: ForeignRun, answer: Answer) -> str:
    return f"{run.scenario}/recorded/{answer.name}"


def _transcripts(key: RunKey, run: ForeignRun, asked: dict[str, int]) -> Iterable[Transcript]:
    for index, answer in enumerate(run.answers):
        name = _request_id(run, answer)
        stopped = answer.finish_reason == "stop"
        yield Transcript(
            request_id=name,
            server_request_id=f"{name}@{key}",
            scenario=run.scenario,
            phase="recorded",
            index=index,
            judged=True,
            run=key,
            prompt_sha256=_digest(answer.prompt),
            context_tokens=answer.context_tokens,
            max_tokens=asked[name] if stopped else len(answer.token_ids),
            forced_sha256=None,
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            top_ids=answer.top_ids,
            top_logprobs=answer.top_logprobs,
            finish_reason=answer.finish_reason,
            failure=None,
            sent_s=0.0,
            first_token_s=None,
            finished_s=0.0,
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _scenarios(
    files: Files, asked: dict[str, int], caught_in: Sequence[str]
) -> tuple[ScenarioExpectation, ...]:
    """What every arm must have: all requests that any file has, decoded in the ways that the candidate was.

    Prompts are those of the first file that has the request, the baseline's where it has it.
    """
    ways: dict[str, set[str]] = {}
    requests: dict[str, dict[str, ExpectedRequest]] = {}
    mine = {(run.scenario, run.decode) for run in files[Arm.CANDIDATE]}
    tried = {scenario for scenario, _ in mine}
    for run in (run for arm in files for run in files[arm]):
        if run.scenario not in tried or (run.scenario, run.decode) in mine:
            ways.setdefault(run.scenario, set()).add(run.decode)
        for answer in run.answers:
            name = _request_id(run, answer)
            expected = ExpectedRequest(
                request_id=name,
                scenario=run.scenario,
                judged=True,
                context_tokens=answer.context_tokens,
                max_tokens=asked[name],
                prompt_sha256=_digest(answer.prompt),
            )
            requests.setdefault(run.scenario, {}).setdefault(name, expected)
    return tuple(
        ScenarioExpectation(
            name=name,
            decode_ways=tuple(sorted(ways[name])),
            control_can_act=name in caught_in if caught_in else len(requests[name]) > 1,
            requests=tuple(requests[name].values()),
        )
        for name in sorted(ways)
    )


def _steps(files: Iterable[ForeignRun]) -> StepTable | None:
    """Steps as the files counted them: how many of which size, not which request in which row."""
    sizes: list[int] = []
    replayed: list[bool] = []
    whole: list[bool] = []
    for run in files:
        for step, count in run.dispatch:
            mode, _, rows = step.partition(":")
            if rows.isdecimal() and int(rows) <= len(run.answers):
                sizes += [int(rows)] * count
                replayed += [mode != "NONE"] * count
                whole += [mode == "FULL"] * count
    if not sizes:
        return None
    none = np.zeros(0, dtype=np.int32)
    return StepTable(
        decode=np.ones(len(sizes), dtype=bool),
        replayed=np.array(replayed, dtype=bool),
        whole=np.array(whole, dtype=bool),
        rows=np.array(sizes, dtype=np.int32),
        padded_rows=np.zeros(len(sizes), dtype=np.int32),
        step=none,
        request=none,
        row=none,
        computed=none,
        reached=none,
        server_request_ids=(),
    )


def _mixtures(files: Sequence[ForeignRun]) -> tuple[str, ...]:
    """Differences between servers that make their answers incomparable."""
    said: dict[str, set[str]] = {}
    for run in files:
        for label, value in run.served:
            said.setdefault(label, set()).add(value)
    return tuple(
        f"the files name different values of {label}: {', '.join(sorted(values))}"
        for label, values in sorted(said.items())
        if len(values) > 1
    )
