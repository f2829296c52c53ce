from __future__ import annotations

import json
from typing import Any

import pytest

from qualify.traffic.answer import Answer, MalformedAnswerError, ServerSaidError
from qualify.transcript import MINUS_INFINITY


def body(**changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": None,
        "token_ids": [5],
        "prompt_token_ids": [3, 4],
        "logprobs": {
            "tokens": ["token_id:5"],
            "token_logprobs": [-2.5],
            "top_logprobs": [{"token_id:5": -2.5, "token_id:9": -0.5, "token_id:7": -1.0}],
        },
    }
    return {"id": "cmpl-x", "choices": [choice | changes]}


def logprobs(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = body()["choices"][0]["logprobs"]
    return found | changes


def answer(top: int = 2) -> Answer:
    return Answer(prompt=(3, 4), top=top)


def test_top_is_ranked_best_first_and_cut() -> None:
    taken = answer()
    assert taken.add(json.dumps(body())) == 1
    assert taken.token_ids == [5]
    assert taken.logprobs == [-2.5]
    assert taken.top_ids == [(9, 7)]
    assert taken.top_logprobs == [(-0.5, -1.0)]


def test_ties_go_by_id_and_nan_ranks_last() -> None:
    taken = answer(top=3)
    top = {"token_id:5": None, "token_id:9": -1.0, "token_id:7": -1.0}
    taken.add(json.dumps(body(logprobs=logprobs(token_logprobs=[None], top_logprobs=[top]))))
    assert taken.top_ids == [(7, 9, 5)]
    assert taken.top_logprobs == [(-1.0, -1.0, None)]
    assert taken.logprobs == [None]


def test_minus_infinity_stays_visible() -> None:
    taken = answer(top=1)
    top = {"token_id:5": MINUS_INFINITY}
    taken.add(json.dumps(body(logprobs=logprobs(token_logprobs=[MINUS_INFINITY], top_logprobs=[top]))))
    assert taken.logprobs == [MINUS_INFINITY]
    assert taken.top_logprobs == [(MINUS_INFINITY,)]


def test_without_top_the_emitted_tokens_logprob_is_kept() -> None:
    taken = answer(top=0)
    taken.add(json.dumps(body()))
    assert taken.logprobs == [-2.5]
    assert taken.top_ids == [()]


def test_usage_report_without_choices_adds_nothing() -> None:
    taken = answer()
    assert taken.add(json.dumps({"choices": [], "usage": {"total_tokens": 9}})) == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"choices": None}, "one choice"),
        ({"choices": body()["choices"] * 2}, "one choice"),
        (body(index=1), "one choice"),
        (body(token_ids=None), "token_ids are missing"),
        (body(logprobs=None), "logprobs are missing"),
        (body(logprobs=logprobs(top_logprobs=None)), "logprobs are missing"),
        (body(token_ids=[5, 5]), "differ in length"),
        (body(logprobs=logprobs(token_logprobs=[])), "differ in length"),
        (body(logprobs=logprobs(tokens=["token_id:6"])), "token_ids and tokens differ"),
        (body(logprobs=logprobs(tokens=["hello"])), "'hello' came"),
        (body(logprobs=logprobs(top_logprobs=[{"hello": -1.0, "token_id:2": -1.0}])), "'hello' came"),
        (body(logprobs=logprobs(top_logprobs=[{"token_id:5": -1.0}])), "1 top logprobs, 2 asked for"),
        (body(logprobs=logprobs(top_logprobs=[None])), "0 top logprobs, 2 asked for"),
        (body(prompt_token_ids=[3]), "prompt is not the one"),
        (body(token_ids="5"), "Expected `array"),
    ],
)
def test_what_does_not_fit_is_malformed(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(MalformedAnswerError, match=why):
        answer().add(json.dumps(wrong))


@pytest.mark.parametrize(
    "text", ['{"choices": [{"index"', "", "NaN", json.dumps(body()).replace("-2.5", "NaN")]
)
def test_what_is_no_json_is_malformed(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        answer().add(text)


def test_nothing_may_follow_the_finish() -> None:
    taken = answer()
    taken.add(json.dumps(body(finish_reason="length")))
    with pytest.raises(MalformedAnswerError, match="more came"):
        taken.add(json.dumps(body()))


def test_error_report_is_the_servers() -> None:
    with pytest.raises(ServerSaidError, match="engine is dead") as caught:
        answer().add(json.dumps({"error": {"message": "engine is dead", "code": 500}}))
    assert caught.value.status == 500
