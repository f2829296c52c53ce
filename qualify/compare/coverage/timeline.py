"""What the client's own clock shows of the load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qualify.runtable import RequestHead


def most_in_flight(heads: Sequence[RequestHead]) -> int:
    """Most requests that were under way at one time.

    Args:
        heads: Requests of one run; one that ends as another is sent is no longer under way.
    """
    if not any(head.finished_s > head.sent_s for head in heads):
        return 0  # transcripts without times
    times = np.array([(head.sent_s, 1) for head in heads] + [(head.finished_s, -1) for head in heads])
    order = np.lexsort((times[:, 1], times[:, 0]))
    return int(np.cumsum(times[order, 1]).max())


def warmed_up(heads: Sequence[RequestHead]) -> int:
    """Requests that are not judged and had ended before the first judged one was sent.

    Args:
        heads: Requests of one scenario of one run.
    """
    first = min((head.sent_s for head in heads if head.judged), default=0.0)
    return sum(1 for head in heads if not head.judged and head.finished_s <= first)
