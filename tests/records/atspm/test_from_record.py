"""A period and readings from a record of the sample city."""

import copy
from bisect import bisect_right
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import config
from city.errors import InputError
from controller.recording.detectors import Detector
from controller.recording.sentences import mode_name
from protos import record_pb2 as record
from records.atspm import from_record
from records.atspm.analysis_period import FALLBACK, HOLD, LOST, MAX_OUT, POLICY, RECOVERING
from records.atspm.from_record import DetectionCollector, RecordSelection
from records.run_files import open_files
from tests.conftest import GRID
from tests.records.recorded_city import SECONDS, SILENT_TL, STREET_TL, RecordedCity


@pytest.fixture(scope="module")
def recorded(whole):
    return from_record.read(open_files([whole]), RecordSelection(vehicles_s=SECONDS))


def signal_of(recorded_city, tl):
    return next(contract.signal_ids[0] for contract in recorded_city.start.contracts if contract.tl == tl)


def states_of(recorded_city):
    """The states that the run's commands asked for, of every TL and moment."""
    return [
        states for _, tl_steps, _ in recorded_city.steps for tl_step in tl_steps.values() for states in tl_step.states
    ]


def history_of(recorded, signal):
    return next(each for each in recorded.period.signals if each.signal == signal)


def at(changes, time_s):
    return changes[bisect_right([change.begin_s for change in changes], time_s) - 1]


def test_history_has_every_state_that_sumo_showed(recorded_city, recorded):
    intervals = [shown for step, _, _ in recorded_city.steps for shown in step.shown]
    assert recorded.period.begin_s == intervals[0].begin_s and recorded.period.end_s == intervals[-1].end_s
    assert [own.signal for own in recorded.period.signals] == list(recorded_city.start.start.signals)
    for shown in intervals:
        for own, state in zip(recorded.period.signals, shown.states, strict=True):
            assert at(own.states, shown.begin_s).state == state
    assert all(a.state != b.state for own in recorded.period.signals for a, b in pairwise(own.states))


def test_modes_are_those_after_each_step(recorded_city, recorded):
    found = set()
    for _, tl_steps, _ in recorded_city.steps:
        for tl, tl_step in tl_steps.items():
            mode = at(history_of(recorded, signal_of(recorded_city, tl)).modes, tl_step.at_s).mode
            assert mode == mode_name(tl_step.mode)
            found.add((tl, mode))
    assert {(SILENT_TL, mode) for mode in (POLICY, HOLD, FALLBACK, RECOVERING)} <= found


def test_programs_run_while_signals_are_handed_to_them(recorded_city, recorded):
    own = history_of(recorded, signal_of(recorded_city, SILENT_TL))
    for states in states_of(recorded_city):
        for command in (each for each in states.commands if each.signal == own.signal):
            assert at(own.programs, states.at_s).program == (None if command.state else command.program)
    assert {change.program is None for change in own.programs} == {True, False}


def test_green_that_reached_its_maximum_is_a_max_out(recorded_city, recorded):
    expected = {
        (override.signal, states.at_s)
        for states in states_of(recorded_city)
        for override in states.overrides
        if override.reason == record.TlStep.MAX_GREEN
    }
    assert {(own.signal, time_s) for own in recorded.period.signals for time_s in own.green_ends} == expected
    assert {cause for own in recorded.period.signals for cause in own.green_ends.values()} <= {MAX_OUT}


def test_queues_are_the_halting_vehicles_of_a_phase(recorded_city, recorded):
    tl, signal = "SA101", signal_of(recorded_city, "SA101")
    lanes = recorded_city.start.tracked_lanes()
    index = [contract.tl for contract in recorded_city.start.contracts]
    found = {
        phase: {each.time_s: each for each in readings} for phase, readings in recorded.readings[signal].lanes.items()
    }
    total = 0
    for step, _, _ in recorded_city.steps:
        due = [index[k] for k in step.due]
        if tl not in due:
            continue
        halting = dict(zip(lanes.rows_of(due)[0], step.readings.halting, strict=True))
        for phase, by_time in found.items():
            own = [lane for lane, number in recorded.phases[signal].phase_of_lane.items() if number == phase]
            reading = by_time[step.at_s]
            assert reading.halting == sum(halting[lane] for lane in own)
            assert reading.longest == max(halting[lane] for lane in own)
            total += reading.halting
    assert total > 0


def test_vehicles_of_dialect_street_are_kept(recorded_city, recorded):
    signal = signal_of(recorded_city, STREET_TL)
    readings = recorded.readings[signal]
    lanes = set(recorded_city.start.tracked_lanes().vehicle_lanes_of[STREET_TL])
    assert {vehicle.lane for vehicle in readings.vehicles} <= lanes and len(readings.vehicles) > 100
    assert {vehicle.time_s for vehicle in readings.vehicles} <= set(readings.vehicle_times_s)
    length_m = recorded_city.start.street.lane_length_m
    assert all(0 <= vehicle.position_m <= length_m[vehicle.lane] + 1 for vehicle in readings.vehicles)
    assert not recorded.readings[signal_of(recorded_city, "SA101")].vehicles


