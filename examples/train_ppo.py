"""A compact PPO trainer for the TLs of a city, in either dialect.

    python train_ppo.py --city grid/city.toml --target-tl all --episodes 150 --seed 1 --out grid/checkpoints

Every target TL has its own actor and critic and learns from its own lanes
(independent PPO); all other signals run their fixed-time plans. Observations and
the effect of actions come from the controller's own code (decision step, dialects,
effective yellow and min green, safety) over libsumo, so that training and serving
cannot diverge. Only `SamplingPolicies` differs: it samples actions and records them.

--format chooses the checkpoint format per TL: `tf1` Saver files (..._SA101_trial_3),
`tf2` tf.train.Checkpoint through a CheckpointManager, `h5` Keras weights. --resume
continues an interrupted run.
"""

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported

import checkpoint_formats
import numpy as np
import tensorflow as tf
from grid import demand
from report_page import write_curve
from tqdm import tqdm

from city import config, names, network
from city.arguments import Parser
from city.errors import InputError
from controller.assembly import assemble
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, read_trips
from export import contract

GAMMA, LAMBDA, CLIP, ENTROPY, EPOCHS, MINIBATCH = 0.97, 0.95, 0.2, 0.01, 8, 128
HIDDEN = (64, 64)
FORMATS = ("tf1", "tf2", "h5")
MIN_BATCH = 200
"""Transitions before an update; TLs that decide rarely collect them over several episodes."""
QUEUE_SCALE = 40.0
"""Halting vehicles per signal at which the reward is -1."""
MAX_DEMANDS = 24
"""Different demands that the episodes repeat."""
SAVE_EVERY = 10
"""Episodes between two saves of the training state."""


def mlp(inputs, outputs, name):
    """A ReLU network of HIDDEN layers with a linear output."""
    layers = [tf.keras.layers.Dense(n, "relu") for n in HIDDEN]
    final = tf.keras.initializers.RandomUniform(-0.01, 0.01)
    model = tf.keras.Sequential(
        [tf.keras.Input((inputs,)), *layers, tf.keras.layers.Dense(outputs, kernel_initializer=final)], name=name
    )
    return model


