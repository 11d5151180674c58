"""The embedded server on a Unix socket, as a whole."""

import threading

import numpy as np
import pytest

from city.errors import InputError
from controller import config as controller_config
from serving import shell
from serving.client import Client
from serving.embedded import flags
from serving.embedded.config import ServerConfig
from serving.embedded.grpc_method import Method
from serving.errors import ServingError
from tests.conftest import GRID
from tests.serving.conftest import running
from tests.serving.unix_ends import Ours

X = np.zeros(17, np.float32)


def test_clients_on_a_unix_socket_see_errors_as_on_the_port(grid_server, grid_unix):
    asked = [
        lambda client: client.predict("nobody", X),
        lambda client: client.predict("SA103", X, version=7),
        lambda client: client.predict("SA103", np.zeros(3, np.float32)),
        lambda client: client.run("SA103", {"observation": X}, signature="other"),
    ]
    with Client(grid_server) as tcp, Client(grid_unix) as unix:
        for ask in asked:
            told = []
            for client in (tcp, unix):
                with pytest.raises(ServingError) as caught:
                    ask(client)
                told.append((type(caught.value), str(caught.value)))
            assert told[0] == told[1]


def test_a_client_on_a_unix_socket_predicts_without_grpc(grid_unix):
    with Client(grid_unix) as client:
        client._predict = None
        assert client.predict("SA103", X)["action"].shape == (1, 1)
        assert client.predict_many({"SA103": X})["SA103"].version == 1


def test_a_model_that_is_quick_is_answered_by_the_thread_that_reads(grid_models, tmp_path, monkeypatch):
    with running(ServerConfig(grid_models, port=0, poll_s=0, socket_path=tmp_path / "s")) as server:
        names = []
        answer = Method.answer

        def seen(self, data, left_s):
            names.append(threading.current_thread().name.partition("_")[0])
            return answer(self, data, left_s)

        monkeypatch.setattr(Method, "answer", seen)
        with Client(f"unix:{tmp_path / 's'}") as client:
            while "unix" not in names:
                client.predict("SA103", X)
            assert names[0] == "rpc", "what has not been asked before may take its time"
            # and one that has become slow is not
            monkeypatch.setattr("serving.embedded.pace.QUICK_S", 0.0)
            client.predict("SA103", X)
            assert names[-1] == "rpc"
        assert server.metrics.registry.get_sample_value(
            ":tensorflow:serving:request_count",
            {"model_name": "SA103", "version": "1", "API": "Predict", "entrypoint": "GRPC", "status": "OK"},
        ) == len(names)


def test_a_socket_that_is_in_use_is_told_in_one_line(grid_models, tmp_path, echo):
    other = Ours(tmp_path / "s", echo)
    try:
        with (
            pytest.raises(
                InputError, match=r"cannot listen on .*/s: another server listens there; choose another --grpc_socket_path"
            ),
            running(ServerConfig(grid_models, port=0, poll_s=0, socket_path=tmp_path / "s")),
        ):
            pass
    finally:
        other.stop()


def test_one_line_of_city_toml_lets_server_controller_and_shell_share_a_socket(grid_models, tmp_path, capsys):
    text = (GRID / "city.toml").read_text().replace("grid.sumocfg", str(GRID / "grid.sumocfg"))
    assert "[serving]\n" in text
    city = tmp_path / "city.toml"
    (tmp_path / "models").symlink_to(grid_models)
    city.write_text(text.replace("[serving]\n", '[serving]\ngrpc_socket_path = "s"\n'))
    config = flags.parse(["--city", str(city), "--port", "0"])
    assert config.socket_path == tmp_path / "s"
    assert controller_config.parse(["--city", str(city)]).server == f"unix:{tmp_path / 's'}"
    assert controller_config.parse(["--city", str(city), "--server", "10.0.0.1:8500"]).server == "10.0.0.1:8500"
    with running(config):
        assert shell.main(["predict", "SA103", "--observation", "zeros", "--city", str(city)]) == 0
        assert shell.main(["status", "--city", str(city)]) == 0
    assert "AVAILABLE" in capsys.readouterr().out
