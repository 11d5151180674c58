"""The short way of Predict: the same bytes as the long way, and never a version that is not served."""

import gc
import weakref

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import predict_pb2 as wire
from serving.embedded import repeated_predict
from serving.embedded.config import ServerConfig
from serving.embedded.predict_impl import predict
from serving.embedded.repeated_predict import RepeatedPredict
from serving.embedded.status import StatusError
from serving.messages import prefix_of
from serving.tensors import to_proto
from tests.serving.conftest import running


@pytest.fixture
def manager(grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        yield server.manager


def request(model="SA103", size=17, seed=0, version=None):
    x = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return prefix_of(model, version, x.nbytes) + x.tobytes()


def long_way(manager, data):
    return predict(manager, wire.PredictRequest.FromString(data)).response


def counted(answer):
    calls = []
    way = answer._long_way

    def counting(data):
        calls.append(data)
        return way(data)

    answer._long_way = counting
    return calls


def test_repeated_requests_get_the_same_bytes_without_being_parsed(manager):
    answer = RepeatedPredict(manager)
    parsed = counted(answer)
    for seed in range(5):
        for model, size, version in (("SA103", 17, None), ("SA103", 17, 1), ("SA108", None, None)):
            data = request(model, size or size_of(manager, model), seed, version)
            found = answer(data)
            assert found.response == long_way(manager, data) and (found.model, found.version) == (model, 1)
    assert len(parsed) == 3


def size_of(manager, model):
    definition = manager.find(wire.ModelSpec(name=model))[1].definitions.signature_def["serving_default"]
    return definition.inputs["observation"].tensor_shape.dim[1].size


def test_what_is_no_constant_frame_goes_the_long_way_every_time(manager):
    answer = RepeatedPredict(manager)
    parsed = counted(answer)
    categorical = request("SA101", 21)
    typed = wire.PredictRequest(model_spec=wire.ModelSpec(name="SA103"))
    typed.inputs["observation"].dtype = 1
    for n in (1, 17):
        typed.inputs["observation"].tensor_shape.dim.add(size=n)
    typed.inputs["observation"].float_val.extend([0.5] * 17)
    contract = wire.PredictRequest(model_spec=wire.ModelSpec(name="SA103", signature_name="policy"))
    to_proto(np.zeros(1, np.int32), contract.inputs["rows"])
    for data in (categorical, typed.SerializeToString(), contract.SerializeToString()):
        for _ in range(2):
            assert answer(data).response == long_way(manager, data)
    assert len(parsed) == 6


def test_a_version_that_changes_is_noticed_at_once_and_let_go(grid_models, tmp_path):
    import shutil

    shutil.copytree(grid_models / "SA103", tmp_path / "SA103")
    with running(ServerConfig(tmp_path, port=0, poll_s=3600)) as server:
        answer = RepeatedPredict(server.manager)
        assert [answer(request(seed=seed)).version for seed in range(3)] == [1, 1, 1]
        old = weakref.ref(server.manager.find(wire.ModelSpec(name="SA103"))[1])
        shutil.copytree(tmp_path / "SA103" / "1", tmp_path / "SA103" / "2")
        server.look()
        gc.collect()
        assert old() is None, "a plan keeps no version that is not served"
        assert answer(request()).version == 2
        with pytest.raises(StatusError, match=r"Specific\(SA103, 1\)"):
            answer(request(version=1))
        server.look()
        assert answer(request()).version == 2
        shutil.rmtree(tmp_path / "SA103")
        server.look()
        server.look()
        with pytest.raises(StatusError, match=r"Latest\(SA103\)"):
            answer(request())


def test_a_newer_version_answers_though_the_older_one_is_still_served(grid_models, tmp_path):
    import shutil

    from serving.embedded.model_config import ModelConfig
    from serving.embedded.version_policy import VersionPolicy

    shutil.copytree(grid_models / "SA103", tmp_path / "SA103")
    every = {"SA103": ModelConfig("SA103", tmp_path / "SA103", VersionPolicy(latest=None))}
    with running(ServerConfig(models=every, port=0, poll_s=3600)) as server:
        answer = RepeatedPredict(server.manager)
        assert [answer(request(seed=seed)).version for seed in range(3)] == [1, 1, 1]
        shutil.copytree(tmp_path / "SA103" / "1", tmp_path / "SA103" / "2")
        server.look()
        assert answer(request()).version == 2 and answer(request(version=1)).version == 1


def with_filter(data, *outputs):
    return data + b"".join(b"\x1a" + bytes((len(key),)) + key.encode() for key in outputs)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two models whose requests differ by as many bytes as an output filter has: y and twice y."""
    import tensorflow as tf

    from tests.serving.saved_models import PREDICT, tf1, write

    def signatures():
        x = tf1.placeholder(tf.float32, [None, None], "x")
        given, found = {"observation": x}, {"action": 2 * x, "value": tf.reduce_sum(x, axis=1)}
        return {"serving_default": (PREDICT, given, found)}

    folder = tmp_path_factory.mktemp("pairs")
    for name in ("PAIR1", "PAIR2"):
        write(folder / name / "1", signatures)
    with running(ServerConfig(folder, port=0, poll_s=3600)) as server:
        yield server.manager


def test_bytes_behind_the_numbers_are_no_numbers(pairs):
    answer = RepeatedPredict(pairs)
    for _ in range(2):
        answer(request("PAIR1", 17))
        answer(request("PAIR2", 19))
    data = with_filter(request("PAIR1", 17), "action")
    assert len(data) == len(request("PAIR2", 19))
    for _ in range(2):
        assert answer(data).response == long_way(pairs, data)


def test_a_request_that_is_cut_off_gets_no_answer_and_nobody_elses_numbers(pairs):
    answer = RepeatedPredict(pairs)
    for _ in range(2):
        answer(request("PAIR1", 17))
        answer(request("PAIR2", 19))
    with pytest.raises(DecodeError):
        answer(request("PAIR2", 19)[:-8])


def test_an_error_on_the_short_way_is_its_models(tmp_path):
    import tensorflow as tf

    from tests.serving.saved_models import PREDICT, tf1, write

    def signatures():
        x = tf1.placeholder(tf.float32, [None, None], "x")
        return {"serving_default": (PREDICT, {"observation": x}, {"y": tf1.check_numerics(x, "no number")})}

    write(tmp_path / "CHECKED" / "1", signatures)
    with running(ServerConfig(tmp_path, port=0, poll_s=3600)) as server:
        answer = RepeatedPredict(server.manager)
        parsed = counted(answer)
        good = request("CHECKED", 3)
        answer(good)
        with pytest.raises(StatusError, match="no number") as told:
            answer(good[:-4] + np.float32("nan").tobytes())
        assert told.value.model == "CHECKED" and len(parsed) == 1


def test_the_memory_of_plans_is_bounded(manager, monkeypatch):
    monkeypatch.setattr(repeated_predict, "MAX_KEPT_BYTES", 3 * 4 * 17)
    answer = RepeatedPredict(manager)
    for extra in range(10):
        assert answer(bytes((0x78, extra)) + request()).version == 1
        assert len(answer._plans) <= 3


def test_the_number_of_plans_is_bounded(manager, monkeypatch):
    monkeypatch.setattr(repeated_predict, "MAX_PLANS", 3)
    answer = RepeatedPredict(manager)
    for extra in range(10):
        # an unknown field makes another prefix of the same request
        assert answer(bytes((0x78, extra)) + request()).version == 1
        assert len(answer._plans) <= 3


@given(st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=8)), max_size=3), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_no_change_of_a_known_request_gets_another_answer_than_the_long_way(grid_session, changes, cut):
    answer, manager = grid_session
    data = request(seed=1)
    answer(data)
    # a name as long, another size: the same bytes may be numbers here and something else there
    answer(request("SA104", size_of(manager, "SA104"), seed=2))
    changed = bytearray(data)
    for at, new in changes:
        changed[at : at + len(new)] = new
    changed = bytes(changed[: len(changed) - cut])

    def told(function):
        try:
            return function(changed)
        except (StatusError, DecodeError) as error:
            return type(error), str(error)

    assert told(lambda data: answer(data).response) == told(lambda data: long_way(manager, data))


@pytest.fixture(scope="module")
def grid_session(grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0)) as server:
        yield RepeatedPredict(server.manager), server.manager


def test_requests_of_one_kind_have_a_pace_of_their_own(manager):
    answer = RepeatedPredict(manager)
    assert answer.pace(request()) is None
    answer(request())
    answer(request("SA108", size_of(manager, "SA108")))
    assert answer.pace(request(seed=1)) is answer.pace(request(seed=2)) is not None
    assert answer.pace(request("SA108", size_of(manager, "SA108"))) is not answer.pace(request())
