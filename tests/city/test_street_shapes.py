"""Shapes of a network for the map."""

import gzip

import pytest

from city import street_shapes
from city.errors import InputError
from tests.conftest import GRID

NET = """<net>
  <edge id=":J_0" function="internal"><lane id=":J_0_0" index="0" speed="10" length="5" shape="0,0 1,1"/></edge>
  <edge id=":J_c0" function="crossing"><lane id=":J_c0_0" index="0" speed="1" length="5" width="4.00" shape="0,1 0,6"/></edge>
  <edge id="a" from="I" to="J"><lane id="a_0" index="0" speed="10" length="50" shape="-50.5,2,7 0,2,7"/></edge>
  <junction id="J" type="traffic_light" x="1" y="2" shape="0,0 3,0 3,4"/>
  <junction id=":J_1_0" type="internal" x="0" y="0"/>
  <connection from="a" to="b" fromLane="0" toLane="0" tl="X" linkIndex="0"/>
</net>"""


def test_lanes_crossings_junctions_and_signals_of_a_network(tmp_path):
    path = tmp_path / "x.net.xml.gz"
    path.write_bytes(gzip.compress(NET.encode()))
    shapes = street_shapes.read(path)
    assert [(lane.id, lane.width_m, lane.points, lane.is_crossing) for lane in shapes.lanes] == [
        (":J_c0_0", 4.0, ((0, 1), (0, 6)), True),
        ("a_0", street_shapes.LANE_WIDTH_M, ((-50.5, 2), (0, 2)), False),
    ]
    assert [(junction.id, junction.x, junction.y) for junction in shapes.junctions] == [("J", 1, 2)]
    assert shapes.junctions_of_signal == {"X": ("J",)}
    assert shapes.bounds == (-50.5, 0, 3, 6)


def test_the_sample_city_has_a_shape_for_every_controlled_lane(grid_street):
    shapes = street_shapes.read(GRID / "grid.net.xml")
    points = {lane.id: lane.points for lane in shapes.lanes}
    assert all(len(points[lane]) >= 2 for signal in grid_street.signals.values() for lane in signal.lanes)
    assert set(shapes.junctions_of_signal) == set(grid_street.signals)


@pytest.mark.parametrize("shape", ["nonsense", "1,x", "1"])
def test_a_malformed_shape_is_an_input_error(tmp_path, shape):
    (tmp_path / "x.net.xml").write_text(NET.replace("-50.5,2,7 0,2,7", shape))
    with pytest.raises(InputError, match="malformed"):
        street_shapes.read(tmp_path / "x.net.xml")
