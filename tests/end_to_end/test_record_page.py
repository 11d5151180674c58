"""The page of a record in a real browser: Debian's chromium, driven by playwright."""

import contextlib
import functools
import itertools
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from records.run_files import open_files
from tests.conftest import ROOT
from tests.end_to_end import browser as real_browser
from tests.end_to_end.browser import COLOURS, VIEWS, needs_chromium, select_tl
from tests.records.recorded_city import SILENT_TL, STREET_TL, record_city
from tests.waiting import wait_until

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.alone]

SAMPLE_CITY = ROOT / "tests" / "records" / "records" / "sample-city.mcap"
opened = functools.partial(real_browser.opened, status="paused")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run in three files, of which the second one is missing."""
    folder, recorded = tmp_path_factory.mktemp("records"), record_city()
    for number, (begin, end) in enumerate(((0, 60), (60, 70), (70, None))):
        if number != 1:
            recorded.write(folder / f"run-{number}.mcap", begin, end, number)
    return folder


@contextlib.contextmanager
def playing(*arguments):
    """`greenserve replay --page`; yields (its address, process)."""
    command = [sys.executable, "-m", "greenserve", "replay", *map(str, arguments), "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            found = re.search(r"the record's page, until Ctrl-C: (http\S+)$", process.stdout.readline())
            assert found, "greenserve replay has ended without a page"
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield found[1], process
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


@pytest.fixture(scope="module")
def url(folder):
    with playing(folder) as (address, _):
        yield address


@pytest.fixture
def page(browser, url):
    with opened(browser, url) as page:
        yield page


def second(page):
    return page.evaluate("greenserve.shown.second")


def seek(page, at_s):
    """Move the slider, as a pointer does, and wait for the frame."""
    page.evaluate(
        f"(() => {{ const p = document.getElementById('position'); p.value = {at_s}; "
        "p.dispatchEvent(new Event('input')); })()"
    )
    wait_until(lambda: second(page) == at_s)


def test_the_map_shows_at_any_second_the_states_that_were_recorded(page, folder):
    recorded = list(open_files([folder]).steps())
    shown = [each for step in recorded for each in step.step.shown]
    for at_s in (250, 17, 100, 33, 299):
        seek(page, at_s)
        expected = next(list(each.states) for each in shown if each.begin_s < at_s <= each.end_s)
        assert page.evaluate("[...greenserve.map.states.values()]") == expected
    assert page.evaluate("[...greenserve.map.states.keys()]") == list(range(len(expected)))


def test_the_record_is_played_faster_paused_stops_at_its_end_and_begins_again(page):
    begin, last = second(page), page.evaluate("greenserve.player().record.last_s")
    page.select_option("#play-speed", "30")
    page.click("#play")
    page.wait_for_selector("#status.playing")
    wait_until(lambda: second(page) > begin + 30)
    page.click("#play")
    page.wait_for_selector("#status.paused")
    stopped = page.input_value("#position")
    time.sleep(0.5)
    assert page.input_value("#position") == stopped and second(page) == float(stopped)
    seek(page, last - 5)
    page.click("#play")
    wait_until(lambda: second(page) == last)
    page.wait_for_selector("#status.paused")
    page.click("#play")
    page.wait_for_selector("#status.playing")
    wait_until(lambda: second(page) < last)


def test_keys_alone_play_step_and_seek(page):
    page.focus("#map")
    begin = second(page)
    page.keyboard.press(".")
    wait_until(lambda: second(page) == begin + 1)
    page.keyboard.press(",")
    wait_until(lambda: second(page) == begin)
    page.keyboard.press(" ")
    page.wait_for_selector("#status.playing")
    page.keyboard.press(" ")
    page.wait_for_selector("#status.paused")
    page.focus("#position")
    page.keyboard.press("End")
    wait_until(lambda: second(page) == page.evaluate("greenserve.player().record.last_s"))
    page.keyboard.press("Home")
    wait_until(lambda: second(page) == page.evaluate("greenserve.player().record.first_s"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d", page.get_attribute("#position", "aria-valuetext"))
    page.wait_for_selector("#next-mark:enabled")
    page.focus("#map")
    page.keyboard.press("]")
    first = page.evaluate("greenserve.player().overview.marks[0][0]")
    wait_until(lambda: second(page) == first)


def test_texts_of_a_record_have_the_streets_clock(page):
    page.wait_for_selector("#next-mark:enabled")
    texts = page.evaluate("""() => {
        const player = greenserve.player();
        const marks = [[5, "command", "SA101 set to fixed until second 900, by Ada"]];
        player.overview = { ...player.overview, marks, missing: ["a message of second 61.5 is damaged"] };
        player.showOverview();
        return [document.querySelector("#marks-list li").textContent, document.getElementById("missing").textContent];
    }""")
    assert texts == [
        "00:00:05command: SA101 set to fixed until 00:15:00, by Ada",
        "a message of 00:01:01 is damaged",
    ]


def test_a_record_has_no_commands(page):
    select_tl(page, SILENT_TL)
    assert page.locator("[data-command], [data-mode], #author, #no-token, #settings").count() == 0
    names = page.evaluate("[...document.querySelectorAll('button')].map((each) => each.textContent)")
    assert not {"Fixed", "Hold", "Policy", "Acknowledge"} & set(names)


def test_a_tls_panel_goes_back_in_time(page):
    select_tl(page, SILENT_TL)
    seek(page, 50)
    wait_until(lambda: "policy" in page.inner_text("#tl-mode").lower())
    before = page.inner_text("#tl-sentences")
    seek(page, 125)
    wait_until(lambda: "fallback" in page.inner_text("#tl-mode").lower())
    assert "no answer" in page.inner_text("#tl-sentences")
    seek(page, 50)
    wait_until(lambda: "policy" in page.inner_text("#tl-mode").lower())
    assert page.inner_text("#tl-sentences") == before
    assert page.locator("#tl-chart canvas").count() == 1


def test_a_link_leads_to_a_second_of_a_tl(browser, url):
    with opened(browser, f"{url}#at=120&tl={SILENT_TL}") as page:
        wait_until(lambda: second(page) == 120)
        assert page.inner_text("#tl-name") == SILENT_TL
        page.keyboard.press("Escape")
        assert page.url.endswith("#at=120")


def test_a_missing_file_is_named_on_the_map_and_in_the_panel(page, folder):
    recorded = [each.step for each in open_files([folder]).steps()]
    before, after = next((a, b) for a, b in itertools.pairwise(recorded) if b.number > a.number + 1)
    seek(page, int(before.at_s) + 1)
    page.wait_for_selector("#hole:visible")
    assert f"steps {before.number + 1} to {after.number - 1} are missing" in page.inner_text("#hole")
    wait_until(lambda: "file 1 is missing before run-2.mcap" in page.inner_text("#missing"))
    seek(page, int(after.at_s) + 10)
    page.wait_for_selector("#hole", state="hidden")


def test_vehicles_are_shown_where_the_record_has_them(page, browser):
    seek(page, 250)
    assert page.evaluate("greenserve.map.vehicles.count") > 0 and page.inner_text("#no-vehicles") == ""
    assert STREET_TL in page.evaluate("greenserve.map.city.tls.map((tl) => tl.tl)")
    with playing(SAMPLE_CITY) as (address, _), opened(browser, address) as page:
        assert page.inner_text("#no-vehicles") == "This record has no vehicles."
        seek(page, 100)
        assert page.evaluate("greenserve.map.vehicles.count") == 0


def test_the_page_says_that_the_command_has_ended(browser, folder):
    with contextlib.ExitStack() as stack:
        address, process = stack.enter_context(playing(folder))
        page = stack.enter_context(opened(browser, address))
        process.send_signal(signal.SIGTERM)
        page.wait_for_selector("#lost.ended:visible")
        assert page.inner_text("#status") == "ended"
        assert page.inner_text("#lost-text") == "greenserve replay has ended. The page connects again by itself."
        assert process.wait(20) == 0


@pytest.mark.parametrize(("width", "height", "scheme"), VIEWS)
def test_screenshots_of_both_themes_and_of_phone_width(browser, url, tmp_path, width, height, scheme):
    with opened(browser, url, width=width, height=height, scheme=scheme) as page:
        seek(page, 250)
        page.wait_for_selector("#next-mark:enabled")
        page.screenshot(path=tmp_path / "city.png")
        select_tl(page, SILENT_TL)
        page.wait_for_selector("#tl-chart canvas")
        page.screenshot(path=tmp_path / "tl.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#map").bounding_box()["height"] > 0.4 * height
        for name in ("#play", "#position", "#play-speed"):
            box = page.locator(name).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["width"] > 40
        assert (
            page.evaluate(COLOURS, "street") > 2
            and page.evaluate(COLOURS, "traffic") > 5
            and page.evaluate(COLOURS, "marks") > 1
        )
