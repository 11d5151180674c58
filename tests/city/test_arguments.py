"""Flags: what they accept, and the one line about what they do not."""

import pytest

from city.arguments import Parser, bounded
from city.errors import InputError


def parsed(*argv):
    parser = Parser(prog="x")
    parser.add_argument("--seeds", type=bounded(int, 1, 9))
    parser.add_argument("--seconds", type=bounded(float, 0.5, 1e9))
    return vars(parser.parse_args(argv))


def test_number_of_a_flag_may_be_either_of_its_bounds():
    assert parsed("--seeds", "1", "--seconds", "1e9") == {"seeds": 1, "seconds": 1e9}
    assert parsed("--seeds", "9", "--seconds", "0.5") == {"seeds": 9, "seconds": 0.5}


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--seeds", "0", "0 must lie between 1 and 9"),
        ("--seeds", "10", "10 must lie between 1 and 9"),
        ("--seeds", "1.5", "invalid int value: '1.5'"),
        ("--seconds", "0.49", "0.49 must lie between 0.5 and 1000000000"),
        ("--seconds", "inf", "inf must lie between"),
        ("--seconds", "nan", "nan must lie between"),
    ],
)
def test_number_out_of_bounds_is_refused_with_its_flag(flag, text, message):
    with pytest.raises(InputError, match=f"argument {flag}: {message}"):
        parsed(flag, text)
