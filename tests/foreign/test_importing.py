from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qualify.errors import UsageError
from qualify.findings import Result, Verdict
from qualify.foreign.importing import read_foreign
from qualify.gate import judge
from qualify.policy import Policy
from qualify.transcript import Arm, Decode, RunKey

POLICY = Policy.model_validate({"format": "qualify/policy/1", "name": "foreign"})
WORDS = [f"word{number}" for number in range(50)]
REQUESTS, TOKENS, TOP = 10, 12, 8


def logits(index: int, seed: int, fault: float) -> Any:
    true = np.random.default_rng(index).normal(0, 2, (TOKENS, len(WORDS)))
    noise = np.random.default_rng([index, seed]).normal(0, 0.05, true.shape)
    wrong = np.random.default_rng([index, 99]).normal(0, fault, true.shape)
    seen = true + noise + (wrong if index else 0)
    return true, seen - np.log(np.exp(seen).sum(axis=1, keepdims=True))


def completion(index: int, seed: int, fault: float = 0.0) -> dict[str, Any]:
    true, seen = logits(index, seed, fault)
    chosen = true.argmax(axis=1)
    best = np.argsort(-seen, axis=1)[:, :TOP]
    return {
        "model": "a-model",
        "usage": {"prompt_tokens": 100 + index},
        "choices": [
            {
                "index": 0,
                "text": "",
                "finish_reason": "length",
                "logprobs": {
                    "tokens": [WORDS[token] for token in chosen],
                    "token_logprobs": [float(seen[at, token]) for at, token in enumerate(chosen)],
                    "top_logprobs": [
                        {WORDS[token]: float(seen[at, token]) for token in row} for at, row in enumerate(best)
                    ],
                },
            }
        ],
    }


def chat(index: int, seed: int, fault: float = 0.0) -> dict[str, Any]:
    given = completion(index, seed, fault)
    old = given["choices"][0].pop("logprobs")
    given["choices"][0]["logprobs"] = {
        "content": [
            {
                "token": token,
                "logprob": value,
                "top_logprobs": [{"token": name, "logprob": other} for name, other in top.items()],
            }
            for token, value, top in zip(
                old["tokens"], old["token_logprobs"], old["top_logprobs"], strict=True
            )
        ]
    }
    return given


def batch(index: int, seed: int, fault: float = 0.0) -> dict[str, Any]:
    return {"custom_id": f"request-{index}", "response": {"body": completion(index, seed, fault)}}


def recording(index: int, seed: int, fault: float = 0.0) -> dict[str, Any]:
    true, seen = logits(index, seed, fault)
    best = np.argsort(-seen, axis=1)[:, :TOP]
    chosen = true.argmax(axis=1)
    return {
        "context_tokens": 100 + index,
        "token_ids": [int(token) for token in chosen],
        "logprobs": [float(seen[at, token]) for at, token in enumerate(chosen)],
        "top": [[[int(token), float(seen[at, token])] for token in row] for at, row in enumerate(best)],
    }


Maker = Callable[..., dict[str, Any]]


def write(
    folder: Path,
    arm: str,
    number: int,
    maker: Maker,
    fault: float = 0.0,
    *,
    compressed: bool = False,
    scenario: str = "talk",
    decode: str = "free",
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda items: items,
) -> Path:
    seed = {"baseline": 10, "candidate": 20, "control": 30}[arm] + number
    answers = change([maker(index, seed, fault) for index in range(REQUESTS)])
    (folder / arm).mkdir(exist_ok=True)
    if maker is recording:
        whole = {"scenario": scenario, "run": number, "decode": decode, "requests": answers}
        path, text = folder / arm / f"{scenario}.run{number}.json", json.dumps(whole)
    else:
        path = folder / arm / f"{scenario}{'.forced' if decode == 'forced' else ''}.run{number}.jsonl"
        text = "".join(json.dumps(answer) + "\n" for answer in answers)
    if compressed:
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def baselines(folder: Path, maker: Maker, **options: Any) -> list[Path]:
    return [write(folder, "baseline", number, maker, **options) for number in (1, 2)]


