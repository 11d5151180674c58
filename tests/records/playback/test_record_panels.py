"""The panels of a record, and those of the live page, which are made of the same messages."""

import pytest

from controller.events import OperatorAction
from controller.operator.page.panels import TlHistory, WatchedTl, tl_panel
from controller.operator.run_state import RunState
from controller.operator.tl_layout import TlLayout
from signals.fallback.control_mode import OperatorMode
from tests.conftest import ROOT
from tests.records.playback.played_records import Played
from tests.records.recorded_city import FLEET_TL, SILENT_TL, STREET_TL, record_city

COMMANDED, REASON = "SA103", "roadworks"
TLS = ("SA101", FLEET_TL, SILENT_TL, STREET_TL, COMMANDED)
ALARM = "GreenserveTLInFallback"
LISTS = ("band", "queue", "overrides")


class Operator:
    """Sets a TL to fixed and back, and acknowledges the first alarm."""

    def __init__(self):
        self.commands = {
            100: lambda loop: loop.set_mode(COMMANDED, OperatorMode.FIXED, "Ada", REASON),
            120: lambda loop: loop.note_action(OperatorAction("acknowledge", ALARM, "", "Ada")),
            130: lambda loop: loop.note_action(OperatorAction("pin", COMMANDED, "3", "Ada")),
            220: lambda loop: loop.set_mode(COMMANDED, OperatorMode.POLICY, "Ada"),
        }

    def __call__(self, loop):
        for at_s in [at_s for at_s in self.commands if at_s <= loop.now]:
            self.commands.pop(at_s)(loop)


class Live:
    """The state that a running controller keeps for its page, and the panels of a browser that asks after each step."""

    def __init__(self, run):
        self.state = RunState(run.contracts, keeps_history=True)
        self.layout = TlLayout(run.contracts, run.tracked_lanes().lanes)
        self.watched = {tl: WatchedTl(self.state, self.layout, tl) for tl in TLS}
        self.panels = {tl: [] for tl in TLS}

    def add(self, event):
        self.state.add(event)
        for tl, watched in self.watched.items():
            self.panels[tl].append(tl_panel(watched.contract, {}, watched.news(), {}, "", False))

    def whole(self, tl):
        watched = WatchedTl(self.state, self.layout, tl)
        assert watched.is_first
        return watched.news()

    def close(self):
        pass


@pytest.fixture(scope="module")
def commanded():
    """(a recorded run with an operator's commands, what its page had)."""
    live = []
    return record_city(watch=lambda run: live.append(Live(run)) or live, operate=Operator()), live[0]


@pytest.fixture(scope="module")
def played(commanded, tmp_path_factory):
    recorded, _ = commanded
    return Played(recorded.write(tmp_path_factory.mktemp("played") / "run.mcap"))


def added_up(parts):
    lists = {key: [item for part in parts for item in part[key]] for key in LISTS}
    return {**lists, "sentences": [text for part in parts for text in part["sentences"]][-40:]}


@pytest.mark.parametrize("tl", TLS)
def test_the_live_page_shows_the_messages_that_the_recorder_writes(commanded, tl):
    recorded, live = commanded
    expected = [messages[tl] for _, messages, _ in recorded.steps if tl in messages]
    assert live.whole(tl).steps == expected and len(expected) > 50


@pytest.mark.parametrize("tl", TLS)
def test_live_panels_that_follow_one_another_add_up_to_the_whole_one(commanded, tl):
    _, live = commanded
    whole = tl_panel(live.layout.contracts[tl], {}, live.whole(tl), {}, "", True)
    assert added_up(live.panels[tl]) == {key: whole[key] for key in (*LISTS, "sentences")}
    for key in ("decision", "states"):
        assert live.panels[tl][-1][key] == whole[key] != {}


def test_panels_of_a_record_that_follow_one_another_add_up_to_the_whole_one(played):
    parts, since_s = [], None
    for at_s in (20.0, 20.5, 21.0, 33.0, 90.0, 151.0):
        parts.append(played.page.panels.tl(SILENT_TL, played.page.moments.moment(at_s), since_s))
        since_s = at_s
    whole = played.frame(since_s, SILENT_TL).panel["tl"]
    assert [part["is_first"] for part in parts] == [True, False, False, False, False, False] and whole["is_first"]
    found, expected = added_up(parts), added_up([whole])
    assert by_second(found.pop("band")) == by_second(expected.pop("band"))
    assert found == expected


def by_second(band):
    return {at / 2: tuple(states) for begin, end, *states in band for at in range(int(2 * begin) + 1, int(2 * end) + 1)}


