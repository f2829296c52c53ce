from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.errors import UsageError
from qualify.scenario import Scenario
from qualify.traffic.prompts import Vocabulary, expected_requests, plan_rounds, prompt_digest, read_vocabulary


def scenario(**changes: object) -> Scenario:
    fields: dict[str, object] = {
        "format": "qualify/scenario/1",
        "name": "mixed",
        "description": "for tests",
        "seed": 7,
        "phases": (
            {"name": "pollute", "judged": False, "context_tokens": (40, 30), "decode_tokens": 2, "repeat": 2},
            {"name": "ask", "context_tokens": (5, 20, 10), "decode_tokens": 4},
        ),
    }
    return Scenario.model_validate(fields | changes)


VOCABULARY = Vocabulary(size=100, special=(0, 1, 99))


def test_prompts_never_change_between_versions() -> None:
    # Old bundles hold digests of prompts: another generator would make all of them incomparable.
    round_ = plan_rounds(scenario(), VOCABULARY)[2]
    assert round_.requests[0].prompt == (21, 51, 30, 16, 68)
    assert [prompt_digest(request.prompt)[:8] for request in round_.requests] == [
        "514c996c",
        "5db2adac",
        "61848a4a",
    ]


def test_seed_phase_and_index_all_decide() -> None:
    def prompts(**changes: object) -> list[tuple[int, ...]]:
        return [r.prompt for round_ in plan_rounds(scenario(**changes), VOCABULARY) for r in round_.requests]

    assert prompts() == prompts()
    assert all(a != b for a, b in zip(prompts(), prompts(seed=8), strict=True))
    assert len(set(prompts())) == 7


def test_rounds_unroll_repeats_and_keep_sending_order() -> None:
    rounds = plan_rounds(scenario(), VOCABULARY)
    assert [[request.request_id for request in round_.requests] for round_ in rounds] == [
        ["mixed/pollute/0", "mixed/pollute/1"],
        ["mixed/pollute/2", "mixed/pollute/3"],
        ["mixed/ask/0", "mixed/ask/1", "mixed/ask/2"],
    ]
    assert [len(request.prompt) for request in rounds[2].requests] == [5, 20, 10]


def test_expected_requests_say_the_same_as_the_rounds() -> None:
    expected = expected_requests(scenario(), VOCABULARY)
    planned = [request for round_ in plan_rounds(scenario(), VOCABULARY) for request in round_.requests]
    assert [item.request_id for item in expected] == [item.request_id for item in planned]
    assert [item.prompt_sha256 for item in expected] == [prompt_digest(item.prompt) for item in planned]
    assert [item.judged for item in expected] == [False] * 4 + [True] * 3
    assert [item.context_tokens for item in expected] == [40, 30, 40, 30, 5, 20, 10]
    assert [item.max_tokens for item in expected] == [2] * 4 + [4] * 3


@settings(deadline=None)  # no test of speed
@given(
    size=st.integers(16, 200_000),
    special=st.sets(st.integers(0, 15), max_size=8),
    seed=st.integers(0, 2**31 - 1),
)
def test_prompts_hold_plain_ids_only(size: int, special: set[int], seed: int) -> None:
    vocabulary = Vocabulary(size, tuple(sorted(special)))
    for round_ in plan_rounds(scenario(seed=seed), vocabulary):
        for request in round_.requests:
            assert all(0 <= token < size and token not in special for token in request.prompt)


def test_all_plain_ids_are_used_about_equally() -> None:
    one = {"phases": ({"name": "ask", "context_tokens": (97_000,), "decode_tokens": 1},)}
    (round_,) = plan_rounds(scenario(**one), VOCABULARY)
    prompt = round_.requests[0].prompt
    counts = [prompt.count(token) for token in range(100)]
    assert counts[0] == counts[1] == counts[99] == 0
    # binomial(97000, 1/97): six standard deviations around 1000
    assert all(810 < count < 1190 for count in counts[2:99])


def test_digest_is_of_little_endian_words() -> None:
    import hashlib

    assert prompt_digest([1, 256]) == hashlib.sha256(bytes([1, 0, 0, 0, 0, 1, 0, 0])).hexdigest()


def test_vocabulary_gathers_special_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50, "bos_token_id": 0, "x": {}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    tokenizer = {"added_tokens": [{"id": 48, "special": True}, {"id": 50}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    read = read_vocabulary(tmp_path)
    assert read == Vocabulary(50, (0, 1, 7, 48), bos=0, tokenizer=tmp_path / "tokenizer.json")


@pytest.mark.parametrize("text", ["{", "{}", '{"vocab_size": "many"}', '{"vocab_size": 3}'])
def test_unusable_config_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_vocabulary(tmp_path)


def test_missing_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint") as caught:
        read_vocabulary(tmp_path / "nothing")
    assert "nothing" in caught.value.where
