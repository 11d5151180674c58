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
from xml.sax.saxutils import escape, quoteattr

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
LABEL_PX = 300.0
"""Room of a text in the data."""
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
HALO = ' paint-order="stroke" stroke="#ffffff" stroke-width="2.5"'
"""Attributes of a text that is read on lines."""
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
        """Draw the axes.

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
        self.x, self.y, self.right = x, y, right
        self._width, self._title, self._subtitle = width, title, subtitle
        self._parts: list[str] = []
        """Elements below the legend; y is 0 at the top of the axes."""
        self._series: dict[Series, None] = {}
        """Those with data, in the order in which they were drawn."""
        self._band_px = BAND_PX if bands else 0
        self.left, self.plot_width = MARGIN_LEFT, width - MARGIN_LEFT - MARGIN_RIGHT
        self.plot_height = plot_height
        self._bands(bands)
        self._axes()

    def px(self, point: Point, is_right: bool = False) -> Point:
        """The place of a point, in px."""
        y = self.right if is_right and self.right is not None else self.y
        return self.left + self.x.share(point[0]) * self.plot_width, (1 - y.share(point[1])) * self.plot_height

    def marks(self, points: Iterable[Point], series: Series, dy_px: float = 0.0) -> None:
        """Draw a mark at each point, moved down by `dy_px`; those outside of the axes are left out."""
        right = self.left + self.plot_width
        places = [(x, y + dy_px) for x, y in map(self.px, points)]
        held = [(x, y) for x, y in places if self.left <= x <= right and 0 <= y <= self.plot_height]
        if held:
            self._series[series] = None
            self._parts.append(_marks(held, series, DOT_PX, 'class="data" '))

    def line(self, points: Sequence[Point], series: Series) -> None:
        """Draw a line through points."""
        self.segments(pairwise(points), series)

    def steps(self, points: Sequence[Point], series: Series) -> None:
        """Draw a line that keeps each value until the next one; the last one until the end of x."""
        ends = [*(x for x, _ in points[1:]), self.x.end]
        corners = [corner for (x, y), end in zip(points, ends, strict=False) for corner in ((x, y), (end, y))]
        self.line(corners, series)

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
            self._add_clipped(series, _stroke("".join(path), series))

    def polygons(self, shapes: Iterable[Sequence[Point]], series: Series) -> None:
        """Fill polygons; those that are not finite are left out."""
        paths = []
        for shape in shapes:
            places = [self.px(point) for point in shape]
            if all(math.isfinite(x) and math.isfinite(y) for x, y in places):
                paths.append("M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places) + "Z")
        if paths:
            path = f'd="{"".join(paths)}" fill="{series.colour}" opacity="{series.opacity:g}"'
            self._add_clipped(series, path)

    def label(self, point: Point, text: str, dy_px: float) -> None:
        """Write a text that begins at a point."""
        x, y = self.px(point)
        self._parts.append(_text(x + 3, y + dy_px, text, room=LABEL_PX, more=HALO))

    def svg(self) -> str:
        """The drawing, as one SVG element."""
        legend, rows = self._legend()
        top = 14 + (2 + rows) * LINE_PX - 5 + self._band_px
        height = top + self.plot_height + MARGIN_BOTTOM
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {height}" width="{self._width}" '
            f'height="{height}" font-family="Arial, Helvetica, sans-serif" font-size="{FONT_PX}" role="img" '
            f"aria-label={quoteattr(printable(self._title))}>",
            _text(4, 14, self._title, size=13, more=' font-weight="bold"', room=self._width - 8),
            _text(4, 14 + LINE_PX, self._subtitle, colour="#555555", room=self._width - 8),
            *legend,
            f'<g transform="translate(0 {top})">',
            *self._parts,
            "</g>",
            "</svg>",
        ]
        return "\n".join(parts)

    def _add_clipped(self, series: Series, attributes: str) -> None:
        """Draw a path of a series, cut at the axes."""
        self._series[series] = None
        x, y = self.left - CLIP_MARGIN_PX, -CLIP_MARGIN_PX
        width, height = self.plot_width + 2 * CLIP_MARGIN_PX, self.plot_height + 2 * CLIP_MARGIN_PX
        self._parts.append(
            f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{x} {y} {width} {height}" '
            f'overflow="hidden"><path class="data" {attributes}/></svg>'
        )

    def _legend(self) -> tuple[list[str], int]:
        """The elements of the legend, and its number of rows."""
        parts: list[str] = []
        x, row = 6.0, 0
        for series in self._series:
            width = 24 + CHAR_PX * len(series.text) + 10
            if x + width > self._width and x > 6:
                x, row = 6.0, row + 1
            y = 14 + (2 + row) * LINE_PX
            if series.shape:
                parts.append(_marks([(x + 9, y - 4)], series, LEGEND_DOT_PX))
            else:
                parts.append(f"<path {_stroke(f'M{x:.1f},{y - 4:.1f}h18', series)}/>")
            parts.append(_text(x + 22, y, series.text))
            x += width
        return parts, row + 1 if parts else 0

    def _bands(self, bands: Sequence[tuple[float, float, str]]) -> None:
        """Name intervals of x in a strip above the data."""
        for k, (begin, end, text) in enumerate(bands):
            begin, end = max(begin, self.x.begin), min(end, self.x.end)
            if begin >= end:
                continue
            (x0, _), (x1, _) = self.px((begin, 0)), self.px((end, 0))
            self._parts.append(
                f'<rect class="band" x="{x0:.1f}" y="{-BAND_PX}" width="{x1 - x0:.1f}" height="{BAND_PX}" '
                f'fill="{("#ffffff", "#e4e4e4")[k % 2]}" stroke="#bbbbbb" stroke-width="0.5"/>'
            )
            if x1 - x0 > CHAR_PX * len(text):
                self._parts.append(_text(x0 + 3, -3, text, size=9))

    def _axes(self) -> None:
        x0, x1, bottom = self.left, self.left + self.plot_width, self.plot_height
        for value, text in self.y.ticks:
            _, y = self.px((0, value))
            self._parts += [
                f'<path d="M{x0},{y:.1f}H{x1}" stroke="#dddddd" stroke-width="0.7"/>',
                _text(x0 - 4, y + 4, text, anchor="end", room=MARGIN_LEFT - 16),
            ]
        for value, text in self.x.ticks:
            x, _ = self.px((value, 0))
            self._parts += [
                f'<path d="M{x:.1f},{bottom}v4" stroke="{GREY}" stroke-width="0.8"/>',
                _text(x, bottom + 15, text, anchor="middle"),
            ]
        if self.right is not None:
            for value, text in self.right.ticks:
                _, y = self.px((0, value), is_right=True)
                self._parts.append(_text(x1 + 4, y + 4, text, room=MARGIN_RIGHT - 16))
            self._parts.append(_text(self._width - 13, bottom / 2, self.right.title, anchor="middle", turned=90))
        self._parts += [
            _text(11, bottom / 2, self.y.title, anchor="middle", turned=-90),
            _text(x0 + self.plot_width / 2, bottom + 30, self.x.title, anchor="middle"),
            f'<rect class="axes" x="{x0}" y="0" width="{self.plot_width}" height="{bottom}" fill="none" '
            f'stroke="{GREY}" stroke-width="0.8"/>',
        ]


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    size: int = FONT_PX,
    colour: str = BLACK,
    room: float = math.inf,
    turned: int = 0,
    more: str = "",
) -> str:
    """A text, shortened to its room in px. `turned`: by so many degrees. `more`: further attributes."""
    shown = escape(printable(text, int(min(max(room / (CHAR_PX * size / FONT_PX), 4), MAX_TEXT_CHARS))))
    full = f"<title>{escape(printable(text))}</title>" if shown != escape(text) else ""
    turn = f' transform="rotate({turned} {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{turn}{more}>'
        f"{shown}{full}</text>"
    )


def _marks(places: Iterable[Point], series: Series, size: float, attributes: str = "") -> str:
    """Marks at places, both in px. `size`: of dots."""
    shape, colour = series.shape, series.colour
    path = "".join(f"M{x:.1f},{y:.1f}{_SHAPES[shape]}" for x, y in places)
    fill = colour if shape in _FILLED else "none"
    stroke = f'stroke-width="{size:g}" stroke-linecap="round"' if shape == DOT else 'stroke-width="1.2"'
    return f'<path {attributes}d="{path}" fill="{fill}" stroke="{colour}" {stroke}/>'


def _stroke(path: str, series: Series) -> str:
    dashes = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    shade = f' opacity="{series.opacity:g}"' if series.opacity < 1 else ""
    return f'd="{path}" fill="none" stroke="{series.colour}" stroke-width="{series.width:g}"{dashes}{shade}'


def sentence(title: str, text: str) -> str:
    """A sentence in the place of a picture that has nothing to draw."""
    return f'<p class="none"><b>{escape(printable(title))}</b>: {escape(printable(text))}</p>'
