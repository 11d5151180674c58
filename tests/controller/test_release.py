"""What is said where signals cannot be released any more."""

from types import SimpleNamespace

import pytest

from controller.release import tell_gone
from controller.sumo.link import SumoConnectionLost


@pytest.mark.parametrize(
    ("guarded", "told"),
    [
        (True, "the connection to SUMO is gone at second 7 of the simulation: why; SUMO has ended, or the guard hands"),
        (False, "SUMO is gone at second 7 of the simulation: why; its signals cannot be released any more"),
    ],
)
def test_behind_a_guard_the_end_of_the_connection_need_not_be_sumos(guarded, told, caplog):
    tell_gone(SimpleNamespace(now=7.0), SimpleNamespace(guarded=guarded), SumoConnectionLost("why"))
    assert told in caplog.text