def verdict_of(*files: list[Path], **options: Any) -> Verdict:
    return judge(read_foreign(*files, run_date="2026-12-01", **options), POLICY, "0" * 64)


@pytest.mark.parametrize("maker", [completion, chat, batch, recording])
@pytest.mark.parametrize("compressed", [False, True])
def test_findings_reject_and_no_finding_without_control_is_inconclusive(
    tmp_path: Path, maker: Maker, compressed: bool
) -> None:
    base = baselines(tmp_path, maker, compressed=compressed)
    right = write(tmp_path, "candidate", 1, maker, compressed=compressed)
    assert verdict_of(base, [right]).result is Result.INCONCLUSIVE
    wrong = write(tmp_path, "candidate", 2, maker, 3.0, compressed=compressed)
    verdict = verdict_of(base, [wrong])
    assert verdict.result is Result.REJECTED
    assert verdict.subject == "unbound"
    (found,) = [item for item in verdict.findings if item.rule == "divergence"]
    assert not any(name.endswith(("0000", "request-0")) for name in found.request_ids)
    control = write(tmp_path, "control", 1, maker, 3.0, compressed=compressed)
    assert verdict_of(base, [wrong], [control]).result is Result.REJECTED


def test_caught_control_is_recognised_and_only_coverage_is_missing(tmp_path: Path) -> None:
    base = baselines(tmp_path, recording)
    files = [write(tmp_path, "candidate", 1, recording)], [write(tmp_path, "control", 1, recording, 3.0)]
    verdict = verdict_of(base, *files)
    assert {item.rule for item in verdict.findings if item.weight == "untested"} == {"coverage"}
    assert verdict_of(base, *files, caught_in=["talk"]) == verdict


def test_text_and_token_ids_mean_the_same_in_every_file(tmp_path: Path) -> None:
    record = read_foreign(
        baselines(tmp_path, completion), [write(tmp_path, "candidate", 1, completion)], run_date="2026-12-01"
    )
    tables = [record.runs[key] for key in sorted(record.runs, key=str)]
    assert all(np.array_equal(table.token_ids, tables[0].token_ids) for table in tables)
    ids = write(
        tmp_path,
        "candidate",
        5,
        completion,
        change=lambda items: json.loads(json.dumps(items).replace("word", "token_id:")),
    )
    record = read_foreign([ids], [ids], run_date="2026-12-01")
    table = record.runs[RunKey(Arm.CANDIDATE, Decode.FREE, 1)]
    true, _ = logits(0, 0, 0.0)
    assert list(table.token_ids[table.heads[0].positions]) == list(true.argmax(axis=1))


def test_forced_runs_are_told_by_name_and_by_field(tmp_path: Path) -> None:
    for maker in (completion, recording):
        base = baselines(tmp_path, maker, decode="forced")
        record = read_foreign(
            base, [write(tmp_path, "candidate", 1, maker, decode="forced")], run_date="2026-12-01"
        )
        assert {key.decode for key in record.runs} == {Decode.FORCED}


def drop_logprobs(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[3]["choices"][0]["logprobs"] = None
    return items


def drop_top(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    del items[3]["choices"][0]["logprobs"]["top_logprobs"]
    return items


def two_choices(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[3]["choices"] *= 2
    return items


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_logprobs, "run1.jsonl:4: has no logprobs"),
        (drop_top, "run1.jsonl:4: has logprobs without"),
        (two_choices, "run1.jsonl:4: has 2 choices"),
    ],
)
def test_bad_lines_are_refused_by_file_and_line(tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path, "candidate", 1, completion, change=change)
    with pytest.raises(UsageError, match=message):
        verdict_of(baselines(tmp_path, completion), [path])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("talk.run1.jsonl", b'{"choices": [', "talk.run1.jsonl:1: is not a foreign transcript"),
        ("talk.json", b"[]", "talk.json: is not a foreign transcript"),
        ("talk.json", b'{"scenario": "a", "run": 1, "decode": "odd", "requests": []}', "decode is 'odd'"),
        ("talk.jsonl", b"{}", "does not say which scenario and run"),
        ("talk.run1.txt", b"", "neither .json nor .jsonl"),
        ("talk.run1.jsonl.gz", b"not gzip", "cannot be read"),
    ],
)
def test_files_of_no_known_format_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        verdict_of([path], [path])


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        verdict_of([tmp_path / "talk.json"], [])


