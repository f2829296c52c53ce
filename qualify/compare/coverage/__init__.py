"""Which of the required cells the run really reached, by measurement and not by intention."""

from __future__ import annotations

from qualify.compare.coverage.cells import measure as measure
from qualify.compare.coverage.limits import limitations as limitations
from qualify.compare.coverage.limits import quiet as quiet
from qualify.compare.coverage.limits import shortfalls as shortfalls
from qualify.compare.coverage.limits import unseen as unseen
from qualify.compare.coverage.window import capacity_entries as capacity_entries
from qualify.compare.coverage.window import shows_up_to as shows_up_to
