"""Series of which only the newest items are in memory."""

import errno
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from city.errors import InputError
from records.atspm import spool
from records.atspm.analysis_period import ShownState
from records.atspm.spool import CHUNK_ITEMS, Series, Spool

RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3 * CHUNK_ITEMS), st.integers(0, CHUNK_ITEMS)), max_size=8)
"""(series, items that are added to it, the newest of them that are removed)"""


@given(RUNS)
def test_series_are_lists_wherever_their_items_are(runs):
    with Spool() as file:
        series, lists = [Series(file), Series(file), Series()], [[], [], []]
        for number, (which, added, removed) in enumerate(runs):
            for k in range(added):
                series[which].append((number, k))
                lists[which].append((number, k))
                assert series[which].newest == (number, k)
            for _ in range(min(added, removed)):
                series[which].remove_newest()
                lists[which].pop()
        assert [list(each) for each in series] == lists


def test_only_the_newest_items_are_in_memory():
    with Spool() as file:
        series = Series(file)
        for k in range(1000):
            series.append(ShownState(float(k), "Gr"))
        assert len(series._tail) <= 2 * CHUNK_ITEMS and list(series)[700] == ShownState(700.0, "Gr")


def test_a_full_disk_is_one_line(monkeypatch):
    monkeypatch.setattr(spool.pickle, "dump", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with (
        Spool() as file,
        pytest.raises(InputError, match=r": No space left on device; make room there, or set TMPDIR$"),
    ):
        file.write([1])
