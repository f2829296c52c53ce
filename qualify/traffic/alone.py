"""A few requests sent one at a time: what the same server answers when nobody else asks.

A defect that both arms share does not show between them. It shows between a request among others and the same
request alone, made to emit the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qualify.record import ExpectedRequest
from qualify.scenario import Arrival, Scenario
from qualify.traffic.prompts import Round, Vocabulary, plan_rounds
from qualify.transcript import Decode

ALONE_REQUESTS = 4
"""Judged requests of a scenario that are sent alone: its first, its last, and two between. The defects of
batches that only this sees hit most requests in the field; each costs a prefill and a decode by itself."""


def chosen(request_ids: Sequence[str]) -> frozenset[str]:
    """The requests that are sent alone.

    Args:
        request_ids: Judged requests of a scenario, in sending order.

    Returns:
        `ALONE_REQUESTS` of them, evenly spread, the first and the last among them; all where there are fewer.
    """
    if len(request_ids) <= ALONE_REQUESTS:
        return frozenset(request_ids)
    return frozenset(
        request_ids[round(at)] for at in np.linspace(0, len(request_ids) - 1, ALONE_REQUESTS).tolist()
    )


def mark_alone(scenario: Scenario, requests: Sequence[ExpectedRequest]) -> tuple[ExpectedRequest, ...]:
    """Marks the requests that are sent alone, too.

    Args:
        scenario: The scenario.
        requests: All its requests, in sending order.

    Returns:
        The same, marked where the scenario asks for it.
    """
    if Decode.ALONE not in scenario.decode:
        return tuple(requests)
    names = chosen([request.request_id for request in requests if request.judged])
    return tuple(replace(request, alone=request.request_id in names) for request in requests)


def rounds_of(scenario: Scenario, decode: Decode, vocabulary: Vocabulary) -> tuple[Round, ...]:
    """The rounds in which a scenario is driven.

    Args:
        scenario: The scenario.
        decode: Way of decoding; alone, each request is a round by itself.
        vocabulary: Of the model.

    Returns:
        In order; none where the scenario is not driven so.
    """
    if decode not in scenario.decode:
        return ()
    rounds = plan_rounds(scenario, vocabulary)
    if decode is not Decode.ALONE:
        return rounds
    asked = [request for round_ in rounds for request in round_.requests if request.judged]
    names = chosen([request.request_id for request in asked])
    return tuple(
        Round(request.phase, Arrival(), (replace(request, after=None),))
        for request in asked
        if request.request_id in names
    )
