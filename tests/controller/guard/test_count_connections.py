"""Connections to a port, counted in the tables of real sockets."""

import socket

import pytest

from controller.guard.__main__ import CONNECTION_TABLES, count_connections


@pytest.mark.skipif(not CONNECTION_TABLES[0].exists(), reason="no Linux: there is no table of TCP connections")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_established_connections_to_a_port_are_counted(address):
    try:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with listener:
        port = listener.getsockname()[1]
        assert count_connections(port) == 0, "a listener is not a connection"
        with socket.create_connection((address, port)) as first, listener.accept()[0]:
            with socket.create_connection((address, port)), listener.accept()[0]:
                assert count_connections(port) == 2
            assert count_connections(port) == 1 and count_connections(first.getsockname()[1]) == 1


def test_machine_without_tables_gives_no_count(tmp_path):
    assert count_connections(80, (tmp_path / "tcp",)) is None