def test_a_panel_has_the_newest_decision_and_states_of_its_second(commanded):
    recorded, live = commanded
    contract = live.layout.contracts[SILENT_TL]
    steps = [messages[SILENT_TL] for _, messages, _ in recorded.steps if SILENT_TL in messages]
    step = next(step for step in steps if step.HasField("decision") and len(step.states) > 1)
    until_s = step.states[0].at_s
    panel = tl_panel(contract, {}, TlHistory([step], [], [], -1.0, until_s), {}, "", True)
    assert panel["decision"]["at_s"] == step.at_s and panel["states"]["at_s"] == until_s
    assert len(panel["sentences"]) == 1
    later = tl_panel(contract, {}, TlHistory([step], [], [], step.at_s), {}, "", False)
    assert later["decision"] == panel["decision"] and later["sentences"] == []
    assert later["states"]["at_s"] == step.states[-1].at_s


def test_an_operator_who_set_the_mode_is_named_until_it_is_taken_back_and_a_pin_is_shown(played):
    now = [played.frame(at_s, COMMANDED).panel["tl"]["now"] for at_s in (50, 150, 290)]
    assert [(each["set_by"], each["mode"]) for each in now] == [("", "policy"), ("Ada", "fixed"), ("", "policy")]
    assert [each["pinned_version"] for each in now] == [0, 3, 3]


def test_alarms_are_those_of_the_second(played):
    found = []
    for at_s in (50, 115, 125, 250):
        alarms = {alarm["id"]: alarm for alarm in played.frame(at_s).panel["city"]["alarms"]}
        alarm = alarms.get(ALARM)
        found.append(alarm and (alarm["subjects"], alarm["acknowledged_by"], alarm["ended_s"] is not None))
    assert found == [
        None, ([SILENT_TL], "", False), ([SILENT_TL], "Ada", False), ([SILENT_TL], "Ada", True),
    ]  # fmt: skip


def test_marks_lead_to_alarms_and_commands(played):
    overview = played.page.overview.as_json()
    assert overview["is_complete"] and overview["missing"] == []
    marks = {mark.text: mark for mark in overview["marks"]}
    assert marks[f"{COMMANDED} set to fixed, by Ada: {REASON}"].kind == "command"
    assert any(mark.kind == "warning" and SILENT_TL in text for text, mark in marks.items())
    assert [mark.at_s for mark in overview["marks"]] == sorted(mark.at_s for mark in overview["marks"])


def test_commands_are_those_up_to_the_second_the_newest_first(played):
    early, late = (played.frame(at_s).panel["city"]["commands"] for at_s in (150, 290))
    assert [each["text"] for each in late] == [
        f"{COMMANDED} set to policy, by Ada", f"pin {COMMANDED} 3, by Ada", f"alarm {ALARM} acknowledged, by Ada",
        f"{COMMANDED} set to fixed, by Ada: {REASON}",
    ]  # fmt: skip
    assert early == late[1:]


def test_a_record_without_movement_names_has_those_of_its_network():
    older = Played(ROOT / "tests" / "records" / "records" / "sample-city.mcap")
    panel = older.frame(120, "SA101").panel["tl"]
    assert panel["shown"] == ["northbound and southbound left"] and "18% of eastbound left" in panel["sentences"][-1]


def test_the_city_panel_has_the_traffic_of_the_second(played):
    traffic = played.frame(200).panel["city"]["traffic"]
    counted = played.page.moments.moment(200).counts.sum(1).tolist()
    assert [traffic["vehicles"], traffic["halting"]] == counted and counted[1] > 0
    assert traffic["worst"][0][1] == max(halting for _, halting, _ in traffic["worst"])
    assert traffic["delay_s"] is traffic["mean_halting"] is None


def test_street_is_shown_before_the_overview_has_read_the_record(played):
    unread = Played(played.page.overview._reader.files[0].path, reads=False)
    frame, read = unread.frame(200, SILENT_TL), played.frame(200, SILENT_TL)
    assert (frame.states, frame.modes, frame.queues) == (read.states, read.modes, read.queues)
    assert frame.panel["tl"]["now"]["since_s"] is None and not frame.panel["city"]["is_read"]
    assert read.panel["tl"]["now"]["since_s"] is not None and read.panel["city"]["is_read"]
    assert unread.page.overview.as_json()["read_to_s"] is None


def test_the_recorded_wall_clock_speed_and_rates_are_shown(played):
    city = played.frame(200).panel["city"]
    assert city["wall"].startswith("2026-09-21T") and city["missing"] > 5
    # the record's wall clock is ten times as fast as its simulated one
    assert city["recorded_speed"] == pytest.approx(10, rel=0.3)
    assert city["decisions_per_s"] > 1
    assert all(len(values) == 2 for values in city["latency_ms"].values())
