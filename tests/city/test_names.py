"""Names of TLs, and flags that select them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city import names
from city.errors import InputError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *((written, "SA101") for written in ("SA101", "SA 101", "SA_101", " SA_ 101 ")),
        *((written, "GS_cluster_1_2") for written in ("GS_cluster_1_2", "GS cluster 1 2", " GS_cluster 1_2")),
    ],
)
def test_spaces_and_underscores_do_not_count_and_other_names_keep_theirs(written, name):
    assert names.canonical(written) == name
    for spelling in (written, written.replace("_", "").replace(" ", "")):
        assert names.Index(["GSX", name]).find(spelling) == name
        assert names.select([spelling], [name], "--tl") == [name]


def test_thousands_of_names_are_found_in_linear_time():
    tls = [f"T{k}" for k in range(20_000)]
    begin_s = time.monotonic()
    index = names.Index(tls)
    assert all(index.find(f"T {k}") == tl and names.select([tl], index, "--tl") for k, tl in enumerate(tls))
    assert time.monotonic() - begin_s < 3


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
