"""Distil the four networks of street-4.policy into one: how export/pretrained/street-5.policy was made.

The earlier file is in the history: `git show 05d14382:export/pretrained/street-4.policy > street-4.policy`. Then
`python docs/research/distil_street_5.py street-4.policy OUT` writes OUT/street-5.policy in some 5 minutes on 2 cores.

Rounds after Ross et al., A Reduction of Imitation Learning to No-Regret Online Learning (2011): the student is fitted
to the teachers on all states that the heuristic (first round) and the student itself (later ones) have visited. The
target of a state is the square root of the product of the teachers' policies. On synthetic streets alone. The network
in the package was made before the last change of the rules (which link of a late lane is served next), and has the
critic of 18 PPO updates, so a repetition is like it, not equal to it.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from export.actors.phase_competition import SHAPES, Service, log_softmax, scores
from pretraining.streets import synthetic
from pretraining.streets_trainer import StreetsSettings, StreetsTrainer
from signals.approach_features import FEATURES
from training.phase_competition import policy_file
from training.phase_competition.street_learner import inputs_of
from training.ppo import taken

EPISODES, STEPS, MINIBATCH = 24, 800, 1024
DESCRIPTION = {
    "distilled_from": "the four networks of street-4.policy", "--seed": 5, "--seconds": 1200.0,
    "--streets": [f"street_{seed}" for seed in range(160)],
}  # fmt: skip
RATES = (1e-3, 1e-3, 1e-3, 1e-3, 5e-4)
EARLIER_FEATURES = [name if name != "first_wait" else "longest_red" for name in FEATURES]


def teachers_of(path):
    """The weights of each network, for today's inputs of a lane: the red is after the features, first_wait new."""
    stored = np.load(path)
    teachers = []
    for number in range(len(stored["lane_bias_1"])):
        network = {name: stored[name][number] for name in SHAPES}
        earlier = network["lane_kernel_1"]
        kernel = np.zeros(SHAPES["lane_kernel_1"], np.float32)
        red = EARLIER_FEATURES.index("longest_red")
        kernel[: len(FEATURES)], kernel[red] = earlier[: len(FEATURES)], 0
        kernel[len(FEATURES)] = earlier[red]
        kernel[len(FEATURES) + 2 :] = earlier[len(FEATURES) :]
        teachers.append([{**network, "lane_kernel_1": kernel}[name] for name in SHAPES])
    return teachers


def targets_of(teachers, decisions, junctions):
    """[N, P], the probabilities that the student is fitted to."""
    parts = []
    for begin in range(0, len(decisions["action"]), 4096):
        own = {name: values[begin : begin + 4096] for name, values in decisions.items()}
        masks = {name: values[own["junction"]] for name, values in junctions.items()}
        junction = SimpleNamespace(**masks)
        service = Service(own["protected"], own["permissive"], None, None)
        y = sum(
            np.maximum(log_softmax(scores(teacher, junction, service, own["lane_x"], own["green_x"])), -30)
            for teacher in teachers
        )
        parts.append(np.exp(log_softmax(np.where(masks["green_mask"] > 0, y, -1e9) / 2)))
    return np.concatenate(parts).astype(np.float32)


def fit(learner, decisions, junctions, rate, sharpness, rng):
    """Minimise the cross-entropy to `decisions["teacher"]`."""
    learner.set_schedules(rate, sharpness=sharpness)
    optimiser, _ = learner.optimisers
    columns, shared = learner.tensors([decisions], junctions)

    def step(columns, shared, indices):
        own = taken(columns, indices)
        inputs = inputs_of(own, shared)
        with tf.GradientTape() as tape:
            log_p = tf.maximum(learner.log_p(inputs, inputs.junctions["green_mask"] > 0), -50.0)
            loss = -tf.reduce_mean(tf.reduce_sum(own["teacher"][0] * log_p, -1))
        optimiser.step(tape.gradient(loss, learner.actor), tf.ones(1))
        return loss

    run, count = tf.function(step), len(decisions["action"])
    losses = [
        run(columns, shared, tf.constant(rng.integers(0, count, (1, MINIBATCH)).astype(np.int32))) for _ in range(STEPS)
    ]
    return float(np.mean(losses[-100:]))


def main():
    teachers, out = teachers_of(sys.argv[1]), Path(sys.argv[2])
    streets = synthetic(out / "streets", range(160))
    settings = StreetsSettings(out, tuple(streets), workers=2, seed=5)
    trainer, rng = StreetsTrainer(settings, print), np.random.default_rng(77)
    sharpness = settings.ppo.sharpness(1.0)
    episodes = []
    with trainer._executor:
        for number, rate in enumerate(RATES):
            own, _ = trainer._episodes(rng, EPISODES, trainer._learner.arrays if number else [])
            episodes += own
            decisions, junctions = trainer._batch(episodes)
            decisions["teacher"] = targets_of(teachers, decisions, junctions)
            loss = fit(trainer._learner, decisions, junctions, rate, sharpness, rng)
            print(f"round {number + 1}: {len(decisions['action'])} decisions, cross-entropy {loss:.3f}")
    policy_file.save(out / "street-5.policy", trainer._learner.arrays, sharpness, DESCRIPTION)


if __name__ == "__main__":
    main()
