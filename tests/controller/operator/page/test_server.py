"""The page over a real aiohttp client: pull, views, watchers that stop, commands, and what is refused."""

import asyncio
import contextlib
import csv
import gzip
import io
import json
import sys
import time

import aiohttp
import numpy as np
import pytest
from aiohttp import WSCloseCode
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.page_frame import decode
from city.errors import InputError
from controller.control_address import listen
from controller.operator import operator_interface
from controller.operator.page import frame_server
from controller.operator.page import server as server_module
from controller.operator.page.frame_server import MalformedRequest, parse_request
from signals.fallback.control_mode import ControlMode
from signals.safety.conflicts import EXPLANATIONS, OverrideReason
from signals.safety.signal_safety import Override
from tests.controller.decision_events import event
from tests.controller.operator.page.pages import VIEW, Browser, Page, fetch
from tests.waiting import wait_until

NOBODY_S = 0.4
"""Wall time in which nothing must happen."""
CORNER = [0, 0, 1, 1]


@pytest.fixture
def page(grid_city, grid_street):
    made = Page(grid_city, grid_street)
    yield made
    made.close()


@pytest.fixture
def browser(page):
    with Browser(page.url) as made:
        yield made


def test_the_page_its_files_and_the_city_are_served_with_security_headers(page):
    for path, kind in (
        ("/", "text/html"),
        ("/static/main.js", "text/javascript"),
        ("/static/uPlot.min.css", "text/css"),
    ):
        status, headers, _ = fetch(page.url + path)
        assert status == 200 and headers["Content-Type"].startswith(kind)
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    text = fetch(page.url + "/")[2].decode()
    assert "<script>" not in text and "onclick" not in text and "style=" not in text and "://" not in text
    city = json.loads(gzip.decompress(fetch(page.url + "/city.json")[2]))
    assert [tl["tl"] for tl in city["tls"]] == list(page.layout.contracts)
    assert len(city["rows"]) == len(page.layout.lanes) and min(city["rows"]) >= 0
    features = [feature for feature in city["tls"][0]["features"] if feature[2]]
    assert {lane for _, _, lane in features} == set(page.contracts[0].signals[0].lane_ids)


@pytest.mark.parametrize(
    "path", ["/static/..%2fserver.py", "/static/uPlot.LICENSE", "/nothing", "/static/index.html.bak"]
)
def test_other_files_are_not_served(page, path):
    status, headers, _ = fetch(page.url + path)
    assert (status, headers["X-Frame-Options"]) == (404, "DENY")


def test_a_watcher_gets_what_signals_show_and_then_only_what_changed(page, browser):
    page.step(1, "r")
    first = browser.frame()
    states = list(page.states("r"))
    states[2] = "G" * 12
    page.state.add(event(2, states=[(1, 2, tuple(states))]))
    second = browser.frame()
    assert first.has_all_states and first.states == dict(enumerate(page.states("r"))) and first.at_s == 1
    assert not second.has_all_states and second.states == {2: "G" * 12} and second.sequence == first.sequence + 1


def test_only_what_is_in_view_is_sent(page, browser):
    page.step(1, decisions=[page.decided("SA101")], halting=3.0)
    page.collect(100)
    x, y = page.street.signal_at[0]
    near, all_of_it = browser.frame(view=[x - 30, y - 30, x + 30, y + 30]), browser.frame(view=VIEW)
    assert list(near.states) == [0] and len(all_of_it.states) == len(page.layout.signals)
    assert 0 < len(near.queues) < len(all_of_it.queues) == len(page.layout.lanes)
    assert len(near.vehicles.x) < 100 == len(all_of_it.vehicles.x)


def test_a_watcher_has_one_frame_in_flight_skips_steps_and_is_woken_only_if_it_waits(page, browser, monkeypatch):
    woken, wake = [], page.server._woken
    monkeypatch.setattr(page.server, "_woken", lambda: woken.append(page.state.newest.event.at_s) or wake())
    page.step(1)
    first = browser.frame()
    for second in range(2, 12):  # the watcher draws meanwhile
        page.step(second)
    with pytest.raises(TimeoutError):
        browser.receive(NOBODY_S)
    assert woken == []
    second = browser.frame()
    assert second.sequence == first.sequence + 10 and second.at_s == 11
    browser.ask()
    wait_until(lambda: page.server._awaiting)
    page.step(12)
    assert browser.receive().at_s == 12 and woken == [12]