class Agent:
    """Actor, critic, optimizer and transitions of one TL."""

    def __init__(self, contract, learning_rate):
        self.contract = contract
        self.categorical = contract.action.kind == "categorical"
        self.actor = mlp(contract.observation.size, contract.action.size, "actor")
        self.critic = mlp(contract.observation.size, 1, "critic")
        self.log_std = tf.Variable(np.full(contract.action.size, -0.7, np.float32), name="log_std")
        self.optimizer = tf.keras.optimizers.Adam(learning_rate)
        self.actor_variables = [*self.actor.trainable_variables, *([] if self.categorical else [self.log_std])]
        self.critic_variables = self.critic.trainable_variables
        self.optimizer.build([*self.actor_variables, *self.critic_variables])
        self.entropy = tf.Variable(ENTROPY, trainable=False)
        self.update = tf.function(self._update, reduce_retracing=True)
        self.episode, self.memory = [], []
        self.refresh()

    def refresh(self):
        """Copy the weights to NumPy, which evaluates a single observation many times faster than TensorFlow."""
        self.weights = [model.get_weights() for model in (self.actor, self.critic)]
        self.std = np.exp(self.log_std.numpy())

    def forward(self, which, x):
        w = self.weights[which]
        for i in range(0, len(w) - 2, 2):
            x = np.maximum(x @ w[i] + w[i + 1], 0)
        return x @ w[-2] + w[-1]

    def act(self, x, rng, explore):
        """An action of the contract; record the transition while exploring."""
        head = self.forward(0, x)
        if self.categorical:
            p = np.exp(head - head.max())
            p /= p.sum()
            action = rng.choice(len(p), p=p) if explore else int(p.argmax())
            logp, raw = np.log(p[action] + 1e-12), np.float32(action)
            chosen = np.array([action])
        else:
            mean = np.tanh(head)
            raw = mean + self.std * rng.standard_normal(len(mean)) if explore else mean
            logp = (-0.5 * ((raw - mean) / self.std) ** 2 - np.log(self.std)).sum()
            chosen = np.clip(raw, -1, 1)
        if explore:
            self.episode.append([x, np.atleast_1d(raw), logp, self.forward(1, x)[0], 0.0])
        return chosen

    def finish_episode(self):
        """Append the episode's transitions with generalised advantage estimates (Schulman et al. 2016)."""
        advantage, next_value = 0.0, self.episode[-1][3] if self.episode else 0.0
        for x, raw, logp, value, reward in reversed(self.episode[:-1]):
            advantage = reward + GAMMA * next_value - value + GAMMA * LAMBDA * advantage
            self.memory.append((x, raw, logp, advantage, advantage + value))
            next_value = value
        self.episode = []

    def learn(self, rng, learning_rate, entropy):
        """Update actor and critic (PPO, clipped) once MIN_BATCH transitions are there."""
        self.optimizer.learning_rate.assign(learning_rate)
        self.entropy.assign(entropy)
        if len(self.memory) < MIN_BATCH:
            return
        x, raw, logp, advantage, target = (np.array(column, np.float32) for column in zip(*self.memory, strict=True))
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        for _ in range(EPOCHS):
            order = rng.permutation(len(x))
            for k in range(0, len(order), MINIBATCH):
                batch = order[k : k + MINIBATCH]
                self.update(x[batch], raw[batch], logp[batch], advantage[batch], target[batch])
        self.memory = []
        self.refresh()

    def _update(self, x, raw, logp_old, advantage, target):
        with tf.GradientTape() as tape:
            head = self.actor(x)
            if self.categorical:
                log_p = tf.nn.log_softmax(head)
                logp = tf.gather(log_p, tf.cast(raw[:, 0], tf.int32), batch_dims=1)
                entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, 1))
            else:
                z = (raw - tf.tanh(head)) / tf.exp(self.log_std)
                logp = tf.reduce_sum(-0.5 * z**2 - self.log_std, 1)
                entropy = 0.0
            ratio = tf.exp(logp - logp_old)
            clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
            gain = tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage)) + self.entropy * entropy
            error = tf.reduce_mean((self.critic(x)[:, 0] - target) ** 2)
            loss = error - gain
        # clipped separately: the critic's large early errors must not shrink the actor's steps
        actor, critic = tape.gradient(loss, [self.actor_variables, self.critic_variables])
        gradients = [*tf.clip_by_global_norm(actor, 0.5)[0], *tf.clip_by_global_norm(critic, 0.5)[0]]
        self.optimizer.apply_gradients(zip(gradients, [*self.actor_variables, *self.critic_variables], strict=True))


class SamplingPolicies:
    """The `Policies` of the decision step during training: samples actions and assigns rewards."""

    def __init__(self, agents, rng, explore):
        self.agents, self.rng, self.explore = agents, rng, explore
        self.queue = {}  # TL -> function: vehicles halting on its lanes; set once the run is assembled

    def ask(self, observations: Mapping, observed_s: float | None = None):
        answers = {}
        for tl, x in observations.items():
            agent = self.agents[tl]
            if agent.episode:
                # reward of the previous action: the queue at its end, scaled to about -1 .. 0
                agent.episode[-1][4] = -self.queue[tl]() / (QUEUE_SCALE * len(agent.contract.signal_ids))
            answers[tl] = agent.act(x, self.rng, self.explore)
        return answers


def run_episode(city, agents, rng, route_file, seed, explore, tripinfo, end_s):
    """Simulate an episode up to second end_s; return its trips."""
    street = network.of_city(city)
    options = ["-c", city.network.sumocfg, "--route-files", route_file, "--seed", seed, "--no-step-log", "--no-warnings"]
    options += ["--tripinfo-output", tripinfo, *TRIPINFO_OPTIONS]
    connection = start_libsumo([str(option) for option in options])
    try:
        policies = SamplingPolicies(agents, rng, explore)
        contracts = [agent.contract for agent in agents.values()]
        loop = assemble(connection, street, contracts, policies, city.safety, city.controller)
        rows = {c.tl: [connection.lanes.index(lane) for s in c.signals for lane in s.lane_ids] for c in contracts}
        policies.queue = {tl: (lambda own=own: connection.readings.halting[own].sum()) for tl, own in rows.items()}
        while loop.now < end_s:
            loop.step(end_s)
    finally:
        connection.close()
    for agent in agents.values():
        agent.finish_episode()
    return read_trips(tripinfo)


