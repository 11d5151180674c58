"""The page of a record over a real aiohttp client: seeking, what is refused, and that there are no commands."""

import asyncio
import contextlib
import gzip
import json
import sys

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.page_frame import decode
from controller.operator.page.frame_server import MalformedRequest, parse_request
from records import replay_command
from tests.controller.operator.page.pages import run
from tests.records.playback.played_records import EVERYWHERE, SAMPLE_CITY, Played


@pytest.fixture(scope="module")
def played():
    return Played(SAMPLE_CITY)


@pytest.fixture(scope="module")
def url(played):
    with played.served() as url:
        yield url


async def connected(session, url):
    return await session.ws_connect(f"{url}/live", headers={"Origin": url})


async def frame_of(socket, **request):
    await socket.send_json({"view": EVERYWHERE, **request})
    return decode(await socket.receive_bytes(timeout=5))


def test_any_second_is_answered_in_any_order(played, url):
    async def work(session):
        socket = await connected(session, url)
        return [await frame_of(socket, at=at_s) for at_s in (200, 10, 100.5, -50, 1e9)]

    frames = run(work)
    timeline = played.page.moments.timeline
    assert [frame.at_s for frame in frames] == [200, 10, 100.5, timeline.first_s, timeline.last_s]
    for frame in frames:
        moment = played.page.moments.moment(frame.at_s)
        assert frame.has_all_states and tuple(frame.states.values()) == moment.shown and frame.modes == moment.modes


def test_a_panel_goes_on_after_its_second_and_begins_anew_before_it(url):
    async def work(session):
        socket, found = await connected(session, url), []
        for tl, at_s, fresh in (("SA101", 100, False), ("SA101", 105, False), ("SA101", 50, False), ("SA102", 55,
        False),
                                ("SA102", 60, True), (None, 61, False), ("SA102", 62, False)):  # fmt: skip
            panel = (await frame_of(socket, tl=tl, at=at_s, fresh=fresh)).panel.get("tl")
            found.append(panel and (panel["tl"], panel["is_first"]))
        return found

    assert run(work) == [
        ("SA101", True), ("SA101", False), ("SA101", True), ("SA102", True), ("SA102", True), None, ("SA102", True)
    ]  # fmt: skip


def test_each_watcher_has_its_own_position(url):
    async def work(session):
        one, other = await connected(session, url), await connected(session, url)
        return [
            (await frame_of(socket, at=at_s)).at_s
            for socket, at_s in ((one, 30), (other, 200), (one, 31), (other, 199))
        ]

    assert run(work) == [30, 200, 31, 199]


def test_of_requests_that_wait_the_newest_is_answered(url):
    async def work(session):
        socket = await connected(session, url)
        for at_s in range(100):
            await socket.send_json({"view": EVERYWHERE, "at": at_s})
        seen = []
        while not seen or seen[-1] != 99:
            seen.append(decode(await socket.receive_bytes(timeout=5)).at_s)
        return seen

    seen = run(work)
    assert seen == sorted(seen) and len(seen) < 100


def test_the_city_says_what_the_record_is_and_a_live_page_says_none(played, url):
    async def work(session):
        async with session.get(f"{url}/city.json", auto_decompress=False) as response:
            return json.loads(gzip.decompress(await response.read()))

    about = run(work)["record"]
    assert about["files"] == ["sample-city.mcap"] and about["has_vehicles"] is False
    assert (about["first_s"], about["last_s"]) == (
        played.page.moments.timeline.first_s,
        played.page.moments.timeline.last_s,
    )


def test_the_overview_is_served(url):
    async def work(session):
        async with session.get(f"{url}/overview.json") as response:
            return await response.json()

    overview = run(work)
    assert overview["is_complete"] and overview["missing"] == []


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_there_are_no_commands(url, method):
    async def work(session):
        async with getattr(session, method)(f"{url}/command", json={"action": "pause"}) as response:
            return response.status, response.headers["X-Frame-Options"]

    assert run(work) == (404, "DENY")


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_requests_of_other_sites_are_refused(url, headers):
    async def work(session):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{url}/live", headers=headers)
        return refused.value.status

    assert run(work) == 403