def test_uncontrolled_signals_are_shown_as_they_were_read(grid_city, grid_street):
    with contextlib.closing(Page(grid_city, grid_street, ("SA101",))) as page, Browser(page.url) as browser:
        count, others = len(page.layout.signals), page.street.uncontrolled
        assert len(others) == len(grid_street.signals) - count > 0 and next(iter(others)) == count
        page.step(1, "r")
        x, y = page.street.signal_at[count]
        assert browser.frame().states == dict(enumerate(page.states("r")))
        page.collect(0, states=dict.fromkeys(others, "GGrr"))
        assert browser.frame().states == dict.fromkeys(others, "GGrr")
        page.collect(0, states={**dict.fromkeys(others, "GGrr"), count: "yyrr"})
        assert browser.frame().states == {count: "yyrr"}
        assert browser.frame(view=[x - 30, y - 30, x + 30, y + 30]).states == {count: "yyrr"}


def test_frames_are_an_interval_apart_and_without_news_a_second(page, browser, monkeypatch):
    monkeypatch.setattr(server_module, "MIN_FRAME_INTERVAL_S", 0.5)
    page.step(1.0)
    browser.frame()
    begin_s = time.monotonic()
    page.step(2.0)
    browser.frame()
    middle_s = time.monotonic()
    frame = browser.frame()
    assert 0.4 < middle_s - begin_s < 0.9 < time.monotonic() - middle_s < 4
    assert frame.states == {} and frame.vehicles is None and frame.queues is None


def test_vehicles_are_wanted_only_while_somebody_asks(page):
    assert page.collector.wanted_view is None
    with Browser(page.url) as one, Browser(page.url) as other:
        one.ask(view=[0, 0, 10, 10])
        other.ask(view=[50, -5, 60, 5])
        wait_until(lambda: page.collector.wanted_view == (0, -5, 60, 10))
    wait_until(lambda: page.collector.wanted_view is None)
    assert not page.server.watchers


def test_a_watcher_that_is_silent_does_not_want_vehicles(page, browser, monkeypatch):
    monkeypatch.setattr(server_module, "STALLED_S", 0.2)
    page.step(1)
    browser.frame()
    time.sleep(NOBODY_S)
    page.step(2)
    time.sleep(0.1)
    assert page.collector.wanted_view is None


def test_watchers_beyond_the_limit_are_refused(page, browser, monkeypatch):
    monkeypatch.setattr(frame_server, "MAX_WATCHERS", 1)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        Browser(page.url)
    assert refused.value.status == 503


def test_a_watcher_that_stops_reading_delays_nobody_and_is_disconnected(page, browser, monkeypatch):
    monkeypatch.setattr(frame_server, "SEND_TIMEOUT_S", 1.0)
    page.collect(1_000_000)  # 6 MB: more than the buffers between the two hold
    with Browser(page.url, is_slow=True) as stuck:
        stuck.ask()
        wait_until(lambda: page.collector.wanted_view == VIEW)
        begin_s = time.monotonic()
        browser.frame(view=CORNER)
        page.step(1)
        browser.frame(view=CORNER)
        assert time.monotonic() - begin_s < 1
        wait_until(lambda: len(page.server.watchers) == 1, 10)


def test_a_slow_line_gets_the_newest_frame_each_time_and_delays_nobody(page, browser):
    page.collect(100_000)  # 600 kB a frame
    waits, ages, asked_s = [], [], 0
    with Browser(page.url, is_slow=True) as slow:
        slow.ask()
        for second in range(16):
            begin_s = time.monotonic()
            page.collect(100_000)
            page.step(second)
            waits.append((browser.frame(view=CORNER).at_s == second, time.monotonic() - begin_s))
            if second % 5 == 4:
                ages.append(slow.receive().at_s - asked_s)
                slow.ask()
                asked_s = second
    assert all(is_newest and waited_s < 1 for is_newest, waited_s in waits)
    assert all(age in (0, 1) for age in ages), "of the second in which it asks, or of the next step"