def parse_formats(items):
    """Checkpoint formats by TL. Raises InputError."""
    formats = {}
    for item in items:
        tl, _, kind = item.partition("=")
        if kind not in FORMATS:
            raise InputError(f"--format {item!r} must be TL=FORMAT with one of {', '.join(FORMATS)}, such as SA101=tf1")
        formats[tl] = kind
    return formats


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--city", type=Path, default=Path("city.toml"), help="city.toml (default: ./city.toml)")
    parser.add_argument("--target-tl", action="append", metavar="TL", help="TLs to train (default: all)")
    parser.add_argument("--episodes", type=int, default=150, help="episodes in all (default: 150)")
    parser.add_argument("--seconds", type=float, default=3600, metavar="S", help="simulated time of an episode (default: 3600)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--trial", type=int, default=1, help="model number of the checkpoints (default: 1)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="initial; falls linearly to 5 %% (default: 0.001)")
    parser.add_argument("--format", action="append", default=[], metavar="TL=FORMAT", help="tf1, tf2 or h5 (default: tf2)")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="folder of the checkpoints (default: checkpoints)")
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    args = parser.parse_args()
    city = config.load(args.city)
    street = network.of_city(city)
    targets = names.select(args.target_tl or ["all"], list(city.tls), "--target-tl")
    formats = parse_formats(args.format)
    tf.keras.utils.set_random_seed(args.seed)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    agents = {tl: Agent(contract.build(city, city.tls[tl], street), args.learning_rate) for tl in targets}
    args.out.mkdir(parents=True, exist_ok=True)
    progress = checkpoint_formats.Progress(args.out / f".trial_{args.trial}.progress", agents)
    first = progress.restore() if args.resume else 0
    curve = args.out / f"trial_{args.trial}_curve.csv"
    # episodes after the newest saved state are simulated again
    rows = curve.read_text().splitlines()[1 : first + 1] if first and curve.is_file() else []
    curve.write_text("\n".join(["episode,mean_delay_s,trips", *rows]) + "\n")
    with tempfile.TemporaryDirectory() as scratch, tqdm(range(first, args.episodes), disable=None) as bar:
        demands = [Path(scratch) / f"{k}.rou.xml" for k in range(min(MAX_DEMANDS, args.episodes))]
        for k, path in enumerate(demands):
            demand.write(path, 1000 * args.seed + k)
        for episode in bar:
            # a generator per episode, so that a resumed run repeats the same episodes
            rng = np.random.default_rng([args.seed, episode])
            seed = int(rng.integers(1, 10_000))
            route_file, tripinfo = demands[episode % len(demands)], Path(scratch) / "tripinfo.xml"
            trips = run_episode(city, agents, rng, route_file, seed, True, tripinfo, args.seconds)
            for agent in agents.values():
                decay = 1.0 - 0.95 * episode / args.episodes
                agent.learn(rng, args.learning_rate * decay, ENTROPY * decay)
            with curve.open("a", newline="") as file:
                csv.writer(file).writerow([episode, round(trips.delay_s, 2), trips.finished])
            bar.set_postfix(delay_s=f"{trips.delay_s:.1f}")
            if bar.disable:  # without a terminal: a line per episode instead of a bar
                print(f"episode {episode}: mean delay {trips.delay_s:.1f} s, {trips.finished} trips", file=sys.stderr, flush=True)
            if episode % SAVE_EVERY == SAVE_EVERY - 1 or episode + 1 == args.episodes:
                progress.save(episode + 1)
    for tl, agent in agents.items():
        path = checkpoint_formats.write(formats.get(tl, "tf2"), args.out, agent, args.trial)
        print(f"{tl}: {path}")
    if args.episodes > 1:
        print(f"curve: {write_curve(curve)}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("error: interrupted; continue with --resume")
