"""Turns matplotlib figures into inline SVG whose colours come from the page's style sheet.

Figures are drawn in stand-in colours, one for each role. Here they become classes, so that one drawing serves
light, dark and print; and nothing remains that a strict content security policy forbids (inline styles).
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH_PT = 420.0
"""Width of every figure. A phone shows it at five sixths, where its labels can still be read."""

_NOT_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PRESENTATION = frozenset(
    {"stroke-width", "stroke-opacity", "fill-opacity", "opacity", "stroke-dasharray", "stroke-dashoffset"}
    | {"stroke-linejoin", "stroke-linecap", "text-anchor", "font-size", "fill-rule"}
)


class Ink(StrEnum):
    """Stand-in colours by role; the names are the classes' names in the style sheet."""

    TEXT = "#010101"
    GRID = "#020202"
    FLOOR = "#030303"
    CANDIDATE = "#040404"
    CONTROL = "#050505"
    QUIET = "#060606"
    ZERO = "#070707"
    HEAT1 = "#110101"
    HEAT2 = "#120202"
    HEAT3 = "#130303"
    HEAT4 = "#140404"
    HEAT5 = "#150505"
    HEAT6 = "#160606"
    HEAT7 = "#170707"

    @property
    def role(self) -> str:
        """Name in the style sheet."""
        return self.name.lower()


_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # labels come from bundles: a dollar sign is a dollar sign
    "axes.unicode_minus": False,
    "font.size": 11.0,
    "axes.titlesize": 11.0,
    "axes.labelsize": 11.0,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": str(Ink.TEXT),
    "axes.labelcolor": str(Ink.TEXT),
    "axes.titlecolor": str(Ink.TEXT),
    "axes.edgecolor": str(Ink.QUIET),
    "xtick.color": str(Ink.QUIET),
    "ytick.color": str(Ink.QUIET),
    "xtick.labelcolor": str(Ink.TEXT),
    "ytick.labelcolor": str(Ink.TEXT),
    "grid.color": str(Ink.GRID),
}
HEAT = (Ink.ZERO, Ink.HEAT1, Ink.HEAT2, Ink.HEAT3, Ink.HEAT4, Ink.HEAT5, Ink.HEAT6, Ink.HEAT7)
_ROLES = {str(ink): ink.role for ink in Ink}


def label(text: str, most: int = 24) -> str:
    """Text from a bundle as it may stand in a figure: printable and short."""
    clean = _NOT_XML.sub("?", text).replace("\n", " ")
    return clean if len(clean) <= most else clean[: most - 1] + "…"


@contextmanager
def drawing() -> Iterator[None]:
    """Settings under which figures are made and turned into SVG."""
    with mpl.rc_context(_SETTINGS):
        yield


def figure(height_pt: float) -> Figure:
    """An empty figure of the common width.

    Args:
        height_pt: Its height in points, 72 to the inch.
    """
    return Figure(figsize=(WIDTH_PT / 72, height_pt / 72), layout="constrained")


def inline_svg(drawn: Figure, name: str, title: str, description: str) -> str:
    """The figure as an SVG element for an HTML page.

    Args:
        drawn: The figure.
        name: Prefix of its ids; unique on the page.
        title: What it shows, for screen readers.
        description: What can be seen in it, in a sentence or two.

    Returns:
        The element; the same figure gives the same text.
    """
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # names may be written in any script; the browser has the glyphs, whatever matplotlib's font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasSVG(drawn).print_svg(stream, metadata={"Date": None})  # type: ignore[no-untyped-call]
    root = ElementTree.fromstring(stream.getvalue())
    _drop(root, {"metadata", "style"})
    used = set(re.findall(rb'(?:href="#|url\(#)([\w-]+)', stream.getvalue()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        _restyle(element, name, {each.decode() for each in used})
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "class": "plot",
    }
    for tag, text in (("desc", description), ("title", title)):
        told = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        told.text = _NOT_XML.sub("?", text)
        root.insert(0, told)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(root: ElementTree.Element, tags: set[str]) -> None:
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in tags:
                parent.remove(child)


def _restyle(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Replaces inline styles by classes and attributes, and ids by ones that are unique on the page."""
    old, element.attrib = dict(element.attrib), {}
    classes = []
    for qualified, value in old.items():
        key = qualified.rpartition("}")[2]
        if key == "style":
            for property_, setting in _declarations(value):
                if property_ in ("fill", "stroke"):
                    classes.append(f"{property_[0]}-{_ROLES.get(setting, setting)}")
                elif property_ in _PRESENTATION:
                    element.set(property_, setting)
        elif key == "id":
            if value in used:
                element.set("id", f"{name}-{value}")
        elif key == "href":
            element.set("href", f"#{name}-{value.removeprefix('#')}")
        elif key == "clip-path":
            element.set(key, value.replace("url(#", f"url(#{name}-"))
        elif key == "d":
            element.set(key, re.sub(r"\s+", " ", re.sub(r"-?\d+\.\d+", _shorter, value)).strip())
        else:
            element.set(key, value)
    if classes:
        element.set("class", " ".join(classes))


def _declarations(style: str) -> list[tuple[str, str]]:
    pairs = [part.split(":", 1) for part in style.split(";") if ":" in part]
    return [(left.strip(), right.strip()) for left, right in pairs]


def _shorter(match: re.Match[str]) -> str:
    """A coordinate to a tenth of a point: finer cannot be seen, and costs half of the file."""
    return f"{float(match[0]):.1f}".removesuffix(".0")
