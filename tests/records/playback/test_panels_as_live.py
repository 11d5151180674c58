"""The panels of a record are those that the live page had at the same second of the same run."""

import json
from types import SimpleNamespace

import pytest

from controller.alarms import Alarms
from controller.events import OperatorAction
from controller.operator.page import panels
from controller.operator.page.feed import Feed
from controller.operator.run_state import RunState
from controller.operator.watchers import Watchers
from controller.recording.messages import Encoder
from signals.fallback.control_mode import OperatorMode
from tests.records.playback.played_records import Played
from tests.records.recorded_city import BEGIN_UNIX_NS, FLEET_TL, SILENT_TL, STREET_TL, record_city

TLS = ("SA101", FLEET_TL, SILENT_TL, STREET_TL)
COMMANDED = "SA103"
STEPS = (3, 40, 60, 75, 100)
"""Events after which the panels of both are compared."""


class Live:
    """What a live page has of a run, as panels of a few moments."""

    def __init__(self, run):
        tl_of_signal = {signal: c.tl for c in run.contracts for signal in c.signal_ids}
        self.feed, self.state = Feed(run.contracts), RunState(run.contracts, Watchers())
        self.feed.track(run.tracked_lanes().lanes)
        self.alarms = Alarms(tl_of_signal, len(run.contracts), wall_clock=lambda: 0.0)
        self.run, self.panels, self.commands = run, {}, []

    def add(self, event):
        for subscriber in (self.feed, self.state, self.alarms):
            subscriber.add(event)
        if event.number in STEPS:
            controls = SimpleNamespace(tl=self.tl)
            self.panels[event.at_s] = {
                "tls": {
                    tl: panels.TlPanel(self.feed, controls, tl, Encoder(self.run)).update() for tl in (*TLS, COMMANDED)
                },
                "decisions": self.feed.decisions,
                "missing": self.feed.missing,
                "alarms": [
                    (a.id, a.since_s, a.ended_s, a.text, a.acknowledged_by)
                    for a in self.alarms.current(with_ended=True)
                ],
                "commands": [c._asdict() for c in self.state.commands()],
            }

    def tl(self, tl):
        (state,) = self.state.states([tl])
        return {"mode": state.mode.name.lower(), "since_s": state.since_s, "model": state.model,
        "version": state.version,
                "reason": state.reason, "decided_s": state.decided_s}  # fmt: skip

    def close(self):
        pass


class Operator:
    """Sets a TL to fixed and back, and acknowledges an alarm, as the queue of commands does."""

    def __init__(self):
        self.live, self.done = None, set()

    def __call__(self, loop):
        for at_s, mode in ((100, OperatorMode.FIXED), (220, OperatorMode.POLICY)):
            if loop.now >= at_s and mode not in self.done:
                self.done.add(mode)
                self.live.state.follow(loop.set_mode(COMMANDED, mode, "Ada"), loop.now)
                self.live.state.note(loop.now, "set-mode", COMMANDED, mode.value, "Ada")
        active = self.live.alarms.current()
        if active and "acknowledge" not in self.done:
            self.done.add("acknowledge")
            self.live.alarms.acknowledge(active[0].id, "Ada")
            loop.note_action(OperatorAction("acknowledge", active[0].id, "", "Ada"))
            self.live.state.note(loop.now, "acknowledge", active[0].id, "", "Ada")


@pytest.fixture(scope="module")
def live_and_played(tmp_path_factory):
    operator = Operator()

    def watch(run):
        operator.live = Live(run)
        return [operator.live]

    recorded = record_city(watch=watch, operate=operator)
    path = recorded.write(tmp_path_factory.mktemp("played") / "run.mcap")
    assert {*OperatorMode} - operator.done == {OperatorMode.HOLD}
    assert "acknowledge" in operator.done
    return operator.live, Played(path)