@pytest.mark.parametrize(
    "text",
    ["nonsense", '{"view": [0, 0, 1, 1]}', '{"view": [0, 0, 1, 1], "at": "1"}', '{"view": [0, 0, 1, 1], "at": true}',
     '{"view": [0, 0, 1, 1], "at": NaN}', '{"view": [0, 0, 1, 1], "at": 1' + 400 * "0" + "}",
     '{"view": [0, 0, 1, 1], "at": null}'],
)  # fmt: skip
def test_a_malformed_request_ends_the_connection_with_its_reason(url, text):
    async def work(session):
        socket = await connected(session, url)
        await socket.send_str(text)
        message = await socket.receive(timeout=5)
        return message.type, socket.close_code

    assert run(work) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.INVALID_TEXT)


@settings(max_examples=50)
@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["view", "tl", "at", "fresh"]), inner)).map(json.dumps))  # fmt: skip
def test_any_text_is_a_request_or_malformed(text):
    try:
        request = parse_request(text)
    except MalformedRequest:
        return
    assert request.at_s is None or isinstance(request.at_s, float)


def test_connections_close_when_the_command_ends():
    played = Played(SAMPLE_CITY, reads=False)

    async def work(session):
        with contextlib.ExitStack() as serving:
            url = serving.enter_context(played.served())
            socket = await connected(session, url)
            await frame_of(socket, at=5)
            ending = asyncio.to_thread(serving.close)
            message, _ = await asyncio.gather(socket.receive(timeout=5), ending)
            return message.type, socket.close_code

    assert run(work) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)


def test_an_error_in_a_frame_is_logged_and_ends_only_this_connection(played, url, caplog, monkeypatch):
    async def work(session):
        socket = await connected(session, url)
        with monkeypatch.context() as broken:
            broken.setattr(played.page.moments, "moment", lambda at_s: 1 / 0)
            await socket.send_json({"view": EVERYWHERE, "at": 5})
            message = await socket.receive(timeout=5)
        assert (message.type, socket.close_code) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.INTERNAL_ERROR)
        return await frame_of(await connected(session, url), at=5)

    assert run(work).at_s == 5
    assert "a frame could not be made" in caplog.text and "ZeroDivisionError" in caplog.text


def refused(capsys, *arguments):
    """The one line with which the command refuses arguments."""
    assert replay_command.main([*map(str, arguments)], "greenserve replay") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


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
    assert message in refused(capsys, SAMPLE_CITY, *arguments)


def test_files_and_ports_that_cannot_be_used_are_one_line(url, recorded_city, tmp_path, capsys):
    address = url.removeprefix("http://")
    message = f"error: --page {address}: cannot listen there (Address already in use); pass another port\n"
    assert refused(capsys, SAMPLE_CITY, "--page", address) == message
    paths = [recorded_city.write(tmp_path / f"{run}.mcap", 0, 5, run=run) for run in ("one", "two")]
    message = "are files of different runs; name the files of one run"
    assert message in refused(capsys, *paths, "--page", "127.0.0.1:0")
    notes = tmp_path / "notes.mcap"
    notes.write_text("nothing")
    assert f"{notes}: cannot be read as a record" in refused(capsys, notes, "--page", "127.0.0.1:0")


def test_the_page_without_its_extra_is_one_line(monkeypatch, capsys):
    modules = ("controller.operator.page.site", "records.playback.record_page", "records.playback.playback_server")
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    message = "--page needs aiohttp; install greenserve[page,record], or leave --page out"
    assert message in refused(capsys, SAMPLE_CITY, "--page", "127.0.0.1:0")
