"""The duration of a change of greens with the street's floors, compared with training."""

import tomllib
from dataclasses import replace

import pytest

from city import config, network
from protos import policy_pb2 as pb
from signals import contract
from signals.change_times import (
    CAUSE_AND_REMEDY,
    ChangeTimes,
    change_times,
    describe_arms,
    describe_longer,
    describe_short_reds,
    signal_safeties,
    times_to_train_with,
    with_street_changes,
)
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety
from tests.networks import netgenerate


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    net = tmp_path_factory.mktemp("fast") / "fast.net.xml"
    options = ("--grid", "--grid.number", "1", "--grid.attach-length", "200", "--default.speed", "27.78")
    return network.read(
        netgenerate(net, *options, "--sidewalks.guess", "--sidewalks.guess.max-speed", "30", "--crossings.guess")
    ), config.City(net)


def times_of(fast, safety, **settings):
    street, city = fast
    (signal,) = (s for s in street.signals.values() if len(s.plan.greens) > 1)
    built = contract.build(city, config.TL((signal.id,), "sumo-rl", "SA101", **settings), street)
    return built, change_times(built, signal_safeties(built, street, safety))


def test_each_signal_of_a_tl_has_the_max_red_of_its_own_movements(grid_city, grid_street):
    safety = replace(grid_city.safety, max_red_s_of_signal={"C2": {"through": 40.0}})
    first, second = signal_safeties(contract.build(grid_city, grid_city.tls["SA108"], grid_street), grid_street, safety)
    assert not first.times.movement_max_red_s and min(second.times.movement_max_red_s) == 40.0


def test_changes_take_the_yellow_of_the_approach_and_the_walking_time(fast):
    built, times = times_of(fast, config.Safety(walking_speed_mps=0.5))
    (signal,) = (fast[0].signals[s] for s in built.signal_ids)
    assert (times.training_s, times.yellow_s) == (2.0, 6.0) and 6.0 <= times.vehicles_s < 8.0
    assert times.total_s == max(signal.crossing_m) / 0.5 > 8.0


@pytest.mark.parametrize(
    ("safety", "settings", "factor", "min_green_s"),
    [
        pytest.param({}, {}, 3.0, 15.0, id="vehicles lose much more time to changes"),
        pytest.param({"max_green_s": 12}, {}, 3.0, 12.0, id="at most max green"),
        pytest.param({}, {"yellow_s": 6.0}, 1.0, 5.0, id="trained with the street's yellow"),
    ],
)
def test_greens_last_longer_where_changes_do(fast, safety, settings, factor, min_green_s):
    built, times = times_of(fast, config.Safety(all_red_s=0, **safety), **settings)
    assert times.min_green_factor == factor and built.timing.min_green_s == 5.0
    assert with_street_changes(built, times).timing.min_green_s == min_green_s


def test_with_floors_of_the_dialect_nothing_takes_longer(fast):
    built, times = times_of(fast, config.Safety(floors="dialect"))
    assert times.total_s == times.training_s == 2.0 and with_street_changes(built, times) is built
    assert describe_longer([times]) == []


def test_slow_changes_are_short_lines_with_cause_and_remedy():
    many = [ChangeTimes(f"SA{k}", 2.0, 3.9, 3.0 + k, 3.0) for k in range(1, 9)]
    assert describe_longer([None, many[0]], slow_only=True) == []
    what, remedy = describe_longer([None, *many], slow_only=True)
    assert what == "changing greens takes much longer than in training: SA8 (11 s, not 2 s), SA7, SA6 and 4 more"
    assert "[safety] in city.toml" in remedy and "greenserve train, or greenserve check" in remedy
    long_ids = [ChangeTimes(f"J{k:019}", 2.25, 100.5 + k, 100.5 + k, 6.0) for k in range(1000)]
    lines = describe_longer(long_ids, slow_only=True)
    assert "greens last at least 4.9e+02 times the min green of its training" in lines[1]
    assert all(len(line) < 160 for line in (what, remedy, *lines))


def test_changes_that_take_somewhat_longer_are_in_check_alone():
    same, longer, slow = (ChangeTimes(f"SA{k}", 3.0, s, s, 3.0) for k, s in enumerate((3.0, 4.5, 9.0)))
    assert describe_longer([None, same, longer], slow_only=True) == describe_longer([None, same]) == []
    assert describe_longer([None, same, longer, slow]) == [
        "changing greens takes much longer than in training: SA2 (9 s, not 3 s)",
        "SA2: greens last at least 3 times the min green of its training",
        "changing greens takes longer than in training: SA1 (4.5 s, not 3 s)",
        CAUSE_AND_REMEDY,
    ]


def test_times_to_train_with_are_one_table_for_all_tls():
    same = ChangeTimes("SA1", 3.0, 3.0, 3.0, 3.0)
    assert times_to_train_with([None, same]) == []
    first, *table = times_to_train_with(
        [same, ChangeTimes("SA2", 2.0, 3.9, 9.0, 3.0), ChangeTimes("Sü\x7fd", 2.0, 7.5, 7.5, 4.0)]
    )
    assert "yellow_time=8" in first
    assert tomllib.loads("\n".join(table)) == {
        "training": {"times": {"SA2": {"yellow_s": 3, "all_red_s": 1}, "Sü\x7fd": {"yellow_s": 4, "all_red_s": 4}}}
    }


