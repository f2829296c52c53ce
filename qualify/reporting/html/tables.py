"""Tables of the HTML report and how figures are written in them."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of each row is its heading.

    Attributes:
        caption: What it shows.
        header: Headings of the columns.
        rows: Its cells; the page shows the first `MOST_ROWS` and says so.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """Rows that the page has room for."""
        return self.rows[:MOST_ROWS]

    @property
    def left_out(self) -> int:
        """How many it has no room for."""
        return max(len(self.rows) - MOST_ROWS, 0)


def nats(value: float) -> str:
    """A divergence: three digits; exactly 0 only where it is."""
    return "0" if value == 0 else f"{value:.3g}"


def share(value: float) -> str:
    """A share as percentage; 100% and 0% only where it is."""
    text = f"{value:.1%}"
    if text == "100.0%" and value < 1:
        return "over 99.9%"
    return "under 0.1%" if text == "0.0%" and value > 0 else text
