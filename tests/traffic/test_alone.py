from __future__ import annotations

from qualify.scenario import Scenario
from qualify.traffic.alone import chosen, mark_alone, rounds_of
from qualify.traffic.prompts import Vocabulary, expected_requests
from qualify.transcript import Decode

VOCABULARY = Vocabulary(size=100, special=(0,))


def scenario(*decode: str) -> Scenario:
    return Scenario.model_validate(
        {
            "format": "qualify/scenario/1",
            "name": "some",
            "description": "For tests.",
            "seed": 1,
            "decode": decode,
            "phases": [
                {"name": "warm", "judged": False, "context_tokens": [9], "decode_tokens": 2},
                {"name": "judge", "context_tokens": [20, 30, 40], "decode_tokens": 2, "repeat": 3},
            ],
        }
    )


def test_first_and_last_are_among_the_chosen() -> None:
    assert chosen(list("abcdefgh")) == {"a", "c", "f", "h"}
    assert chosen(list("abc")) == {"a", "b", "c"}
    assert chosen([]) == frozenset()


def test_each_chosen_request_is_a_round_by_itself_and_is_the_same_request() -> None:
    asked = scenario("free", "forced", "alone")
    rounds = rounds_of(asked, Decode.ALONE, VOCABULARY)
    sent = [request for round_ in rounds for request in round_.requests]
    assert [len(round_.requests) for round_ in rounds] == [1] * 4
    expected = mark_alone(asked, expected_requests(asked, VOCABULARY))
    assert [request.request_id for request in expected if request.alone] == [one.request_id for one in sent]
    among = {
        request.request_id: request.prompt
        for round_ in rounds_of(asked, Decode.FORCED, VOCABULARY)
        for request in round_.requests
    }
    assert all(among[request.request_id] == request.prompt for request in sent)


def test_a_scenario_that_does_not_ask_for_it_is_not_driven_alone() -> None:
    asked = scenario("free", "forced")
    assert rounds_of(asked, Decode.ALONE, VOCABULARY) == ()
    assert not any(request.alone for request in mark_alone(asked, expected_requests(asked, VOCABULARY)))
