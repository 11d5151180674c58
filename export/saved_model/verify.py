"""Verification of a written SavedModel: its operations, and a parity check of its actions.

The parity check loads the model into a TF1-style session, as TensorFlow Serving does,
because a model that loads in Python may still miss its variables there. A single model
is compared with its checkpoint's actor, a fleet with its single models.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from city.errors import ProgramFailed, first_line
from export.actors import (
    LOGITS,
    PARITY_OBSERVATIONS,
    Actor,
    GraphActor,
    ReferenceModel,
    parity_observations,
    permitted_difference,
)
from export.actors.activations import softmax
from export.actors.phase_competition import observations_at_bounds
from export.saved_model import read, write
from protos import policy_pb2 as pb
from serving.contract import (
    ACTION,
    CATEGORICAL,
    DEFAULT_SIGNATURE,
    INPUT,
    POLICY_INPUT,
    POLICY_OUTPUT,
    POLICY_SIGNATURE,
    PROBABILITIES,
    Q_VALUES,
    SCORES,
    scores_name,
)
from serving.graph_operations import INFERENCE
from signals import varied_observations
from signals.dialects.street import DIALECT as STREET
from signals.movement_names import MovementNames

CHECKPOINT_IN_NUMPY = "NumPy float64 evaluation of the checkpoint's variables"
"""Reference of a single model without a trainer's graph, as the manifest names it."""
TOLERANCE = 1e-5
"""Largest difference between a model's actions and its checkpoint's. It is relative to the scale of the actions, or of
the logits before a softmax or tanh (`permitted_difference`): float32 rounds logits of 100 by 100 times as much as those
of 1."""
MIN_PROBABILITY = 1e-30
"""Probabilities below this count as equal: float32 rounds them to few digits, or to 0."""
FLEET_TOLERANCE = 1e-6
"""Largest difference between a fleet's actions and the single models', relative to their scale."""
MAX_OBSERVATIONS_AT_BOUNDS, MAX_NUMBERS_AT_BOUNDS = 1024, 1 << 24
"""Observations at the bounds of the rules of dialect street, which random numbers do not reach; and their numbers, of a
large fleet."""
MAX_RUN_NUMBERS = 1 << 20
"""Numbers of observations in one run of a fleet, which needs up to 150 times as much memory for what it computes."""
RUN_TIMEOUT_S = 60.0
"""Limit for one run of a model, which may loop endlessly for some observations."""

UNOPTIMISED = config_pb2.ConfigProto(
    graph_options=config_pb2.GraphOptions(
        rewrite_options=rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    )
)
"""Options of a session that does not rewrite graphs."""
Run = Callable[[str, dict[str, Any]], dict[str, NDArray[Any]]]
"""(signature, inputs by key) -> outputs by key."""


class ParityError(ProgramFailed):
    """The written model does not act like its reference, and must not be published."""


@dataclass(frozen=True)
class Verification:
    """The results of a model's verification."""

    difference: float
    """Largest absolute difference of an action (categorical: of a probability)."""
    permitted: float
    """Largest difference that was permitted."""
    observations: int
    reference: str
    """The model or evaluation that the actions were compared with."""
    operations: dict[str, int]
    """Number of operations of each kind in the graph."""
    only_action: str = ""
    """The action that a TL's own model gives for all of `signals.varied_observations`; "" if it gives several."""


class NotInferenceOnly(ProgramFailed):
    """The graph contains operations that inference does not need."""


def count_operations(folder: Path) -> dict[str, int]:
    """Number of operations of each kind in a written SavedModel. Raises NotInferenceOnly."""
    graph = read.meta_graph(folder).graph_def
    ops = Counter(node.op for node in graph.node)
    ops.update(node.op for function in graph.library.function for node in function.node_def)
    refused = sorted(ops.keys() - INFERENCE)
    if refused:
        raise NotInferenceOnly(f"its graph contains {', '.join(refused)}, which inference does not need")
    return dict(sorted(ops.items()))


