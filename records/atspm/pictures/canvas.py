"""An SVG drawing with axes. Lines and areas are in an SVG element of the axes' size, which cuts what lies outside.

title
subtitle
legend
bands of time, such as control modes
y | data                            | right y
  +---------------------------------+
    x
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from jinja2 import Template

from city.printable import printable
from records.atspm.analysis_period import AnalysisPeriod

BLUE, GREEN, ORANGE, YELLOW = "#0072B2", "#009E73", "#E69F00", "#D9C400"
PINK, LIGHT_BLUE, RED = "#CC79A7", "#56B4E9", "#D55E00"
"""The colours of UDOT's ATSPM 5, which colour-blind readers can distinguish; its yellow is too light for paper."""
BLACK, GREY = "#222222", "#888888"
WIDTH, HALF_WIDTH = 720, 352
"""Widths in px; a page of A4 has WIDTH."""
FONT_PX = 11
CHAR_PX = 6.0
"""Mean width of a character."""
MAX_TEXT_CHARS = 120
MARGIN_LEFT = 48
MARGIN_RIGHT = 50
MARGIN_BOTTOM = 36
LINE_PX = 15
BAND_PX = 13
DOT_PX, LEGEND_DOT_PX = 2.4, 3.4
CLIP_MARGIN_PX = 2
"""Room around the axes for the width of a line on them."""
MAX_TICKS_Y = 5
HEADROOM = 1.04
"""Length of an axis by the largest value, so that its mark does not lie on the frame."""
TICK_STEPS_S = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
"""Distances of the ticks of a time axis, of which the smallest that leaves room for their labels is used."""
TIME_LABEL_PX = 52
DOT, RING, SQUARE, DIAMOND, TRIANGLE, CROSS = "dot", "ring", "square", "diamond", "triangle", "cross"
_SHAPES = {
    DOT: "h0",
    RING: "m-2.4,0a2.4,2.4 0 1 0 4.8,0a2.4,2.4 0 1 0 -4.8,0",
    SQUARE: "m-2,-2h4v4h-4z",
    DIAMOND: "m0,-3l3,3l-3,3l-3,-3z",
    TRIANGLE: "m0,-3l3,5.2h-6z",
    CROSS: "m-2.3,-2.3l4.6,4.6m0,-4.6l-4.6,4.6",
}
"""By shape, its path from its centre."""
_FILLED = {SQUARE, DIAMOND, TRIANGLE}
TEMPLATE = Template((Path(__file__).parent / "canvas.svg").read_text(), autoescape=True, trim_blocks=True)
"""The drawing with its texts and axes; data are inserted as they are."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """An axis with its ticks."""

    begin: float
    end: float
    title: str
    ticks: tuple[tuple[float, str], ...] = ()

    def share(self, value: float) -> float:
        """The place of a value, as a share of the axis' length."""
        return (value - self.begin) / ((self.end - self.begin) or 1.0)


def number_axis(title: str, top: float, min_step: float = 0.0) -> Axis:
    """An axis from 0 to a round number above `top`, with ticks at least `min_step` apart."""
    top = top * HEADROOM if math.isfinite(top) and top > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(top / MAX_TICKS_Y))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * MAX_TICKS_Y >= top * (1 - 1e-9))
    step = max(step, min_step)
    count = math.ceil(top / step - 1e-9)
    return Axis(0.0, count * step, title, tuple((k * step, f"{k * step:.10g}") for k in range(count + 1)))


