"""The lean client against a server that answers, one that is late, and one that answers garbage."""

import itertools
import time
from concurrent import futures

import grpc
import numpy as np
import pytest

from controller.served_policy import ServedPolicies
from protos import policy_pb2
from protos import predict_pb2 as wire
from serving.client import Answer, Client
from serving.contract import ContractError
from serving.errors import BadAnswer, BadRequest, DeadlineExceeded, ModelNotFound, Overloaded, ServingError, Unavailable
from serving.tensors import to_proto
from tests.end_to_end.programs import free_port

X = np.zeros(17, np.float32)


class Fake:
    """Answers whatever the test says; nothing real does so on purpose."""

    def __init__(self, path=""):
        """`path`: of a Unix socket to listen on instead of a port; gRPC's own server does so as TensorFlow Serving does."""
        self.answer = lambda request, context: b""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(request, context))
            for name in ("Predict", "GetModelMetadata")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", handlers),))
        port = server.add_insecure_port(f"unix:{path}" if path else "127.0.0.1:0")
        self.address = f"unix:{path}" if path else f"127.0.0.1:{port}"
        server.start()
        self.stop = lambda: server.stop(None).wait()


@pytest.fixture(params=["TCP", "Unix socket"])
def fake(request, tmp_path):
    made = Fake(str(tmp_path / "grpc") if request.param == "Unix socket" else "")
    yield made
    made.stop()


@pytest.fixture
def client(fake):
    made = Client(fake.address)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["grid_server", "grid_unix"], ids=["TCP", "Unix socket"])
def real(request):
    made = Client(request.getfixturevalue(request.param))
    yield made
    made.close()


def answer(**outputs):
    response = wire.PredictResponse()
    response.model_spec.version.value = outputs.pop("version", 1)
    for key, array in outputs.items():
        to_proto(np.asarray(array), response.outputs[key])
    return response.SerializeToString()


def test_one_and_many_give_the_same(real):
    rng = np.random.default_rng(0)
    sizes = {"SA101": 21, "SA103": 17, "SA107": 9, "SA108": 34}
    observations = {tl: rng.random(size).astype(np.float32) for tl, size in sizes.items()}
    together = real.predict_many(observations)
    for tl, x in observations.items():
        alone = real.predict(tl, x)
        assert together[tl].version == 1
        for key, value in alone.items():
            np.testing.assert_array_equal(value, together[tl].outputs[key])


def test_more_models_than_may_fly_at_once_are_all_answered(grid_server):
    client = Client(grid_server, max_in_flight=2)
    tls = {f"SA10{k}": np.zeros(21, np.float32) for k in (1, 2, 4, 5, 6)}
    assert all(not isinstance(a, ServingError) for a in client.predict_many(tls).values())
    client.close()


def test_one_bad_model_spoils_only_its_own_answer(real):
    found = real.predict_many({"SA103": X, "nobody": X, "SA101": X})
    assert found["SA103"].outputs["action"].shape == (1, 1)
    assert isinstance(found["nobody"], ModelNotFound) and isinstance(found["SA101"], BadRequest)


def test_contracts_signatures_and_states_are_told(real):
    assert real.policy("SA108").signal_ids == ["C1", "C2"]
    assert "serving_default" in real.signatures("SA108").signature_def
    assert real.status("SA108")[0].state == wire.ModelVersionStatus.AVAILABLE
    with pytest.raises(ModelNotFound):
        real.policy("SA108", 99)


def test_a_dead_server_is_unavailable_at_once():
    client = Client(f"127.0.0.1:{free_port()}")
    begin = time.monotonic()
    assert isinstance(client.predict_many({"a": X}, timeout_s=5)["a"], Unavailable)
    with pytest.raises(Unavailable):
        client.policy("a")
    assert time.monotonic() - begin < 4
    client.close()


def test_the_time_limit_holds_for_all_together(fake):
    client = Client(fake.address, max_in_flight=2)
    fake.answer = lambda request, context: time.sleep(0.3) or answer(action=[[0.0]])
    begin = time.monotonic()
    found = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
    assert time.monotonic() - begin < 1.2
    assert any(isinstance(a, DeadlineExceeded) for a in found.values()) and len(found) == 12
    client.close()


def test_a_model_that_hangs_holds_up_no_other(fake):
    client = Client(fake.address, max_in_flight=3)

    def respond(request, context):
        if wire.PredictRequest.FromString(request).model_spec.name == "0":
            time.sleep(0.6)
        return answer(action=[[0.0]])

    fake.answer = respond
    found = client.predict_many({str(k): X for k in range(12)}, timeout_s=0.5)
    assert [model for model, a in found.items() if isinstance(a, ServingError)] == ["0"]
    client.close()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff\x01"])