def compare_with_checkpoint(
    folder: Path,
    actor: Actor | GraphActor,
    contract: pb.PolicyContract,
    reference_model: ReferenceModel | None,
    of_traffic: NDArray[np.float32] | None = None,
    names: Mapping[str, MovementNames] = {},
) -> Verification:
    """Compare a written model with its checkpoint's actor on `parity_observations` and `at_bounds`; replays the warm-up
    records first.

    Args:
        folder: the written SavedModel.
        actor: the actor that was written.
        contract: the contract that was written.
        reference_model: the trainer's own graph; without it, the steps are evaluated in NumPy.
        of_traffic: [n, O] recorded observations that are compared too.
        names: by signal, the names of its movements.

    Raises:
        InputError: the recorded observations have another size.
        ParityError: the model cannot be loaded or run, the difference exceeds TOLERANCE times the scale of the actions
            or of their logits, or a categorical choice differs.
        NotInferenceOnly: its graph has other operations.
    """
    parity, of_rules = parity_observations(actor.inputs, of_traffic), at_bounds(contract)
    rows = np.concatenate([parity, *(of_rules or [varied_observations.varied(contract)])])
    x = rows if of_rules and reference_model is None else parity
    categorical = contract.action.kind == CATEGORICAL
    with session(folder) as run:
        replay(folder, run)
        outputs = run(DEFAULT_SIGNATURE, {INPUT: x})
        actions = (outputs if x is rows else run(DEFAULT_SIGNATURE, {INPUT: rows}))[ACTION]
        only_action = varied_observations.only_action(contract, actions[len(parity) :], names)
        check_policy_signature(run, contract)
    reference = CHECKPOINT_IN_NUMPY if reference_model is None else reference_model.description
    expected, logits = _expected(x, actor, reference_model, categorical)
    scores = actor.scores
    actual = outputs[scores] if categorical else outputs[ACTION]
    difference, ranking = np.abs(actual - expected), expected
    if categorical and scores == PROBABILITIES:
        permitted = permitted_difference(TOLERANCE, logits)
        _check_difference("its actions", difference, permitted)
        # logarithms show the difference of two logits, which a saturated probability does not show
        logarithms, ranking = (
            np.log(np.maximum(values.astype(np.float64), MIN_PROBABILITY)) for values in (actual, expected)
        )
        _check_difference("the logarithms of its probabilities", np.abs(logarithms - ranking), 2 * permitted)
    else:
        of_logits = actor.rounding_of_actions(TOLERANCE, x) if isinstance(actor, Actor) and not categorical else 0.0
        bounds = np.maximum(permitted_difference(TOLERANCE, expected), of_logits)
        permitted = float(bounds.max())
        _check_difference("its actions", difference, bounds)
    if categorical and _choices_differ(outputs[ACTION], expected.argmax(axis=1), ranking, permitted):
        raise ParityError("its chosen actions are not the checkpoint's most probable ones")
    operations = count_operations(folder)
    return Verification(float(difference.max()), permitted, len(x), reference, operations, only_action)


def _check_difference(what: str, difference: NDArray[Any], permitted: NDArray[Any] | float) -> None:
    """Raise ParityError if a difference exceeds the permitted one. `what`: the differing values, for the message."""
    if (difference <= permitted).all():
        return
    bounds = np.broadcast_to(permitted, difference.shape)
    worst = np.unravel_index((difference - bounds).argmax(), difference.shape)
    raise ParityError(
        f"{what} differ from the checkpoint's by up to {difference[worst]:.3g}, more than rounding ({bounds[worst]:g})"
    )