def time_axis(period: AnalysisPeriod, width: float = WIDTH) -> Axis:
    """The axis of a period, in simulated seconds, with local times of day at its ticks."""
    begin_s, end_s = period.begin_s, period.end_s
    room = max(int((width - MARGIN_LEFT - MARGIN_RIGHT) / TIME_LABEL_PX), 1)
    step_s = next((step for step in TICK_STEPS_S if (end_s - begin_s) / step <= room), TICK_STEPS_S[-1])
    begin = period.time(round(begin_s * 1000))
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    offset_s = (begin - midnight).total_seconds()
    ticks = []
    for k in range(math.ceil(offset_s / step_s), math.floor((offset_s + end_s - begin_s) / step_s) + 1):
        time = midnight + timedelta(seconds=k * step_s)
        is_date = time.hour == time.minute == time.second == 0 and end_s - begin_s > TICK_STEPS_S[-1]
        text = f"{time:%d %b}" if is_date else f"{time:%H:%M:%S}" if step_s < 60 else f"{time:%H:%M}"
        ticks.append((begin_s + k * step_s - offset_s, text))
    return Axis(begin_s, end_s, f"Time ({begin:%a %d %b %Y})", tuple(ticks))


@dataclass(frozen=True)
class Series:
    """How marks, lines or areas look, and their text in the legend."""

    text: str
    colour: str
    shape: str = ""
    """Shape of marks; "": lines or areas."""
    dash: str = ""
    width: float = 1.6
    opacity: float = 1.0
    is_right: bool = False
    """True if the right axis counts."""