def test_garbage_is_a_bad_answer(fake, client, garbage):
    fake.answer = lambda request, context: garbage
    assert isinstance(client.predict_many({"a": X})["a"], BadAnswer)
    with pytest.raises(BadAnswer):
        client.predict("a", X)


def test_a_tensor_that_contradicts_itself_is_a_bad_answer(fake, client):
    response = wire.PredictResponse()
    to_proto(np.zeros((1, 2), np.float32), response.outputs["action"]).tensor_content = b"123"
    fake.answer = lambda request, context: response.SerializeToString()
    assert isinstance(client.predict_many({"a": X})["a"], BadAnswer)


def test_a_call_that_nobody_worked_on_is_made_again_and_no_other(fake):
    asked = []

    def respond(request, context):
        asked.append(wire.PredictRequest.FromString(request).model_spec.name)
        if asked.count("busy") == 1 and asked[-1] == "busy":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
        return answer(action=[[0.0]])

    fake.answer = respond
    with Client(fake.address, retries=0) as once, Client(fake.address, retries=1) as again:
        assert isinstance(once.predict_many({"busy": X})["busy"], Overloaded)
        asked.clear()
        assert again.predict("busy", X, timeout_s=20)
        asked.clear()
        found = again.predict_many({"busy": X, "other": X}, timeout_s=20)
        assert all(isinstance(one, Answer) for one in found.values())
        assert sorted(asked) == ["busy", "busy", "other"]


def test_statuses_become_our_errors(fake, client):
    for code, kind in ((grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded), (grpc.StatusCode.INTERNAL, ServingError)):
        fake.answer = lambda request, context, code=code: context.abort(code, "so it is")
        found = client.predict_many({"a": X})["a"]
        assert type(found) is kind and "so it is" in str(found)


def test_a_model_without_a_contract_says_so(fake, client):
    fake.answer = lambda request, context: answer(other=[1.0])
    with pytest.raises(ContractError, match="no output 'policy'"):
        client.policy("a")
    fake.answer = lambda request, context: answer(policy=np.array([b"\xff\xff"], object))
    with pytest.raises(ContractError, match="not a policy contract"):
        client.policy("a")