def _expected(
    x: NDArray[np.float32], actor: Actor | GraphActor, reference_model: ReferenceModel | None, categorical: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(expected actions or scores [n, A], the logits that these are made of, or themselves if there are none)."""
    if reference_model is None:
        assert isinstance(actor, Actor)
        values = actor.evaluate(x, categorical=False)
        return softmax(values) if categorical and actor.scores == PROBABILITIES else values, values
    values = np.asarray(reference_model.run(x), np.float64)
    if categorical and reference_model.output_kind == LOGITS:
        return softmax(values), values
    return values, actor.evaluate(x, categorical=False) if categorical and isinstance(actor, Actor) else values


def compare_with_single_models(
    folder: Path, contract: pb.PolicyContract, single_models: Mapping[str, Path], members: Iterable[pb.Member]
) -> Verification:
    """Compare a written fleet with its single models on random observations and `at_bounds`.

    Args:
        folder: the fleet's SavedModel.
        contract: the fleet's contract.
        single_models: version folder of every TL's own model.
        members: those of the contract, which may show a progress bar.

    Raises:
        ParityError: a model cannot be loaded or run, a TL's actions, probabilities or q-values differ by more than
            FLEET_TOLERANCE times their scale, or a categorical choice differs.
        NotInferenceOnly: its graph has other operations.
    """
    x = [*_fleet_observations(contract.observation.size), *at_bounds(contract)]
    with session(folder) as run:
        replay(folder, run)
        outputs = _run_in_batches(run, x)
        check_policy_signature(run, contract)
        # a client sends one row, the check a batch; both must give the same actions
        first = run(DEFAULT_SIGNATURE, {INPUT: x[0][:1]})
    actions, first_row = outputs[ACTION], first[ACTION]
    largest = float(np.abs(actions[:1] - first_row).max())
    max_permitted = permitted_difference(FLEET_TOLERANCE, first_row)
    if not largest <= max_permitted:
        raise ParityError(
            f"its actions for one row and for a batch differ by up to {largest:.3g}, more than {max_permitted:g}"
        )
    for member in members:
        columns = slice(member.action_begin, member.action_begin + member.action_size)
        begin, end = member.observation_begin, member.observation_begin + member.observation_size
        observations = np.concatenate([rows[:, begin:end] for rows in x])
        single_model = single_models[member.tl]
        with session(single_model, UNOPTIMISED) as run:
            expected = run(DEFAULT_SIGNATURE, {INPUT: observations})
        name = scores_name(member.contract)
        kind = name or "actions"
        if name is None:
            difference = float(np.abs(actions[:, columns] - expected[ACTION]).max())
            permitted = permitted_difference(FLEET_TOLERANCE, expected[ACTION])
        else:
            scores = expected[name]
            tolerance = permitted_difference(FLEET_TOLERANCE, scores)
            if _choices_differ(actions[:, columns.start], expected[ACTION], scores, tolerance):
                raise ParityError(f"it chooses other actions for {member.tl} than {single_model} does")
            columns = slice(member.score_begin, member.score_begin + member.score_size)
            differences = outputs[SCORES][:, columns] - scores, first[SCORES][:, columns] - scores[:1]
            difference = float(np.abs(np.concatenate(differences)).max())
            # float32 rounds probabilities as their logits, whose scale is that of their logarithms
            scale = scores if name == Q_VALUES else np.log(np.maximum(scores, MIN_PROBABILITY))
            permitted = permitted_difference(FLEET_TOLERANCE, scale)
        if not difference <= permitted:
            raise ParityError(
                f"its {kind} for {member.tl} differ from those of {single_model} by up to {difference:.3g}, "
                f"more than {permitted:g}"
            )
        largest, max_permitted = max(largest, difference), max(max_permitted, permitted)
    reference = "the single models, each loaded separately"
    return Verification(largest, max_permitted, sum(map(len, x)), reference, count_operations(folder))


def _fleet_observations(size: int) -> list[NDArray[np.float32]]:
    """Two halves of PARITY_OBSERVATIONS observations [n, size]: standard normal, uniform in [0, 1].

    Row k is the numbers from k of one list: views, because whole rows of a large fleet would fill the memory.
    """
    rng, half = np.random.default_rng(0), PARITY_OBSERVATIONS // 2
    lists = (draw(size + half - 1, dtype=np.float32) for draw in (rng.standard_normal, rng.random))
    return [sliding_window_view(numbers, size) for numbers in lists]


def at_bounds(contract: pb.PolicyContract) -> list[NDArray[np.float32]]:
    """Observations [n, O] of a single model or a fleet at the bounds of the rules of dialect street; none of another
    dialect."""
    members = contract.members or [pb.Member(contract=contract, observation_size=contract.observation.size)]
    streets = [member for member in members if member.contract.observation.dialect == STREET.name]
    if not streets:
        return []
    rng, size = np.random.default_rng(0), contract.observation.size
    x = np.zeros((min(MAX_OBSERVATIONS_AT_BOUNDS, max(2, MAX_NUMBERS_AT_BOUNDS // size)), size), np.float32)
    for member in streets:
        greens, lanes = member.contract.action.size, len(member.contract.signals[0].approaches)
        columns = slice(member.observation_begin, member.observation_begin + member.observation_size)
        x[:, columns] = observations_at_bounds(greens, lanes, len(x), rng)
    return [x]


def _run_in_batches(run: Run, observations: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    """The outputs of a fleet for all rows, of which as many are run at once as its memory permits."""
    rows = max(2, MAX_RUN_NUMBERS // observations[0].shape[1])
    batches = [x[begin : begin + rows] for x in observations for begin in range(0, len(x), rows)]
    outputs = [run(DEFAULT_SIGNATURE, {INPUT: x}) for x in batches]
    return {key: np.concatenate([output[key] for output in outputs]) for key in outputs[0]}


def _choices_differ(actual: NDArray[Any], expected: NDArray[Any], scores: NDArray[Any], tolerance: float) -> bool:
    """Tell whether a choice differs from the expected one, except where the two highest scores are within twice the
    tolerance.

    Args:
        actual: [n] choices.
        expected: [n] choices.
        scores: [n, choices] probabilities, their logarithms or Q-values.
        tolerance: of a score.
    """
    differs = actual != expected
    if scores.shape[1] > 1:
        ascending = np.sort(scores, axis=1)
        differs &= ascending[:, -1] - ascending[:, -2] > 2 * tolerance
    return bool(differs.any())


def check_policy_signature(run: Run, contract: pb.PolicyContract) -> None:
    """Raise ParityError unless signature `policy` gives the contract in every row."""
    rows = run(POLICY_SIGNATURE, {POLICY_INPUT: np.zeros(3, np.int32)})[POLICY_OUTPUT]
    if list(rows) != [contract.SerializeToString(deterministic=True)] * 3:
        raise ParityError("signature 'policy' does not give the contract in every row")


def replay(folder: Path, run: Run) -> None:
    """Run every warm-up record of a model once."""
    for signature, inputs in write.read_warmup(folder):
        run(signature, inputs)


@contextmanager
def session(folder: Path, options: Any = None) -> Iterator[Run]:
    """Load a model as TensorFlow Serving does; yields a function that runs it. Raises ParityError if it cannot be
    loaded."""
    with tf.Graph().as_default(), tf.compat.v1.Session(config=options) as tf_session:
        try:
            meta_graph = tf.compat.v1.saved_model.load(tf_session, ["serve"], str(folder))
        except (tf.errors.OpError, KeyError, ValueError, RuntimeError) as error:
            raise ParityError(f"the session loader cannot load it: {first_line(error)}") from error

        def run(signature: str, inputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
            try:
                definition = meta_graph.signature_def[signature]
                feed = {definition.inputs[key].name: value for key, value in inputs.items()}
                fetches = {key: info.name for key, info in definition.outputs.items()}
                run_options = config_pb2.RunOptions(timeout_in_ms=int(1000 * RUN_TIMEOUT_S))
                outputs: dict[str, NDArray[Any]] = tf_session.run(fetches, feed, run_options)
                return outputs
            except (tf.errors.OpError, KeyError, ValueError, TypeError, RuntimeError) as error:
                raise ParityError(
                    f"the session loader cannot run signature {signature!r}: {first_line(error)}"
                ) from error

        yield run
