"""The time of a change of greens, against the safety rules second by second."""

import math

import pytest

from city import network
from city.config import TL, City, Safety
from city.errors import InputError
from signals import contract
from signals.policy_signals import greens_of
from signals.safety.safety_times import SafetyTimes, times_for
from signals.safety.signal_safety import SignalSafety
from tests.city.scenarios import SCENARIOS, street
from tests.networks import netgenerate

BEGIN_S = 100.0


def seconds_until_shown(safety, green, following):
    """Seconds after which `following` is shown if it is requested every second from a green that may end."""
    safety.start_from(green, BEGIN_S - 60)
    safety.state.bound_exceeded_at_s = math.inf
    for second in range(120):
        permitted, _ = safety.permit(following, BEGIN_S + second)
        if permitted.state == following:
            return second
    raise AssertionError(f"{following} is not shown after {green}")


def changes(ours, safety):
    """(signal, green, following, seconds until it is shown, seconds by the contract) of all pairs of greens."""
    for signal in ours.signals.values():
        try:
            built = contract.build(City(ours.net_file, safety=safety), TL((signal.id,), "street", "T"), ours)
        except InputError:
            continue  # a signal without a green
        greens, change_s = greens_of(built.signals[0]), iter(built.signals[0].change_s)
        rules = SignalSafety(signal, times_for(built, safety, runs_plan=False), greens)
        for green in greens:
            for following in greens:
                yield signal.id, green, following, seconds_until_shown(rules, green, following), next(change_s)


@pytest.mark.parametrize(
    "safety",
    [Safety(), Safety(floors="dialect"), Safety(all_red_s=2), Safety(all_red_s="computed")],
    ids=["street", "dialect", "all-red", "computed"],
)
@pytest.mark.parametrize("name", ["grid", *SCENARIOS])
def test_a_green_is_shown_after_its_change_time(name, safety, request):
    found = list(changes(street(name, request), safety))
    assert [change for change in found if change[3] != math.ceil(change[4])] == []
    assert any(change[3] for change in found)


@pytest.fixture(scope="module")
def with_crossings(tmp_path_factory):
    net = tmp_path_factory.mktemp("crossings") / "crossings.net.xml"
    options = ("--grid", "--grid.number", "2", "--grid.attach-length", "150", "--default.lanenumber", "2")
    return network.read(netgenerate(net, *options, "--sidewalks.guess", "--crossings.guess"))


@pytest.mark.parametrize("walking_speed_mps", [0.5, 1.2])
def test_pedestrians_delay_a_change_by_their_time_and_at_most_a_second(with_crossings, walking_speed_mps):
    found = list(changes(with_crossings, Safety(walking_speed_mps=walking_speed_mps)))
    assert any(change[4] > 8 for change in found)
    # vehicles, who keep their green while pedestrians walk, lose it at a whole second
    assert [change for change in found if not 0 <= change[3] - math.ceil(change[4]) <= 1] == []


@pytest.mark.parametrize(
    ("green", "following", "change_s"),
    [
        # link 1 yields to 2; link 3 is a foe of all
        pytest.param("rrGr", "rgrr", 3, id="a link that yields to the ending one does not await its clearance"),
        pytest.param("rrGr", "rGrr", 5, id="a protected one does"),
        pytest.param("rrGr", "rrrG", 5, id="a foe does"),
        pytest.param("rrGr", "rrGr", 0, id="no change"),
        pytest.param("GgGr", "rGrr", 5, id="a permitted turn that becomes protected awaits its foes"),
        pytest.param("Grrr", "rrGr", 3, id="no foe of it gains green"),
        pytest.param("rgGr", "rrGr", 3, id="the foe keeps its green"),
        pytest.param("Grrr", "rrrG", 5, id="its foe gains green"),
    ],
)
def test_change_awaits_the_clearance_for_foes_that_gain_their_green(crossing, green, following, change_s):
    safety = SignalSafety(crossing, SafetyTimes(3, 5, all_red_s=2), [green, following])
    assert safety.change_between_s(green, following) == change_s == seconds_until_shown(safety, green, following)


def test_a_crossing_has_no_yellow(crossroads):
    safety = SignalSafety(crossroads, SafetyTimes(3, 5))
    k = safety.is_crossing.index(True)
    red = "r" * len(crossroads.links)
    assert safety.change_between_s(f"{red[:k]}G{red[k + 1 :]}", red) == 0