@pytest.mark.parametrize("tl", [*TLS, COMMANDED])
def test_a_tls_panel_is_the_live_one(live_and_played, tl):
    live, played = live_and_played
    for at_s, expected in live.panels.items():
        shown = played.frame(at_s, tl).panel["tl"]
        wanted = json.loads(json.dumps(expected["tls"][tl]))
        assert shown["is_first"]
        for key in ("tl", "decision", "queue", "sentences"):
            assert shown[key] == wanted[key], (at_s, key)
        # the live panel has the commands of seconds that SUMO has not simulated yet
        assert shown["overrides"] == [override for override in wanted["overrides"] if override["at_s"] <= at_s]
        assert shown["states"]["at_s"] <= wanted["states"]["at_s"]
        reason, live_reason = shown["now"].pop("reason"), wanted["now"].pop("reason")
        assert reason in ("", live_reason, *(f"{o['signal']}: {o['reason']}" for o in shown["overrides"][-1:])), at_s
        assert {key: shown["now"][key] for key in wanted["now"]} == wanted["now"], at_s
        assert shown["band"] == [part for part in clipped(wanted["band"], at_s - 180)]
    assert any(panel["tls"][tl]["sentences"] for panel in live.panels.values())


def clipped(band, from_s):
    return [[max(begin, from_s), end, *states] for begin, end, *states in band if end > from_s]


def test_the_citys_panel_is_the_live_one(live_and_played):
    live, played = live_and_played
    for at_s, expected in live.panels.items():
        city = played.frame(at_s).panel["city"]
        assert (city["decisions"], city["missing"]) == (expected["decisions"], expected["missing"])
        found = [(a["id"], a["since_s"], a["ended_s"], a["text"], a["acknowledged_by"]) for a in city["alarms"]]
        assert found == expected["alarms"]
        assert city["commands"] == expected["commands"]
    assert any(panel["alarms"] for panel in live.panels.values())
    assert any(panel["missing"] for panel in live.panels.values())


def test_an_operator_who_set_the_mode_is_named_until_it_is_taken_back(live_and_played):
    _, played = live_and_played
    authors = [played.frame(at_s, COMMANDED).panel["tl"]["now"]["set_by"] for at_s in (50, 150, 290)]
    assert authors == ["", "Ada", ""]


def test_panels_that_follow_one_another_add_up_to_the_whole_one(live_and_played):
    _, played = live_and_played
    moments, made = played.page.moments, played.page.panels
    parts, since_s = [], None
    for at_s in (20.0, 20.5, 21.0, 33.0, 90.0, 151.0):
        parts.append(made.tl(SILENT_TL, moments.moment(at_s), since_s))
        since_s = at_s
    whole = made.tl(SILENT_TL, moments.moment(since_s), None)
    assert [part["is_first"] for part in parts] == [True, False, False, False, False, False]
    for key in ("queue", "overrides"):
        assert [item for part in parts for item in part[key]] == whole[key]
    assert [text for part in parts for text in part["sentences"]][-40:] == whole["sentences"]
    assert by_second(part for each in parts for part in each["band"]) == by_second(whole["band"])


def by_second(band):
    """The state of each half second."""
    return {at / 2: tuple(states) for begin, end, *states in band for at in range(int(2 * begin) + 1, int(2 * end) + 1)}


def test_marks_lead_to_alarms_and_commands(live_and_played):
    _, played = live_and_played
    overview = played.page.overview.as_json()
    assert overview["is_complete"] and overview["missing"] == []
    marks = {mark.text: mark for mark in overview["marks"]}
    assert marks[f"{COMMANDED} set to fixed, by Ada"].kind == "command"
    assert any(mark.kind == "warning" and SILENT_TL in text for text, mark in marks.items())
    assert [mark.at_s for mark in overview["marks"]] == sorted(mark.at_s for mark in overview["marks"])


def test_street_is_shown_before_the_overview_has_read_the_record(live_and_played):
    _, played = live_and_played
    path = played.page.overview._reader.files[0].path
    unread = Played(path, reads=False)
    frame, read = unread.frame(200, SILENT_TL), played.frame(200, SILENT_TL)
    assert (frame.states, frame.modes, frame.queues) == (read.states, read.modes, read.queues)
    assert frame.panel["tl"]["now"]["since_s"] is None and not frame.panel["city"]["is_read"]
    assert read.panel["tl"]["now"]["since_s"] is not None and read.panel["city"]["is_read"]
    assert unread.page.overview.as_json()["read_to_s"] is None


def test_the_recorded_wall_clock_speed_and_rates_are_shown(live_and_played):
    _, played = live_and_played
    city = played.frame(200).panel["city"]
    assert city["wall"].startswith("2026-09-21T") and BEGIN_UNIX_NS > 0
    # the record's wall clock is ten times as fast as its simulated one
    assert city["recorded_speed"] == pytest.approx(10, rel=0.3)
    assert city["decisions_per_s"] > 1
    assert all(len(values) == 2 for values in city["latency_ms"].values())