class Canvas:
    """One drawing. Coordinates are those of the axes; the legend has each series with data."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        x: Axis,
        y: Axis,
        right: Axis | None = None,
        bands: Sequence[tuple[float, float, str]] = (),
        width: int = WIDTH,
        plot_height: int = 170,
    ) -> None:
        """Draw nothing yet.

        Args:
            title: its first line.
            subtitle: its second line.
            x: the horizontal axis.
            y: the vertical axis.
            right: a second vertical axis.
            bands: (begin, end, text) of intervals of x, which are named above the data.
            width: in px.
            plot_height: of the data, in px.
        """
        self.title, self.subtitle, self.bands = title, subtitle, bands
        self.x, self.y, self.right = x, y, right
        self.left, self.width, self.plot_height = MARGIN_LEFT, width, plot_height
        self.plot_width = width - MARGIN_LEFT - MARGIN_RIGHT
        self._data: list[str] = []
        self._labels: list[tuple[float, float, str]] = []
        self._series: dict[Series, None] = {}
        """Those with data, in the order in which they were drawn."""

    def px(self, point: Point, is_right: bool = False) -> Point:
        """The place of a point, in px from the left and from the top of the axes."""
        y = self.right if is_right and self.right is not None else self.y
        return self.left + self.x.share(point[0]) * self.plot_width, (1 - y.share(point[1])) * self.plot_height

    def marks(self, points: Iterable[Point], series: Series, dy_px: float = 0.0) -> None:
        """Draw a mark at each point, moved down by `dy_px`; those outside of the axes are left out."""
        right = self.left + self.plot_width
        places = [(x, y + dy_px) for x, y in map(self.px, points)]
        held = [(x, y) for x, y in places if self.left <= x <= right and 0 <= y <= self.plot_height]
        if held:
            self._series[series] = None
            self._data.append(f'<path class="data" {_marks(held, series, DOT_PX)}/>')

    def line(self, points: Sequence[Point], series: Series) -> None:
        """Draw a line through points."""
        self.segments(pairwise(points), series)

    def steps(self, points: Sequence[Point], series: Series) -> None:
        """Draw a line that keeps each value until the next one; the last one until the end of x."""
        ends = [*(x for x, _ in points[1:]), self.x.end]
        self.line([corner for (x, y), end in zip(points, ends, strict=False) for corner in ((x, y), (end, y))], series)

    def segments(self, pairs: Iterable[tuple[Point, Point]], series: Series) -> None:
        """Draw lines between pairs of points; pairs that are not finite are left out."""
        path: list[str] = []
        last: Point | None = None
        for a, b in pairs:
            (x0, y0), (x1, y1) = self.px(a, series.is_right), self.px(b, series.is_right)
            if not all(map(math.isfinite, (x0, y0, x1, y1))):
                continue
            if last != (x0, y0):
                path.append(f"M{x0:.1f},{y0:.1f}")
            path.append(f"L{x1:.1f},{y1:.1f}")
            last = x1, y1
        if path:
            self._draw_clipped(series, _stroke("".join(path), series))

    def polygons(self, shapes: Iterable[Sequence[Point]], series: Series) -> None:
        """Fill polygons; those that are not finite are left out."""
        paths = []
        for shape in shapes:
            places = [self.px(point) for point in shape]
            if all(math.isfinite(x) and math.isfinite(y) for x, y in places):
                paths.append("M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places) + "Z")
        if paths:
            path = f'd="{"".join(paths)}" fill="{series.colour}" opacity="{series.opacity:g}"'
            self._draw_clipped(series, path)

    def label(self, point: Point, text: str, dy_px: float) -> None:
        """Write a text that begins at a point."""
        x, y = self.px(point)
        self._labels.append((x + 3, y + dy_px, text))

    def svg(self) -> str:
        """The drawing, as one SVG element."""
        legend, x, row = [], 6.0, 0
        for series in self._series:
            width = 24 + CHAR_PX * len(series.text) + 10
            if x + width > self.width and x > 6:
                x, row = 6.0, row + 1
            y = 14 + (2 + row) * LINE_PX
            place = x + 9, y - 4
            symbol = _marks([place], series, LEGEND_DOT_PX) if series.shape else _stroke(f"M{x},{y - 4}h18", series)
            legend.append((x + 22, y, symbol, series.text))
            x += width
        top = 9 + (2 + row + bool(legend)) * LINE_PX + (BAND_PX if self.bands else 0)
        ends = [(max(begin, self.x.begin), min(end, self.x.end), text) for begin, end, text in self.bands]
        bands = [(self.px((begin, 0))[0], self.px((end, 0))[0], text) for begin, end, text in ends]
        svg: str = TEMPLATE.render(
            c=self,
            top=top,
            height=top + self.plot_height + MARGIN_BOTTOM,
            legend=legend,
            bands=bands,
            data=self._data,
            labels=self._labels,
            fit=_fit,
            printable=printable,
        )
        return svg

    def _draw_clipped(self, series: Series, attributes: str) -> None:
        """Draw a path of a series, cut at the axes."""
        self._series[series] = None
        x, y = self.left - CLIP_MARGIN_PX, -CLIP_MARGIN_PX
        width, height = self.plot_width + 2 * CLIP_MARGIN_PX, self.plot_height + 2 * CLIP_MARGIN_PX
        self._data.append(
            f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{x} {y} {width} {height}" '
            f'overflow="hidden"><path class="data" {attributes}/></svg>'
        )


def _fit(text: str, room_px: float, size_px: int) -> str:
    """A text, shortened to its room."""
    return printable(text, int(min(max(room_px / (CHAR_PX * size_px / FONT_PX), 4), MAX_TEXT_CHARS)))


def _marks(places: Iterable[Point], series: Series, size: float) -> str:
    """Attributes of a path of marks at places, both in px. `size`: of dots."""
    path = "".join(f"M{x:.1f},{y:.1f}{_SHAPES[series.shape]}" for x, y in places)
    fill = series.colour if series.shape in _FILLED else "none"
    stroke = f'stroke-width="{size:g}" stroke-linecap="round"' if series.shape == DOT else 'stroke-width="1.2"'
    return f'd="{path}" fill="{fill}" stroke="{series.colour}" {stroke}'


def _stroke(path: str, series: Series) -> str:
    """Attributes of a line."""
    dashes = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    shade = f' opacity="{series.opacity:g}"' if series.opacity < 1 else ""
    return f'd="{path}" fill="none" stroke="{series.colour}" stroke-width="{series.width:g}"{dashes}{shade}'


def sentence(title: str, text: str) -> str:
    """A sentence in the place of a picture that has nothing to draw."""
    return f'<p class="none"><b>{escape(printable(title))}</b>: {escape(printable(text))}</p>'