def test_the_same_run_twice_or_two_candidate_runs_are_refused(tmp_path: Path) -> None:
    base, mine = baselines(tmp_path, recording), [write(tmp_path, "candidate", 1, recording)]
    with pytest.raises(UsageError, match="and so is"):
        verdict_of([base[0], base[0]], mine)
    with pytest.raises(UsageError, match="2 free runs of the candidate"):
        verdict_of(base, [*mine, write(tmp_path, "candidate", 2, recording)])
    with pytest.raises(UsageError, match="no file of the candidate"):
        verdict_of(base, [])
    with pytest.raises(UsageError, match="no file is of scenario walk"):
        verdict_of(base, mine, caught_in=["walk"])


def untested(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {item.rule: item.request_ids for item in verdict.findings if item.weight == "untested"}


def other_prompt(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[3]["context_tokens"] += 1
    return items


def fewer_requests(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items[:9]


def fewer_tokens(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for name in ("token_ids", "logprobs", "top"):
        items[3][name] = items[3][name][:5]
    return items


def narrower(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[3]["top"] = [row[:4] for row in items[3]["top"]]
    return items


def over_one(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items[3]["top"][2] = [[token, math.log(0.5)] for token, _ in items[3]["top"][2]]
    return items


@pytest.mark.parametrize(
    ("change", "rule", "request_id"),
    [
        (other_prompt, "prompt-differs", "talk/recorded/0003"),
        (fewer_requests, "request-missing", "talk/recorded/0009"),
        (fewer_tokens, "request-differs", "talk/recorded/0003"),
        (narrower, "top-logprobs", "talk/recorded/0003"),
        (over_one, "probability", "talk/recorded/0003"),
    ],
)
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_arms_that_were_asked_other_things_are_inconclusive_with_the_request(
    tmp_path: Path, change: Any, rule: str, request_id: str, arm: str
) -> None:
    base = baselines(tmp_path, recording)
    mine = write(tmp_path, "candidate", 1, recording)
    if arm == "baseline":
        base[1] = write(tmp_path, "baseline", 2, recording, change=change)
    else:
        mine = write(tmp_path, "candidate", 1, recording, change=change)
    verdict = verdict_of(base, [mine])
    assert verdict.result is Result.INCONCLUSIVE
    assert untested(verdict)[rule] == (request_id,)
    if rule in ("top-logprobs", "probability"):
        assert untested(verdict)["not-compared"] == (request_id,), "what cannot be compared must not be"


def test_other_model_is_inconclusive(tmp_path: Path) -> None:
    def other(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**item, "model": "another"} for item in items]

    verdict = verdict_of(
        baselines(tmp_path, completion), [write(tmp_path, "candidate", 1, completion, change=other)]
    )
    assert verdict.result is Result.INCONCLUSIVE
    assert any("different values of model: a-model, another" in reason for reason in verdict.reasons)


def test_scenario_that_only_one_arm_has_is_inconclusive(tmp_path: Path) -> None:
    base = baselines(tmp_path, recording)
    mine = [write(tmp_path, "candidate", 1, recording)]
    extra = [write(tmp_path, "candidate", 1, recording, scenario="walk")]
    verdict = verdict_of(base, mine + extra)
    assert len(untested(verdict)["request-missing"]) == REQUESTS
    verdict = verdict_of([*base, write(tmp_path, "baseline", 1, recording, scenario="walk")], mine)
    assert verdict.result is Result.INCONCLUSIVE
    assert len(untested(verdict)["not-compared"]) == REQUESTS