class TestServedPolicies:
    """What the controller makes of answers."""

    KC = policy_pb2.Policy(tl="a", action=policy_pb2.Action(kind="kc", size=1), origin=policy_pb2.Origin(model_number=1))

    def ask(self, client, deadline_s=1.0, clock=time.monotonic):
        return ServedPolicies(client, {"a": self.KC}, None, deadline_s, clock).ask({"a": X})["a"]

    def test_an_action_is_an_action(self, fake, client):
        fake.answer = lambda request, context: answer(action=[[0.5]])
        assert self.ask(client).tolist() == [[0.5]]

    def test_an_answer_without_an_action_is_none(self, fake, client):
        fake.answer = lambda request, context: answer(actions=[[0.5]])
        assert isinstance(self.ask(client), BadAnswer)

    def test_a_late_answer_is_thrown_away(self, fake, client):
        fake.answer = lambda request, context: answer(action=[[0.5]])
        times = itertools.chain([0.0, 0.0], itertools.repeat(2.0))
        assert isinstance(self.ask(client, clock=lambda: next(times)), DeadlineExceeded)

    def test_a_new_version_of_the_same_contract_is_followed(self, fake, client):
        newer = policy_pb2.Policy()
        newer.CopyFrom(self.KC)
        newer.origin.model_number = 2
        told = np.array([newer.SerializeToString()], object)
        fake.answer = lambda request, context: answer(version=2, action=[[0.5]], policy=told)
        assert self.ask(client).tolist() == [[0.5]]

    def test_a_new_version_of_another_contract_is_refused(self, fake, client):
        other = policy_pb2.Policy()
        other.CopyFrom(self.KC)
        other.action.actionp = 0.9
        told = np.array([other.SerializeToString()], object)
        fake.answer = lambda request, context: answer(version=2, action=[[0.5]], policy=told)
        found = self.ask(client)
        assert "another contract" in str(found)

    def test_a_slow_look_at_one_new_version_makes_no_other_late(self):
        class Slow:
            def predict_many(self, observations, *_):
                outputs = {"action": np.array([[0.5]], np.float32)}
                return {tl: Answer(outputs, 2 if tl == "a" else 1) for tl in observations}

            def policies(self, versions, timeout_s):
                clock[0] += 5.0
                return dict.fromkeys(versions, DeadlineExceeded("slow"))

        clock = [0.0]
        contracts = dict.fromkeys("abc", self.KC)
        found = ServedPolicies(Slow(), contracts, None, 1.0, lambda: clock[0]).ask(dict.fromkeys("abc", X))
        assert isinstance(found["a"], Exception)
        assert found["b"].tolist() == found["c"].tolist() == [[0.5]]

    @pytest.mark.parametrize("lost", ["unavailable", "silent"])
    def test_after_an_outage_a_version_must_tell_its_contract_though_its_number_is_known(self, lost, caplog):
        caplog.set_level("INFO", "controller")
        other = policy_pb2.Policy(tl="b")
        errors = {"unavailable": Unavailable("gone"), "silent": DeadlineExceeded("late")}

        class Client:
            address = "there"

            def predict_many(self, observations, *_):
                good = Answer({"action": np.array([[0.5]], np.float32)}, 1)
                return dict.fromkeys(observations, good if there else errors[lost])

            def policies(self, versions, timeout_s):
                asked.append(versions)
                return {tl: serves.get(tl, DeadlineExceeded("slow")) for tl in versions}

            def renew(self):
                pass

        asked, now, there, serves = [], 0.0, True, {"a": self.KC, "b": other}
        policies = ServedPolicies(Client(), dict.fromkeys("abc", self.KC), None, 0.5, lambda: now)
        assert not any(isinstance(x, Exception) for x in policies.ask(dict.fromkeys("abc", X)).values()) and asked == []
        there = False
        for _ in range(3):
            policies.ask(dict.fromkeys("abc", X))
            now += 2.0
        there = True
        found = policies.ask(dict.fromkeys("abc", X))
        assert asked == [{"a": 1, "b": 1, "c": 1}]
        assert found["a"].tolist() == [[0.5]]
        assert "another contract" in str(found["b"]) and "not told" in str(found["c"])
        assert "b: the server now answers with version 1, with another contract: not followed" in caplog.text
        serves["c"] = self.KC
        found = policies.ask(dict.fromkeys("abc", X))
        assert asked[1:] == [{"c": 1}] and found["c"].tolist() == [[0.5]] and isinstance(found["b"], Exception)

    def test_whatever_breaks_is_an_exception_in_the_answers(self):
        class Broken:
            def predict_many(self, *_):
                raise RuntimeError("broken")

        found = ServedPolicies(Broken(), {"a": self.KC}, None, 1.0).ask({"a": X})
        assert isinstance(found["a"], RuntimeError)

    @pytest.mark.parametrize(
        ("answers", "renewed_s"),
        [
            ("sssss", [2, 4]),  # every other one: a new connection has its chance
            ("sgsgs", []),
            ("sbsss", [4]),  # whoever refuses is there
            ("mmmmm", []),  # so is who answers some
        ],
    )
    def test_a_server_that_says_nothing_is_asked_over_a_new_connection(self, answers, renewed_s):
        kinds = {"s": DeadlineExceeded("late"), "b": BadAnswer("bad"), "g": Answer({"action": np.array([[0.5]], np.float32)}, 1)}

        class Client:
            address = "there"

            def predict_many(self, *_):
                kind = answers[int(now[0])]
                return {"a": kinds["s"], "b": kinds["g"]} if kind == "m" else dict.fromkeys("ab", kinds[kind])

            def renew(self):
                renewed.append(now[0])

        now, renewed = [0.0], []
        policies = ServedPolicies(Client(), dict.fromkeys("ab", self.KC), None, 0.5, lambda: now[0])
        for _ in answers:
            policies.ask(dict.fromkeys("ab", X))
            now[0] += 1.0
        assert renewed == renewed_s

    def test_a_model_that_hangs_says_nothing_of_the_connection(self):
        class Client:
            address = "there"

            def predict_many(self, observations, *_):
                good = Answer({"action": np.array([[0.5]], np.float32)}, 1)
                return {tl: good if tl in answering else DeadlineExceeded("late") for tl in observations}

            def policies(self, versions, timeout_s):
                return dict.fromkeys(versions, TestServedPolicies.KC)

            def renew(self):
                renewed.append(now)

        renewed, now, answering = [], 0.0, "b"
        policies = ServedPolicies(Client(), dict.fromkeys("ab", self.KC), None, 0.5, lambda: now)

        def ask(*rounds):
            nonlocal now
            for tls in rounds:
                policies.ask(dict.fromkeys(tls, X))
                now += 2.0

        ask("ab", "a", "a", "a", "ab", "a", "a")
        assert renewed == []
        answering = ""
        ask("ab", "a", "ab")
        assert renewed == [18.0], "the others' silence counts"
        answering = "ab"
        ask("ab")
        answering = ""
        ask("a", "a")
        assert renewed == [18.0, 24.0], "so does its own once it has answered again"