def test_vehicles_are_kept_of_the_time_with_the_most_of_them(recorded_city, whole, recorded):
    window_s = 60.0
    signal = signal_of(recorded_city, STREET_TL)
    everything, found = (
        recorded.readings[signal],
        from_record.read(open_files([whole]), RecordSelection(vehicles_s=window_s)),
    )
    kept = found.readings[signal]
    times = [vehicle.time_s for vehicle in everything.vehicles]
    counts = [
        sum(end_s - window_s < time_s <= end_s for time_s in times) for end_s in sorted(everything.vehicle_times_s)
    ]
    assert len(kept.vehicles) == max(counts) > counts[0] and kept.vehicle_times_s[0] > window_s
    assert kept.vehicle_times_s[-1] - kept.vehicle_times_s[0] < window_s
    assert kept.vehicles == [each for each in everything.vehicles if each.time_s in set(kept.vehicle_times_s)]
    assert kept.lanes == everything.lanes


def test_volume_of_dialect_street_is_the_way_driven_by_the_length_of_the_lane(recorded_city, recorded):
    signal = signal_of(recorded_city, STREET_TL)
    length_m = recorded_city.start.street.lane_length_m
    of_lane = recorded.phases[signal].phase_of_lane
    own = recorded.readings[signal]
    times = own.vehicle_times_s
    for phase, readings in own.lanes.items():
        passed = sum(
            vehicle.speed_mps * (vehicle.time_s - times[times.index(vehicle.time_s) - 1]) / length_m[vehicle.lane]
            for vehicle in own.vehicles
            if of_lane.get(vehicle.lane) == phase and vehicle.time_s > times[0]
        )
        assert readings[-1].passed == pytest.approx(passed)
    assert max(readings[-1].passed for readings in own.lanes.values()) > 5
    assert any("Edie" in note for note in recorded.notes)


def test_second_0_is_midnight_unless_it_is_given(recorded_city, whole, recorded):
    assert recorded.period.zero == datetime(2026, 9, 21)
    zero = datetime(2026, 3, 2, 7)
    assert from_record.read(open_files([whole]), RecordSelection(zero=zero)).period.zero == zero


def test_time_and_tls_are_chosen(recorded_city, whole, recorded):
    chosen = from_record.read(open_files([whole]), RecordSelection(frozenset({"SA101"}), 60, 120))
    assert (chosen.period.begin_s, chosen.period.end_s) == (60, 120)
    signal = signal_of(recorded_city, "SA101")
    assert list(chosen.programs) == [signal] and chosen.phases == recorded.phases
    own, whole = (
        [state for state in history_of(each, signal).states if state.begin_s < 120] for each in (chosen, recorded)
    )
    assert own == whole
    assert all(60 <= each.time_s <= 120 for lane in chosen.readings[signal].lanes.values() for each in lane)


def test_time_without_a_state_is_refused(whole):
    with pytest.raises(InputError, match=r"whole\.mcap: has no shown state"):
        from_record.read(open_files([whole]), RecordSelection(from_s=5000))


def test_hole_is_control_mode_lost_and_named(recorded_city, tmp_path):
    for number, (begin, end) in enumerate([(0, 20), (20, 40), (40, 60)]):
        if number != 1:
            recorded_city.write(tmp_path / f"{number}.mcap", begin, end, number)
    found = from_record.read(open_files([tmp_path]))
    begin_s = recorded_city.steps[19][0].shown[-1].end_s
    end_s = recorded_city.steps[40][0].shown[0].begin_s
    for own in found.period.signals:
        lost = [k for k, change in enumerate(own.modes) if change.mode == LOST]
        assert len(lost) == 1 and own.modes[lost[0]].begin_s == begin_s
        assert own.modes[lost[0] + 1].begin_s == pytest.approx(end_s, abs=0.01)
    assert any(note.startswith("nothing is recorded from ") for note in found.notes)
    assert "file 1 is missing before 2.mcap" in found.notes


def test_driver_is_not_control_mode_policy(recorded_city, tmp_path):
    driven = RecordedCity(replace(recorded_city.start, driver="max-pressure"), recorded_city.steps)
    found = from_record.read(open_files([driven.write(tmp_path / "driven.mcap", 0, 20)]))
    modes = {change.mode for own in found.period.signals for change in own.modes}
    assert "max-pressure" in modes and POLICY not in modes
    assert any(note.startswith("max-pressure drove") for note in found.notes)


def test_phase_numbers_of_city_toml_count(whole, tmp_path):
    city = tmp_path / "city.toml"
    city.write_text(
        f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n[tl.SA101]\nsignals = ["A0"]\ndialect = "sumo-rl"\n'
        'phases = { "A1A0.70.00:left" = 11 }\n'
    )
    found = from_record.read(open_files([whole]), RecordSelection(city=config.load(city)))
    assert {phase.number for phase in found.phases["A0"].phases} == {2, 3, 4, 5, 6, 7, 8, 11}


