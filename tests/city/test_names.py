"""Names of TLs and the flags that choose among them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import names
from city.errors import InputError


@pytest.mark.parametrize("written", ["SA101", "SA 101", "SA_101", " SA_ 101 "])
def test_spaces_and_underscores_do_not_make_another_tl(written):
    assert names.canonical(written) == "SA101"


@given(st.text())
def test_a_name_is_refused_or_safe_as_a_folder(text):
    try:
        name = names.canonical(text)
    except InputError:
        return
    assert "/" not in name and not name.startswith(".")
    assert names.canonical(name) == name


def test_flags_may_repeat_list_and_say_all():
    known = ["SA101", "SA104", "SA107"]
    assert names.select(["SA104,SA101", "SA104"], known, "--tl") == ["SA104", "SA101"]
    assert names.select(["all"], known, "--tl") == known


def test_an_unknown_tl_is_named_beside_those_there_are():
    with pytest.raises(InputError, match=r"--tl: there is no TL SA9 .* there are SA101, SA104"):
        names.select(["SA9"], ["SA101", "SA104"], "--tl")
    with pytest.raises(InputError, match="names no TL"):
        names.select([","], ["SA101"], "--tl")
