"""A frame is decoded to what it was made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.page_frame import decode
from controller.operator.page import frames
from controller.operator.page.frames import Vehicles

COORDINATES = st.floats(-1e5, 1e5, width=32)
SIZES = st.floats(1, 1e5, width=32)
STATES = st.dictionaries(st.integers(0, 65535), st.text("rygGsuoO", max_size=255))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)
PANELS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)


@st.composite
def vehicles_in_view(draw):
    x0, y0, width, height = draw(COORDINATES), draw(COORDINATES), draw(SIZES), draw(SIZES)
    parts = st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(0, 360), st.floats(0, 80))
    rows = np.array(draw(st.lists(parts, max_size=40)), np.float64).reshape(-1, 4)
    columns = (x0 + width * rows[:, 0], y0 + height * rows[:, 1], rows[:, 2], rows[:, 3])
    return Vehicles(*(column.astype(np.float32) for column in columns)), (x0, y0, x0 + width, y0 + height)


@given(vehicles_in_view())
def test_vehicles_keep_their_place_within_a_65535th_of_the_view(case):
    vehicles, view = case
    read = decode(frames.encode(1, 2.0, False, [frames.vehicles_section(vehicles, view)])).vehicles
    size = max(view[2] - view[0], view[3] - view[1])
    rounding = size / 65535 + 4e-7 * max(map(abs, view))  # of 16 bits, and of float32
    assert len(read.x) == len(vehicles.x)
    assert np.all(np.abs(read.x - vehicles.x) <= rounding) and np.all(np.abs(read.y - vehicles.y) <= rounding)
    turn = (read.angle_deg - vehicles.angle_deg + 180) % 360 - 180
    assert np.all(np.abs(turn) <= 360 / 512 + 1e-3)
    assert np.all(np.abs(read.speed_mps - vehicles.speed_mps.clip(0, 63.75)) <= 0.126)


def test_vehicles_out_of_view_are_left_out():
    invalid = -(2.0**30)  # SUMO's position of a vehicle that is on no lane
    vehicles = Vehicles(
        *(np.array(values, np.float32) for values in ([5, 15, invalid, np.nan], [5, 5, invalid, 5], [0] * 4, [0] * 4))
    )
    assert (
        len(decode(frames.encode(0, 0.0, False, [frames.vehicles_section(vehicles, (0, 0, 10, 10))])).vehicles.x) == 1
    )


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e9), st.booleans(), STATES, st.binary(max_size=50), PANELS)
def test_a_frame_is_decoded_to_what_it_was_made_of(sequence, at_s, has_all_states, states, modes, panel):
    rows = np.arange(7)
    queue = np.array([0, 1, 0, 255, 300, 0, 2.0])
    sections = [frames.states_section(states), frames.modes_section(modes), frames.queues_section(rows, queue)]
    sections.append(frames.panel_section({name: frames.as_json(part) for name, part in panel.items()}))
    sections.append(frames._section(200, b"of a later version"))
    frame = decode(frames.encode(sequence, at_s, has_all_states, sections))
    assert (frame.sequence, frame.at_s, frame.has_all_states) == (sequence, at_s, has_all_states)
    assert frame.states == states and frame.modes == modes and frame.panel == panel and frame.vehicles is None
    assert frame.queues == {1: 1, 3: 255, 4: 255, 6: 2}