def test_phase_numbers_of_the_recorded_city_count(recorded_city, tmp_path):
    def recorded_with(**phases):
        changed = RecordedCity(replace(recorded_city.start, phases={"SA101": phases}), recorded_city.steps)
        return open_files([changed.write(tmp_path / "changed.mcap")])

    found = from_record.read(recorded_with(**{"A1A0.70.00:left": 11}))
    assert {phase.number for phase in found.phases["A0"].phases} == {2, 3, 4, 5, 6, 7, 8, 11}
    with pytest.raises(
        InputError, match=r"changed\.mcap: \[tl\.SA101\] phases: B9 is not a movement .* that --city names"
    ):
        from_record.read(recorded_with(B9=2))
    with pytest.raises(InputError, match="SA101 has phases B9 = 17, which is not a phase number"):
        from_record.read(recorded_with(B9=17))


def test_program_that_no_file_defines_counts_as_coordinated(recorded_city):
    start = recorded_city.start
    running = start.start.signals["A0"]
    other = replace(next(iter(running.programs.values())), id="other")
    signals = {**start.start.signals, "A0": replace(running, programs={**running.programs, "other": other})}
    run = replace(start, start=replace(start.start, signals=signals))
    found = {program.id: program.is_coordinated for program in from_record.programs_of(run, "A0")}
    assert found == {**dict.fromkeys(running.programs, False), "other": True}


def test_record_that_does_not_fit_its_network_is_refused(recorded_city, tmp_path):
    contracts = copy.deepcopy(recorded_city.start.contracts)
    contracts[0].signals[0].lane_ids[0] = "elsewhere_0"
    changed = RecordedCity(replace(recorded_city.start, contracts=contracts), recorded_city.steps)
    with pytest.raises(InputError, match=r"changed\.mcap: .*SA101"):
        from_record.read(open_files([changed.write(tmp_path / "changed.mcap", 0, 5)]))


def test_detectors_are_occupied_while_a_vehicle_is_on_them(recorded_city, recorded):
    of_detector = {}
    for step, _, _ in recorded_city.steps:
        changes = step.detectors
        assert all(step.number == 0 or time_s <= step.at_s for time_s in changes.time_s)
        for detector, time_s, is_entry in zip(changes.detector, changes.time_s, changes.is_entry, strict=True):
            of_detector.setdefault(recorded_city.start.detectors[detector].id, []).append((time_s, is_entry))
    assert len(of_detector) > 150 and recorded.detectors == recorded_city.start.detectors
    found = {}
    for detection in recorded.period.detections:
        found.setdefault(detection.detector, []).append((detection.time_s, detection.is_on))
    assert found.keys() == of_detector.keys()
    for detector, changes in of_detector.items():
        assert [is_on for _, is_on in found[detector]] == [k % 2 == 0 for k in range(len(found[detector]))]
        if not detector.startswith("presence:"):
            # a point has one vehicle at a time
            assert len(found[detector]) == len(changes)
    assert from_record.NO_DETECTORS not in recorded.notes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8), st.integers(1, 7))
def test_detector_is_free_when_the_last_vehicle_has_left(stays, step_ms):
    ends = [(entry, entry + stay) for entry, stay in stays]
    changes = sorted([(ms, False) for ms, _ in ends] + [(ms, True) for _, ms in ends])
    occupancy = DetectionCollector([Detector("d", "A", "Presence", "a_0")])
    for begin_ms in range(0, 100, step_ms):
        own = [(ms / 1000, not is_exit) for ms, is_exit in changes if begin_ms <= ms < begin_ms + step_ms]
        times, entries = zip(*own, strict=True) if own else ((), ())
        occupancy.add(record.DetectorChanges(detector=[0] * len(own), time_s=times, is_entry=entries))
    found = [(round(1000 * each.time_s), each.is_on) for each in occupancy.detections()]
    assert found == sorted(found, key=lambda change: change[0])
    pairs = list(zip([ms for ms, is_on in found if is_on], [ms for ms, is_on in found if not is_on], strict=True))
    assert all(later > earlier for (_, earlier), (later, _) in pairwise(pairs)), "intervals that touch are one"
    covered = {ms for begin, end in pairs for ms in range(begin, end)}
    assert covered == {ms for begin, end in ends for ms in range(begin, end)}
    assert len({end for _, end in pairs}) == len(pairs)


def test_hole_frees_detectors_until_a_vehicle_enters():
    occupancy = DetectionCollector([Detector("d", "A", "Presence", "a_0")])
    occupancy.add(record.DetectorChanges(detector=[0], time_s=[1.0], is_entry=[True]))
    occupancy.end_all(5.0)
    occupancy.add(record.DetectorChanges(detector=[0, 0, 7], time_s=[9.0, 10.0, 11.0], is_entry=[False, True, True]))
    assert [(each.time_s, each.is_on) for each in occupancy.detections()] == [(1.0, True), (5.0, False), (10.0, True)]


def test_detectors_are_named_as_missing(recorded_city, tmp_path):
    without = RecordedCity(replace(recorded_city.start, detectors=()), recorded_city.steps)
    found = from_record.read(open_files([without.write(tmp_path / "without.mcap", 0, 5)]))
    assert found.period.detections == found.detectors == () and from_record.NO_DETECTORS in found.notes
