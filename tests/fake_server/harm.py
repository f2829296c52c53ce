"""What a harmed distribution looks like."""

from __future__ import annotations

import math

from tests.fake_server.fieldcases import Harm

TOP = 24
"""Listed candidates of the fake server's distributions."""

_MOVED_NATS = 2.4


def harmed(what: Harm, position: int, last: int, top: dict[int, float]) -> dict[int, float]:
    """The distribution in place of a right one.

    Args:
        what: The harm.
        position: Tokens generated so far.
        last: The last of them.
        top: Right log probabilities by token.
    """
    match what:
        case Harm.LOOP:
            return sure(20 + position % 3, top)
        case Harm.SAME:
            return sure(20, top)
        case Harm.DOUBLE:
            return sure(last, top) if position % 2 else top
        case Harm.NAN:
            return dict.fromkeys(top, math.nan)
        case Harm.MOVED:
            second = sorted(top, key=lambda token: -top[token])[1]
            moved = top | {second: top[second] + _MOVED_NATS}
            total = math.log(math.fsum(math.exp(value) for value in moved.values()) + _rest(top))
            return {token: value - total for token, value in moved.items()}
    raise ValueError(what)


def _rest(top: dict[int, float]) -> float:
    return max(0.0, 1.0 - math.fsum(math.exp(value) for value in top.values()))


def sure(token: int, top: dict[int, float]) -> dict[int, float]:
    """Nine tenths for one token; the others share what is left as they did."""
    others = {other: value + math.log(0.1) for other, value in top.items() if other != token}
    listed = dict(list(others.items())[: TOP - 1])
    return {token: math.log(0.9), **listed}
