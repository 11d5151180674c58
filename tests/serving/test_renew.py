"""A client begins again with a new connection, and loses no call by it."""

import numpy as np
import pytest

from serving.client import Client
from serving.errors import DeadlineExceeded
from tests.end_to_end.faults import Fault, Proxy

X = np.zeros(17, np.float32)


def test_a_connection_that_leads_nowhere_is_left_behind(grid_server):
    proxy = Proxy(int(grid_server.rpartition(":")[2]))
    try:
        with Client(f"127.0.0.1:{proxy.port}", retries=0) as client:
            client.predict("SA103", X)
            proxy.fault = Fault.HALF_OPEN
            proxy.fault = Fault.NONE  # from now on only new connections lead to the server
            with pytest.raises(DeadlineExceeded):
                client.predict("SA103", X, timeout_s=0.3)
            client.renew()
            assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)
    finally:
        proxy.close()


def test_renewing_again_and_again_goes_on_answering(grid_server):
    with Client(grid_server) as client:
        for _ in range(20):
            client.renew()
            assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)
