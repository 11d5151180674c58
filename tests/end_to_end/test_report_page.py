"""An evaluation's report in a real browser: its first page is one sheet, and nothing is wider than a phone."""

import re
from dataclasses import replace

import pytest

from city import street_shapes
from evaluation import arms, report
from evaluation.report_figures import StreetMap
from tests.conftest import GRID
from tests.end_to_end.browser import chromium, needs_chromium
from tests.evaluation.outcomes import ZERO
from tests.evaluation.test_report_texts import BEFORE, TRAFFIC

SHEET_PX = 178 * 96 / 25.4, 265 * 96 / 25.4
"""Width and height of A4 without its margins of 16 mm."""


@pytest.fixture
def page_of(tmp_path, grid_city):
    """A function: the file of a report of every arm, with the longest lists of its first page."""
    tls = {tl: own.signals for tl, own in grid_city.tls.items()}
    signals = [signal for own in tls.values() for signal in own]
    outcome = replace(
        ZERO,
        delay_by_tl=dict.fromkeys(tls, 4.0),
        passed_by_tl=dict.fromkeys(tls, 1),
        delay_quantiles_s=(1.0,) * 101,
        delay_by_departure={0: 3.0},
        movements={signal: {"northbound left (protected)": BEFORE} for signal in signals},
        lane_groups={signal: {"northbound on Main Street through + left + right": TRAFFIC} for signal in signals},
    )
    compared = arms.with_faults(arms.parse("policy:a/long/way/to/street-6.policy,fixed,actuated,max-pressure,greedy"))
    results = {
        arm.name: [replace(outcome, arm=arm.name, delay_s=20.0 + k + seed / 7) for seed in range(2)]
        for k, arm in enumerate(compared)
    }
    better = replace(TRAFFIC, delay_s=5.0)
    results["fixed"] = [
        replace(each, lane_groups={signal: dict.fromkeys(own, better) for signal, own in each.lane_groups.items()})
        for each in results["fixed"]
    ]
    street = StreetMap(street_shapes.read(GRID / "grid.net.xml"), tls)
    conditions = {"city": str(GRID / "city.toml"), "tls": list(tls), "models": {}, "varied_demand": True}
    return report.write(tmp_path, compared, results, conditions, street=street).as_uri()


@pytest.mark.slow
@needs_chromium
def test_first_page_is_one_sheet_and_nothing_is_wider_than_a_phone(page_of, tmp_path):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": round(SHEET_PX[0]), "height": round(SHEET_PX[1])})
        page.goto(page_of)
        page.emulate_media(media="print")
        box = page.locator(".sheet").bounding_box()
        assert 0.6 * SHEET_PX[1] < box["height"] <= SHEET_PX[1]
        assert page.evaluate("getComputedStyle(document.querySelector('.sheet')).breakAfter") == "page"
        assert "movements; the largest rise is that of" in page.inner_text(".sheet")
        assert page.locator(".sheet tbody tr").count() == 5 and page.locator(".sheet li").count() == 3
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 390, "height": 844})
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        data = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", data)) > 1
