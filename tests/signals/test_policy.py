"""Validation of a policy's answers."""

import numpy as np
import pytest

from protos import policy_pb2 as pb
from signals.policy import ActionSpace, InvalidAction

GREENS = pb.PolicyContract(action=pb.Action(kind="categorical", size=4))
KC = pb.PolicyContract(action=pb.Action(kind="kc", size=2))


def test_valid_answers_become_actions():
    assert ActionSpace(GREENS).validated(np.array([3], np.int64)) == (3,)
    assert ActionSpace(KC).validated(np.array([[0.5, -1.0]], np.float32)) == (0.5, -1.0)


@pytest.mark.parametrize(
    ("contract", "answer"),
    [
        (GREENS, [4]), (GREENS, [-1]), (GREENS, [1.5]), (GREENS, [1, 2]), (GREENS, []), (GREENS, [np.nan]),
        (KC, [0.0]), (KC, [0.0, np.inf]), (KC, [0.0, 1.5]), (KC, [[0, 0], [0, 0]]), (KC, [np.nan, 0]), (GREENS, "green"),
    ],
)  # fmt: skip
def test_invalid_answers_are_refused(contract, answer):
    with pytest.raises((InvalidAction, ValueError)):
        ActionSpace(contract).validated(answer if isinstance(answer, str) else np.array(answer))
