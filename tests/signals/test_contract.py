"""TLs that a policy can control, and settings that name what a TL does not have."""

from dataclasses import replace

import pytest

from city.errors import InputError
from signals.contract import controllable


def with_max_red(city, **max_red_s):
    return replace(city, tls={"SA108": replace(city.tls["SA108"], max_red_s=max_red_s)})


@pytest.mark.parametrize("key", ["C0C1:through", "U-turn", "A0A1.70.00", "crossing"])
def test_max_red_of_what_is_no_movement_of_the_tl_is_refused_by_name(key, grid_city, grid_street):
    with pytest.raises(InputError, match=rf"\[tl.SA108\] max_red_s: {key} is not a movement .*; write one of .* left"):
        controllable(with_max_red(grid_city, **{key: 90.0}), ["SA108"], grid_street)


def test_max_red_may_name_a_movement_of_one_of_a_tls_signals(grid_city, grid_street):
    city = with_max_red(grid_city, **{"C0C1.70.00": 90.0, "C1C2.70.00:left": 90.0, "right": 90.0})
    assert controllable(city, ["SA108"], grid_street) == (["SA108"], {})
