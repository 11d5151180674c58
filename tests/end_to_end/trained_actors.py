"""Weights of trained actors for the runs that are compared with sumo-rl: layers of (kernel, bias), tanh between
them."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

SGD_STEPS, LEARNING_RATE = 300, 0.5


def of_stable_baselines3(folder: Path):
    """The actor that stable-baselines3's PPO trained in sumo-rl on cologne1: {signal: layers}.

    A state dict of PyTorch keeps its tensors in order, as raw float32; expected.npz has the library's own logits.
    """
    described = json.loads((folder / "meta.json").read_text())
    state_dict = zipfile.ZipFile(io.BytesIO(zipfile.ZipFile(folder / "model.zip").read("policy.pth")))
    tensors = {
        name: np.frombuffer(state_dict.read(f"archive/data/{k}"), "<f4").reshape(shape).astype(float)
        for k, (name, shape) in enumerate(described["policy_tensors"].items())
    }
    names = ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net")
    layers = [(tensors[f"{name}.weight"].T, tensors[f"{name}.bias"]) for name in names]
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(evaluate(layers, expected["x"]), expected["y_logits"], atol=1e-5)
    return {described["signal"]: layers}


def fitted(decisions, teacher):
    """Linear actors fitted to a teacher's choices for recorded observations: {signal: layers}.

    Args:
        decisions: of a run, (actions, observations) by signal.
        teacher: policies of the same signals.
    """
    actors = {}
    for signal in decisions[0][1]:
        x = np.array([observations[signal] for _, observations in decisions if signal in observations])
        chosen = np.array([teacher.ask({signal: row})[signal].action[0] for row in x])
        wanted = np.eye(chosen.max() + 1)[chosen]
        kernel, bias = np.zeros((x.shape[1], wanted.shape[1])), np.zeros(wanted.shape[1])
        for _ in range(SGD_STEPS):
            logits = x @ kernel + bias
            probabilities = np.exp(logits - logits.max(1, keepdims=True))
            error = probabilities / probabilities.sum(1, keepdims=True) - wanted
            kernel -= LEARNING_RATE * x.T @ error / len(x)
            bias -= LEARNING_RATE * error.mean(0)
        actors[signal] = [(kernel, bias)]
    return actors


def evaluate(layers, x):
    """Logits [batch, choices] of observations [batch, inputs]."""
    for kernel, bias in layers[:-1]:
        x = np.tanh(x @ kernel + bias)
    return x @ layers[-1][0] + layers[-1][1]


def write(path: Path, actors):
    path.write_text(json.dumps(actors, default=np.ndarray.tolist))


def read(path: Path):
    actors = json.loads(path.read_text())
    return {signal: [(np.array(kernel), np.array(bias)) for kernel, bias in actors[signal]] for signal in actors}
