"""Names of TLs, and flags that select them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import names
from city.errors import InputError


@pytest.mark.parametrize("written", ["SA101", "SA 101", "SA_101", " SA_ 101 "])
def test_tl_names_ignore_spaces_and_underscores(written):
    assert names.canonical(written) == "SA101"


@given(st.text())
def test_canonical_name_is_safe_as_a_folder(text):
    try:
        name = names.canonical(text)
    except InputError:
        return
    assert "/" not in name and not name.startswith(".")
    assert names.canonical(name) == name


def test_tl_flags_accept_repetition_commas_and_all():
    known = ["SA101", "SA104", "SA107"]
    assert names.select(["SA104,SA101", "SA104"], known, "--tl") == ["SA104", "SA101"]
    assert names.select(["all"], known, "--tl") == known


def test_unknown_tl_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"--tl: SA9 is not one of the TLs SA101, SA104"):
        names.select(["SA9"], ["SA101", "SA104"], "--tl")
    with pytest.raises(InputError, match="selects no TL"):
        names.select([","], ["SA101"], "--tl")