def test_no_advice_if_the_contract_has_the_streets_times(fast):
    safety = config.Safety(walking_speed_mps=0.5)
    _, before = times_of(fast, safety)
    keys = {"yellow_s": float(before.street_yellow_s), "all_red_s": float(before.street_all_red_s)}
    _, after = times_of(fast, safety, **keys)
    assert after.total_s > after.training_s, "pedestrians need longer, which no trainer can express"
    assert not after.is_longer and times_to_train_with([after]) == describe_longer([after]) == []


def test_training_with_the_streets_floors_is_compared_by_its_record(fast):
    built, _ = times_of(fast, config.Safety())
    built.origin.change_s = change_times(built, signal_safeties(built, fast[0], config.Safety())).total_s
    same, longer = (
        change_times(built, signal_safeties(built, fast[0], config.Safety(walking_speed_mps=mps))) for mps in (1.2, 0.3)
    )
    assert not same.is_longer and longer.is_slow and longer.training_s == same.total_s > 2.0
    assert same.min_green_factor == longer.min_green_factor > 1, "as in the training itself"
    assert times_to_train_with([same, longer]) == [], "greenserve train has the street's times in any case"


PROGRAM = (("GgGr", 20), ("yyyr", 3), ("rrrr", 1), ("rrrG", 20), ("rrry", 3), ("rrrr", 1))


def pairs(crossing, times, path_m=(23.9,) * 4, names=("SA101",), **changes):
    """(contract, safety rules) of TLs at crossings whose programs have an all-red of 1 s; 23.9 m at 10 m/s take 2 s."""
    phases = tuple(network.ProgramPhase(state, s, s, s) for state, s in PROGRAM)
    program = replace(crossing.programs[0], phases=phases)
    signal = replace(
        crossing, programs=(program,), path_m=path_m, slowest_mps=(10.0,) * 4, approach_mps=(10.0,) * 4, **changes
    )
    return [(pb.PolicyContract(tl=name), [SignalSafety(signal, times, ["GgGr", "rrrG"])]) for name in names]


OWN = SafetyTimes(3, 5, by_program=True)


def test_programs_with_less_red_than_vehicles_need_are_named_in_one_line(crossing):
    (line,) = describe_short_reds(pairs(crossing, OWN, names=[f"SA{k}" for k in range(7)]))
    assert line == (
        "programs have less red before a foe's green than vehicles need to clear the junction: "
        + ", ".join(f"SA{k} (1 s, not 2 s)" for k in range(5))
        + ' and 2 more; all_red_s = "computed" under [safety] in city.toml adds it'
    )
    worse = pairs(crossing, OWN, path_m=(23.9, 23.9, 38.9, 23.9), names=["SA9"])
    (line,) = describe_short_reds([*pairs(crossing, OWN), *worse])
    assert "junction: SA9 (1 s, not 3.5 s), SA101 (1 s, not 2 s);" in line


@pytest.mark.parametrize(
    ("times", "path_m"),
    [
        (OWN, (13.9,) * 4),
        (OWN, (14.3,) * 4),
        # [safety] sets it, or the contract has it
        (SafetyTimes(3, 5, red_by_path=True), (23.9,) * 4),
        (SafetyTimes(3, 5), (23.9,) * 4),
        (replace(OWN, all_red_s=2), (23.9,) * 4),
    ],
)
def test_programs_with_enough_red_are_not_named(crossing, times, path_m):
    assert describe_short_reds(pairs(crossing, times, path_m)) == []


OTHERS = "fixed and actuated have those of the programs, and the other arms others at "


@pytest.mark.parametrize(
    ("times", "text"),
    [
        pytest.param(OWN, "every arm has those of each signal's own program", id="default"),
        pytest.param(SafetyTimes(3, 5, 1), "every arm has those of each signal's own program", id="the same number"),
        pytest.param(SafetyTimes(3, 5), OTHERS + "SA101 (red 0 s, not 1 s)", id="no all-red"),
        pytest.param(SafetyTimes(3, 5, red_by_path=True), OTHERS + "SA101 (red 2 s, not 1 s)", id="computed"),
        pytest.param(replace(OWN, yellow_s=4), OTHERS + "SA101 (yellow 4 s, not 3 s)", id="a yellow of the contract"),
        pytest.param(
            replace(OWN, yellow_s=4, all_red_s=3), OTHERS + "SA101 (yellow 4 s, not 3 s, red 3 s, not 1 s)", id="both"
        ),
    ],
)
def test_arms_with_other_change_times_than_the_programs_are_named(crossing, times, text):
    assert describe_arms(pairs(crossing, times)) == text


def test_arms_are_counted_and_crossings_that_are_walked_clear_are_no_difference(crossing):
    many = pairs(crossing, SafetyTimes(3, 5), names=[f"SA{k}" for k in range(7)])
    assert describe_arms(many).endswith("SA4 (red 0 s, not 1 s) and 2 more")
    walked = pairs(crossing, replace(OWN, walking_speed_mps=1.0), crossing_m=(0.0, 0.0, 0.0, 9.0))
    walked[0][1][0].is_crossing[3] = True
    assert describe_arms(walked) == "every arm has those of each signal's own program"
