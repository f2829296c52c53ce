"""The plots of the HTML report. Each comes with the same figures as a table."""

from __future__ import annotations

from qualify.record import RunRecord
from qualify.reporting.html.measured import Measured
from qualify.reporting.html.plots.common import Plot as Plot
from qualify.reporting.html.plots.divergence import by_batch, distributions, over_time
from qualify.reporting.html.plots.heat import HEAT_EDGES as HEAT_EDGES
from qualify.reporting.html.plots.heat import heat_map
from qualify.reporting.html.plots.serving import replays, timeline
from qualify.reporting.html.svg import drawing


def draw_all(record: RunRecord, measured: Measured) -> tuple[Plot, ...]:
    """Draws every plot for which something was measured.

    Args:
        record: The run record.
        measured: What was compared.
    """
    with drawing():
        found = (
            distributions(measured),
            heat_map(measured),
            over_time(measured),
            by_batch(measured),
            replays(record),
            timeline(record),
        )
    return tuple(plot for plot in found if plot is not None)
