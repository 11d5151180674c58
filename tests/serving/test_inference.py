"""Classify, Regress and MultiInference through tensorflow-serving-api's stubs."""

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.serving.saved_models import CLASSIFY, REGRESS


@pytest.fixture(scope="module")
def stub(odd_server):
    with grpc.insecure_channel(f"127.0.0.1:{odd_server.port}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def example(**features):
    return tf.train.Example(
        features=tf.train.Features(
            feature={key: tf.train.Feature(float_list=tf.train.FloatList(value=[x])) for key, x in features.items()}
        )
    )


def filled(made, signature="", model="examples", xs=(1.0, -2.0)):
    made.model_spec.name, made.model_spec.signature_name = model, signature
    made.input.example_list.examples.extend(example(x=x) for x in xs)
    return made


def refused(call, request):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=10)
    return caught.value.code().name, caught.value.details()


def test_regress_gives_a_value_for_every_example(stub):
    answer = stub.Regress(filled(regression_pb2.RegressionRequest()), timeout=10)
    assert [one.value for one in answer.result.regressions] == [2.0, -4.0]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("examples", 3, "serving_default")


def test_the_context_of_a_list_is_part_of_every_example(stub):
    made = regression_pb2.RegressionRequest()
    made.model_spec.name = "examples"
    made.input.example_list_with_context.context.CopyFrom(example(offset=100.0))
    made.input.example_list_with_context.examples.extend([example(x=1.0), example(x=2.0, offset=0.5)])
    answer = stub.Regress(made, timeout=10)
    assert [one.value for one in answer.result.regressions] == [102.0, 4.5]


def test_classify_gives_labels_and_scores_or_what_there_is_of_them(stub):
    result = stub.Classify(filled(classification_pb2.ClassificationRequest(), "classes"), timeout=10).result
    assert [[(c.label, c.score) for c in one.classes] for one in result.classifications] == [
        [("plus", 2.0), ("minus", -2.0)],
        [("plus", -4.0), ("minus", 4.0)],
    ]
    result = stub.Classify(filled(classification_pb2.ClassificationRequest(), "scores"), timeout=10).result
    assert [(c.label, c.score) for c in result.classifications[0].classes] == [("", 2.0), ("", -2.0)]
    result = stub.Classify(filled(classification_pb2.ClassificationRequest(), "labels"), timeout=10).result
    assert [(c.label, c.score) for c in result.classifications[0].classes] == [("plus", 0.0), ("minus", 0.0)]


def test_multi_inference_answers_every_task(stub):
    made = inference_pb2.MultiInferenceRequest()
    for method, signature in ((REGRESS, ""), (CLASSIFY, "classes")):
        task = made.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name = "examples", signature
    made.input.example_list.examples.append(example(x=3.0))
    first, second = stub.MultiInference(made, timeout=10).results
    assert first.regression_result.regressions[0].value == 6.0 and first.model_spec.signature_name == "serving_default"
    assert second.classification_result.classifications[0].classes[0].label == "plus"
    assert second.model_spec.version.value == 3


@pytest.mark.parametrize(
    ("method", "made", "code", "words"),
    [
        ("Regress", regression_pb2.RegressionRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        ("Regress", filled(regression_pb2.RegressionRequest(), model="nobody"), "NOT_FOUND", "Latest(nobody)"),
        ("Regress", filled(regression_pb2.RegressionRequest(), xs=()), "INVALID_ARGUMENT", "Input is empty."),
        (
            "Regress", filled(regression_pb2.RegressionRequest(), "none"), "INVALID_ARGUMENT",
            "No signature was found with the name: none",
        ),
        (
            "Regress", filled(regression_pb2.RegressionRequest(), "by_predict"), "INVALID_ARGUMENT",
            "Expected regression signature method_name to be tensorflow/serving/regress. Was: tensorflow/serving/predict",
        ),
        ("Regress", filled(regression_pb2.RegressionRequest(), "misnamed"), "FAILED_PRECONDITION", "No regression outputs found"),
        ("Regress", filled(regression_pb2.RegressionRequest(), "wide"), "INVALID_ARGUMENT", "[batch_size] or [batch_size, 1]"),
        (
            "Classify", filled(classification_pb2.ClassificationRequest()), "INVALID_ARGUMENT",
            "Expected classification signature method_name to be tensorflow/serving/classify. Was: tensorflow/serving/regress",
        ),
        ("MultiInference", inference_pb2.MultiInferenceRequest(), "INVALID_ARGUMENT", "at least one task"),
    ],
)  # fmt: skip
def test_what_does_not_fit_gets_tensorflow_servings_status_and_words(method, made, code, words, stub):
    found, details = refused(getattr(stub, method), made)
    assert found == code and words in details


@pytest.mark.parametrize(
    ("tasks", "code", "words"),
    [
        (
            [("", "examples", REGRESS), ("", "examples", REGRESS)],
            "INVALID_ARGUMENT",
            "Duplicate evaluation of signature: serving_default",
        ),
        ([("", "examples", REGRESS), ("", "dtypes", REGRESS)], "INVALID_ARGUMENT", "must access the same model name"),
        ([("", "", REGRESS)], "INVALID_ARGUMENT", "empty model name"),
        ([("none", "examples", REGRESS)], "INVALID_ARGUMENT", "Requested signature not found in model graph: none"),
        ([("", "examples", "predict")], "UNIMPLEMENTED", "Unsupported signature method_name: predict"),
        ([("", "examples", CLASSIFY)], "INVALID_ARGUMENT", "Expected classification signature method_name"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(tasks, code, words, stub):
    made = inference_pb2.MultiInferenceRequest()
    for signature, model, method in tasks:
        task = made.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name = model, signature
    made.input.example_list.examples.append(example(x=3.0))
    found, details = refused(stub.MultiInference, made)
    assert found == code and words in details


def test_an_example_that_is_garbage_is_a_status(stub, odd_server):
    from protos import inference_pb2 as ours

    made = ours.RegressionRequest()
    made.model_spec.name = "examples"
    made.input.example_list.examples.append(b"\xff\xff\xff")
    with grpc.insecure_channel(f"127.0.0.1:{odd_server.port}") as channel:
        raw = channel.unary_unary("/tensorflow.serving.PredictionService/Regress")
        code, details = refused(raw, made.SerializeToString())
    assert code == "INVALID_ARGUMENT" and "arse" in details