def watched_by(page, count, seconds, request_of):
    """Let watchers ask for frames while the run makes ten steps a second, every fifth with decisions; return the frames
    of each."""
    tls = list(page.layout.contracts)

    async def watch(session, k, end_s):
        received = []
        async with session.ws_connect(f"{page.url}/live", headers={"Origin": page.url}) as connection:
            while time.monotonic() < end_s:
                await connection.send_str(json.dumps({"view": VIEW, **request_of(k, len(received), tls)}))
                with contextlib.suppress(TimeoutError):
                    message = await connection.receive(timeout=max(end_s - time.monotonic(), 0.01))
                    received.append(decode(message.data))
        return received

    async def run():
        end_s, second = time.monotonic() + seconds, page.state.second
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            watching = asyncio.gather(*(watch(session, k, end_s) for k in range(count)))
            while time.monotonic() < end_s:
                second += 1
                decisions = [page.decided(tl) for tl in tls] if second % 5 == 0 else []
                page.step(second, "rG"[int(second) % 2], decisions=decisions)
                page.collect(500)
                await asyncio.sleep(0.1)
            return await watching

    return asyncio.run(run())


@pytest.mark.slow
def test_a_hundred_watchers_get_new_frames_within_two_seconds(page):
    for second in range(1, 100):
        page.step(second, "rG"[second % 2], decisions=[page.decided(tl) for tl in page.layout.contracts])
    received = watched_by(page, 100, 8.0, lambda k, n, tls: {"tl": tls[k % 3]})
    # some 20 on a quiet machine
    assert min(len({frame.sequence for frame in frames}) for frames in received) >= 8


def test_watchers_that_share_frames_get_each_band_of_a_signal_once(page):
    received = watched_by(page, 20, 1.2, lambda k, n, tls: {"tl": tls[0]})
    for frames in received:
        bands = [tuple(band) for frame in frames if frame.panel for band in frame.panel.get("tl", {}).get("band", ())]
        assert len(bands) >= 3 and bands == sorted(set(bands)) and frames[0].panel["tl"]["is_first"]
        states = {}
        for frame in frames:
            states.update(frame.states)
            assert set(states.values()) == {"rG"[int(frame.at_s) % 2] * 12}


def test_watchers_that_ask_for_everything_again_and_again_do_not_delay_others(page):
    for second in range(1, 400):
        page.step(second, "rG"[second % 2], decisions=[page.decided(tl) for tl in page.layout.contracts])
    fresh = lambda k, n, tls: {"tl": tls[k % len(tls)], "fresh": True} if k else {"tl": None}  # noqa: E731
    received = watched_by(page, 11, 2.5, fresh)
    assert len(received[0]) >= 8


def test_a_watcher_that_waits_for_a_history_knows_that_the_connection_lives(page, browser, monkeypatch):
    monkeypatch.setattr(server_module, "KEEPALIVE_INTERVAL_S", 0.1)
    page.step(1, decisions=[page.decided("SA101")])
    page.server._next_first_s = time.monotonic() + 0.5  # others have just got theirs
    received = []
    while not received or received[-1].panel is None:
        received.append(browser.frame(tl="SA101"))
    assert len(received) >= 4 and received[-1].panel["tl"]["is_first"]


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "1", '{"view": [1, 2, 3]}',
     '{"view": [1, 2, 0, 4]}', '{"view": [0, 0, NaN, 4]}', '{"view": [0, 0, 1e300, 4]}',
     '{"view": "abcd"}', '{"view": [0, 0, 1, 1' + 400 * "0" + "]}",
     '{"view": [0, 0, 1, 1], "tl": 3}', '{"view": [0, 0, null, 1]}', "[" * 2000],
)  # fmt: skip
def test_a_malformed_request_ends_the_connection_with_its_reason(page, browser, text):
    with pytest.raises(MalformedRequest):
        parse_request(text)
    browser.send(text)
    assert browser.end() == WSCloseCode.INVALID_TEXT
    wait_until(lambda: not page.server.watchers)


@settings(max_examples=50)
@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["view", "tl", "at", "fresh"]), inner)).map(json.dumps))  # fmt: skip
def test_any_text_is_a_request_or_malformed(text):
    try:
        request = parse_request(text)
    except MalformedRequest:
        return
    assert request.at_s is None or isinstance(request.at_s, float)


@pytest.mark.parametrize(
    ("message", "code"), [(b"\0" * 8, WSCloseCode.UNSUPPORTED_DATA), ("x" * 10_000, WSCloseCode.MESSAGE_TOO_BIG)]
)
def test_binary_and_oversized_messages_end_the_connection(browser, message, code):
    browser.send(message)
    assert browser.end() == code


