"""The benchmarks of the client, in small."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.bench.client import Level, Measured, Outcome, ToolFailedError, compare, measure, table_of
from qualify.bench.drive import TOKENS
from qualify.bench.tools import TOOLS, Tool
from qualify.bench.volume import problems, run


def test_small_volume_is_kept_whole(tmp_path: Path) -> None:
    measured, wrong = run(8, 4, tmp_path)
    assert wrong == []
    assert measured.tokens_per_s > 0
    assert 0 < measured.ended < 10_000
    assert 10 << 20 < measured.peak_bytes < 500 << 20


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Transcripts of four requests."""
    work = tmp_path_factory.mktemp("volume")
    measure(TOOLS[0], Level("", 2, 4, 0.001), work)
    return (work / "transcripts.jsonl").read_bytes().splitlines(keepends=True)


def _first(lines: list[bytes], **changes: object) -> list[bytes]:
    item = json.loads(lines[0])
    return [json.dumps(item | changes).encode() + b"\n", *lines[1:]]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: lines, ""),
        (lambda lines: lines[1:], "1 lost"),
        (lambda lines: [*lines, lines[-1]], "twice"),
        (lambda lines: _first(lines, prompt_sha256="0"), "another prompt"),
        (lambda lines: _first(lines, failure={"kind": "timeout", "message": ""}), "not complete"),
        (lambda lines: [*lines[2:], *lines[:2]], "written before"),
        (lambda lines: _first(lines, first_token_s=0.0), "times out of order"),
        (lambda lines: _first(lines, logprobs=[-1.0] * TOKENS), "not what the server sent"),
    ],
)
def test_damaged_volume_is_told(lines: list[bytes], tmp_path: Path, damage, said: str) -> None:
    path = tmp_path / "transcripts.jsonl"
    path.write_bytes(b"".join(damage(lines)))
    told = problems(path, 4, 2)
    assert [said in line for line in told] == [True] * len(told)
    assert bool(told) == bool(said)


def test_swapped_tokens_are_told(lines: list[bytes], tmp_path: Path) -> None:
    item = json.loads(lines[0])
    for name in ("token_ids", "logprobs", "top_ids", "top_logprobs"):
        item[name][9], item[name][10] = item[name][10], item[name][9]
    path = tmp_path / "transcripts.jsonl"
    path.write_bytes(b"".join(_first(lines, **item)))
    assert "another order" in problems(path, 4, 2)[0]


def test_client_that_is_missing_or_fails_is_said_so_in_the_table(tmp_path: Path) -> None:
    ours = TOOLS[0]
    missing = Tool("missing", "", tmp_path / "python", "", ours.command)
    fails = Tool("fails", "", ours.python, "", lambda load: ["-c", "raise SystemExit(7)"])
    level, tools = Level("", 2, 2, 0.001), (ours, missing, fails)
    outcome = compare(level, tools, tmp_path)
    assert outcome.lowest
    told = [list(column.cells) for column in table_of(level, tools, outcome).columns]
    assert told[0] == ["qualify", "missing", "fails"]
    assert told[1][1] == "not installed"
    assert "exited with 7" in told[1][2]
    with pytest.raises(ToolFailedError, match="not installed"):
        compare(Level("", 2, 2, 0.001), (missing, ours), tmp_path)


def test_another_client_that_takes_less_is_told() -> None:
    ours = Measured(tokens_per_s=1.0, served=2.0, ended=2.0, peak_bytes=1)
    cheaper = replace(ours, served=1.9)
    assert Outcome(ours, {"qualify": ours}, {}).lowest
    assert not Outcome(ours, {"qualify": ours, "other": cheaper}, {}).lowest
