"""The duration of a change of greens with the street's floors, compared with training."""

import tomllib

import pytest

from city import config, network
from signals import contract
from signals.change_times import (
    CAUSE_AND_REMEDY,
    ChangeTimes,
    change_times,
    describe_longer,
    signal_safeties,
    times_to_train_with,
    with_street_changes,
)
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