def test_a_tl_panel_has_its_history_and_then_what_is_new(page, browser):
    override = Override("A0", OverrideReason.CONFLICT, "GG", "rr")
    page.step(1, decisions=[page.decided("SA101")], overrides=[override], halting=2.0)
    page.step(2, "G")
    panel = browser.frame(tl="SA101").panel["tl"]
    assert panel["is_first"] and panel["queue"] == [[1, 2 * len(page.layout.lane_rows["SA101"])]]
    assert [part[:2] for part in panel["band"]] == [[0, 1], [1, 2]]
    assert panel["overrides"][0]["text"] == f"not GG: {EXPLANATIONS[OverrideReason.CONFLICT]}"
    assert len(panel["sentences"]) == 1 and panel["sentences"][0].startswith("00:00:01 SA101: current green ")
    page.step(3, "y", decisions=[page.decided("SA101", failure="DeadlineExceeded: late", mode=ControlMode.HOLD)])
    frame = browser.frame(tl="SA101")
    later = frame.panel["tl"]
    assert not later["is_first"] and [part[:2] for part in later["band"]] == [[2, 3]]
    assert later["decision"]["failure"] == "DeadlineExceeded: late" and later["now"]["mode"] == "hold"
    assert "DeadlineExceeded" in later["sentences"][0] and frame.modes[0] == ControlMode.HOLD.value
    assert "tl" not in (browser.frame(tl="nobody").panel or {})


def command(page, body, **headers):
    """(status, answer) of a command."""
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    sent = {"Content-Type": "application/json", **page.token, **headers}
    status, received, text = fetch(f"{page.url}/command", "POST", data, **sent)
    return status, json.loads(text) if received["Content-Type"].startswith("application/json") else text.decode()


def test_pause_step_and_speed_reach_the_pace_by_any_name_of_this_machine(page):
    with page.applying():
        assert command(page, {"action": "pause"}, Host=f"localhost:{page.port}")[0] == 200 and page.pace.state.is_paused
        assert command(page, {"action": "step", "until_s": 5})[0] == 200 and page.pace.state.step_until_s == 5
        assert command(page, {"action": "speed", "speed": 2})[0] == 200 and page.pace.state.speed == 2
        assert command(page, {"action": "resume"})[0] == 200 and not page.pace.state.is_paused


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff", 400), ("{", 400), ("[" * 100_000, 400), ([], 400), ({}, 400), ({"action": "reboot"}, 400),
        ({"action": "set-mode", "tls": ["SA101"], "mode": "off"}, 400),
        ({"action": "set-mode", "tls": "SA101", "mode": "hold"}, 400),
        ({"action": "set-mode", "tls": [], "mode": "hold"}, 400), ({"action": "set-mode", "tls": ["SA999"],
        "mode": "hold"}, 404),
        ({"action": "set-mode", "tls": ["SA101"], "mode": "hold", "for_s": -1}, 400), ({"action": "speed",
        "speed": "fast"}, 400),
        ({"action": "speed", "speed": 1e9}, 400), ({"action": "step", "until_s": True}, 400),
        ({"action": "pause", "author": 3}, 400),
        ({"action": "acknowledge", "alarm": "none"}, 404),
    ],
)  # fmt: skip
def test_malformed_commands_and_unknown_tls_are_refused_and_change_nothing(page, body, status):
    with page.applying():
        found, answer = command(page, body)
    assert found == status and answer["error"]
    assert not page.state.commands() and not page.loop.commands


def test_commands_need_the_token_json_and_a_run_that_goes_on(page):
    pause = {"action": "pause"}
    assert command(page, pause, Authorization="Bearer guess")[0] == 401
    assert command(page, pause, Authorization="")[0] == 401
    assert command(page, pause, **{"Content-Type": "text/plain"})[0] == 415
    page.queue.close("the run ends")
    assert command(page, pause) == (503, {"error": "the run ends"})
    assert not page.pace.state.is_paused


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": "127.0.0.1:1"}, {"Origin": "http://evil.example"},
        {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "cross-site"},
    ],
)  # fmt: skip
def test_requests_of_other_sites_are_refused_even_with_the_token(page, headers):
    with page.applying():
        status, text = command(page, {"action": "pause"}, **headers)
    assert status == 403 and "open the printed address" in text
    assert not page.pace.state.is_paused
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        Browser(page.url, **headers)
    assert refused.value.status == 403


