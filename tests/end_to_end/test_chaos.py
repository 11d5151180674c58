"""A simulated day with faults at random moments: no alarm, no frozen signal, flat memory, every TL back in time."""

import pytest

from tests.end_to_end import chaos


@pytest.mark.alone
@pytest.mark.slow
def test_day_of_faults_passes_without_alarm_and_every_tl_is_back_in_time(grid_models, tmp_path):
    report = chaos.main(["--models", str(grid_models), "--folder", str(tmp_path)])
    assert report.alarms == []
    late = [(event, recovery_s) for event, recovery_s in report.recoveries_s if recovery_s > chaos.MAX_RECOVERY_S]
    assert late == [] and len(report.recoveries_s) >= 2 * len(chaos.FAULTS)
    assert report.longest_shown_s <= chaos.MAX_SHOWN_S, report.longest_shown_by
    for name, memory_mb in report.memory_mb.items():
        assert len(memory_mb) == 4 and max(memory_mb) <= 1.05 * memory_mb[0] + 5, (name, memory_mb)


def test_schedule_depends_on_the_seed_alone_and_has_every_fault():
    events = chaos.schedule(5, 86_400, 2 * len(chaos.FAULTS))
    assert (
        events == chaos.schedule(5, 86_400, 2 * len(chaos.FAULTS)) != chaos.schedule(6, 86_400, 2 * len(chaos.FAULTS))
    )
    assert {event.fault for event in events} == set(chaos.FAULTS)
    moments = [event.at_s for event in events]
    assert moments == sorted(moments) and moments[0] >= 300 and moments[-1] <= 86_400 - 300
