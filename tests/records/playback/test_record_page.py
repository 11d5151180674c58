"""The page of a record over a real aiohttp client: seeking, what is refused, and that there are no commands."""

import contextlib
import gzip
import json
import sys
import threading

import aiohttp
import pytest

from records import replay_command
from tests.controller.operator.page.pages import Browser, fetch
from tests.error_lines import refused
from tests.records.playback.played_records import SAMPLE_CITY, Played


@pytest.fixture(scope="module")
def played():
    return Played(SAMPLE_CITY)


@pytest.fixture(scope="module")
def url(played):
    with played.served() as url:
        yield url


@pytest.fixture
def browser(url):
    with Browser(url) as made:
        yield made


def test_any_second_is_answered_in_any_order(played, browser):
    timeline = played.page.moments.timeline
    for at_s, shown_s in ((200, 200), (10, 10), (100.5, 100.5), (-50, timeline.first_s), (1e9, timeline.last_s)):
        frame, moment = browser.frame(at=at_s), played.page.moments.moment(shown_s)
        assert frame.at_s == shown_s and frame.has_all_states
        assert tuple(frame.states.values()) == moment.shown and frame.modes == moment.modes


def test_a_panel_goes_on_after_its_second_and_begins_anew_before_it(browser):
    for tl, at_s, fresh, is_first in (
        ("SA101", 100, False, True), ("SA101", 105, False, False), ("SA101", 50, False, True),
        ("SA102", 55, False, True), ("SA102", 60, True, True), (None, 61, False, None), ("SA102", 62, False, True),
    ):  # fmt: skip
        panel = browser.frame(tl=tl, at=at_s, fresh=fresh).panel.get("tl", {"tl": None, "is_first": None})
        assert (panel["tl"], panel["is_first"]) == (tl, is_first), (tl, at_s)


def test_each_watcher_has_its_own_position(browser, url):
    with Browser(url) as other:
        for each, at_s in ((browser, 30), (other, 200), (browser, 31), (other, 199)):
            assert each.frame(at=at_s).at_s == at_s


def test_of_requests_that_wait_the_newest_is_answered(browser):
    for at_s in range(100):
        browser.ask(at=at_s)
    seen = []
    while not seen or seen[-1] != 99:
        seen.append(browser.receive().at_s)
    assert seen == sorted(seen) and len(seen) < 100


def test_the_city_says_what_the_record_is(played, url):
    about = json.loads(gzip.decompress(fetch(f"{url}/city.json")[2]))["record"]
    assert about["files"] == ["sample-city.mcap"] and about["has_vehicles"] is False
    timeline = played.page.moments.timeline
    assert (about["first_s"], about["last_s"]) == (timeline.first_s, timeline.last_s)


def test_the_overview_is_served(url):
    overview = json.loads(fetch(f"{url}/overview.json")[2])
    assert overview["is_complete"] and overview["missing"] == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_there_are_no_commands(url, method):
    status, headers, _ = fetch(f"{url}/command", method, b'{"action": "pause"}')
    assert (status, headers["X-Frame-Options"]) == (404, "DENY")


@pytest.mark.parametrize("at", ["null", '"1"', "true", "NaN", "1" + 400 * "0"])
def test_a_request_without_a_second_ends_the_connection_with_its_reason(browser, at):
    browser.send(f'{{"view": [0, 0, 1, 1], "at": {at}}}')
    assert browser.end() == aiohttp.WSCloseCode.INVALID_TEXT


def test_connections_close_when_the_command_ends():
    with contextlib.ExitStack() as serving, Browser(serving.enter_context(Played(SAMPLE_CITY).served())) as browser:
        browser.frame(at=5)
        ending = threading.Thread(target=serving.close)
        ending.start()
        assert browser.end() == aiohttp.WSCloseCode.GOING_AWAY
        ending.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page", "0.0.0.0:8080"], "any computer that reaches it would see the page"),
        (["--page", "8080"], "--page"),
        (["--page", ""], "--page"),
        (["--page", "127.0.0.1:0", "--tl", "SA101"], "--tl is for the comparison; leave it or --page out"),
        (["--page", "127.0.0.1:0", "--server", "127.0.0.1:1"], "--server is for the comparison; leave it or --page"),
        (["--page", "127.0.0.1:0", "--json", "out.json"], "--json is for the comparison; leave it or --page out"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(capsys, arguments, message):
    refused(capsys, replay_command.main([str(SAMPLE_CITY), *arguments]), message)


def test_the_page_without_its_extra_is_one_line(monkeypatch, capsys):
    for module in ("controller.operator.page.site", "records.playback.record_page"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    message = "--page needs aiohttp; install greenserve[page,record], or leave --page out"
    refused(capsys, replay_command.main([str(SAMPLE_CITY), "--page", "127.0.0.1:0"]), message)