@pytest.mark.parametrize(("host", "reason"), [("127.0.0.1", "Address already in use"), ("a" * 70, ".*too long.*")])
def test_an_address_that_cannot_be_used_is_an_input_error(page, host, reason):
    with pytest.raises(InputError, match=rf"--page {host}:\d+: cannot listen there \({reason}\); pass another port"):
        listen(host, page.port, "--page")


@pytest.mark.parametrize("failure", ["", "the connection to SUMO was lost: " + 80 * "ä"])
def test_watchers_learn_that_the_run_has_ended_and_why_it_has_failed(page, browser, failure):
    page.step(1)
    browser.frame()
    page.state.failure = failure
    browser.ask()
    page.state.close()
    city = browser.frame().panel["city"]
    assert city["has_ended"] and city["failure"] == failure
    begin_s = time.monotonic()
    page.server.stop()  # although the watcher asks for nothing
    message = browser.receive()
    assert time.monotonic() - begin_s < 1
    assert message.data == (server_module.RUN_FAILED if failure else WSCloseCode.GOING_AWAY)
    assert not failure or (message.extra and failure.startswith(message.extra))


def test_what_operators_have_set_is_listed_however_long_ago(page, browser):
    with page.applying():
        body = {"action": "set-mode", "tls": ["SA101", "SA102"], "mode": "hold", "author": "Ada", "reason": "a, fair"}
        command(page, body)
    page.step(9000)
    panel = browser.frame(tl="SA101").panel
    (setting,), (line,) = panel["city"]["settings"], panel["city"]["commands"]
    assert setting == {"at_s": 0.0, "text": "SA101, SA102: hold, by Ada: a, fair"}
    assert line["text"] == "SA101, SA102 set to hold, by Ada: a, fair"
    assert (panel["tl"]["now"]["set_by"], panel["tl"]["now"]["set_reason"]) == ("Ada", "a, fair")
    status, headers, text = fetch(f"{page.url}/log.csv")
    rows = list(csv.reader(io.StringIO(text.decode())))
    assert status == 200 and "attachment" in headers["Content-Disposition"]
    assert [row[1:] for row in rows[1:]] == [
        ["0", "set-mode", tl, "hold", "Ada", "a, fair"] for tl in ("SA101", "SA102")
    ]


def test_the_city_panel_counts_decisions_and_has_the_traffic_and_the_worst_tls(page, browser):
    tls = list(page.layout.contracts)
    halting = np.zeros(len(page.layout.lanes))
    halting[page.layout.lane_rows[tls[1]]] = 3.0
    for at_s in (0, 10, 20):
        page.step(at_s, decisions=[page.decided(tl) for tl in tls], halting=halting)
    page.step(20, decisions=[page.decided("SA102", failure="Unavailable: no server")], halting=halting)
    lanes = len(page.layout.lane_rows[tls[1]])
    page.earlier[0] = {"of": "Tuesday's record", "vehicles": 298.0}
    city = browser.frame().panel["city"]
    assert (city["decisions"], city["missing"], city["watchers"]) == (3 * len(tls), 1, 1)
    assert city["latency_ms"]["inference"] == [1.5, 1.5] and city["run"]["is_paused"] is False
    traffic = city["traffic"]
    assert traffic["worst"] == [[tls[1], 3 * lanes, 60 * lanes]] and traffic["halting"] == 3 * lanes
    assert (traffic["delay_s"], traffic["mean_halting"], traffic["span_s"]) == (60 * lanes, 3 * lanes, 20)
    assert page.state.tls == tls and traffic["vehicles"] == 0 and traffic["earlier"] == page.earlier[0]


def test_an_error_in_a_frame_is_logged_and_ends_only_this_connection(page, browser, caplog, monkeypatch):
    page.step(1)
    with monkeypatch.context() as broken:
        broken.setattr(page.street, "signals_in", lambda view: 1 / 0)
        browser.ask()
        assert browser.end() == WSCloseCode.INTERNAL_ERROR
    with Browser(page.url) as other:
        assert other.frame().at_s == 1
    assert "a frame could not be made" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_page_without_its_extra_is_an_input_error(monkeypatch):
    for module in ("controller.operator.page.live", "controller.operator.page.server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(InputError, match=r"--page needs aiohttp; install greenserve\[page\]"):
        operator_interface._page(None, ("127.0.0.1", 0), None, None, None, None)
