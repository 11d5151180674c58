"""A compact PPO trainer for the TLs of a city, in either dialect.

    python train_ppo.py --city grid/city.toml --target-tl all --episodes 150 --seed 1 --out grid/checkpoints

Every target TL has an actor and a critic of its own and learns from its own
lanes (independent PPO); signals that are no target run their fixed plans. What
an agent sees and what its actions do is the controller's own code (decision
step, observation, signal timing, safety), over libsumo: training and serving
cannot drift apart. Only `ask` differs: here it samples, and remembers.

Checkpoints come as real teams write them, by --format: `tf1` Saver files
(..._SA101_trial_3), `tf2` tf.train.Checkpoint under a CheckpointManager, `h5`
Keras weights. Trials count up; a run that was cut off goes on with --resume.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import checkpoint_formats
import numpy as np
import tensorflow as tf
from grid import demand
from report_page import write_curve
from tqdm import tqdm

from city import config, names, network
from controller.assembly import assemble
from controller.sumo.libsumo_link import start_libsumo
from export import contract

GAMMA, LAMBDA, CLIP, ENTROPY, EPOCHS, MINIBATCH = 0.97, 0.95, 0.2, 0.01, 8, 128
HIDDEN = (64, 64)
MIN_BATCH = 200  # transitions before an update; slow deciders gather them over several episodes


def mlp(inputs, outputs, name):
    layers = [tf.keras.layers.Dense(n, "relu") for n in HIDDEN]
    final = tf.keras.initializers.RandomUniform(-0.01, 0.01)
    model = tf.keras.Sequential(
        [tf.keras.Input((inputs,)), *layers, tf.keras.layers.Dense(outputs, kernel_initializer=final)], name=name
    )
    return model


class Agent:
    """Actor, critic, optimizer and memory of one TL."""

    def __init__(self, policy, learning_rate):
        self.policy = policy
        self.categorical = policy.action.kind == "categorical"
        self.actor = mlp(policy.observation.size, policy.action.size, "actor")
        self.critic = mlp(policy.observation.size, 1, "critic")
        self.log_std = tf.Variable(np.full(policy.action.size, -0.7, np.float32), name="log_std")
        self.optimizer = tf.keras.optimizers.Adam(learning_rate)
        self.actor_variables = [*self.actor.trainable_variables, *([] if self.categorical else [self.log_std])]
        self.critic_variables = self.critic.trainable_variables
        self.optimizer.build([*self.actor_variables, *self.critic_variables])
        self.entropy = tf.Variable(ENTROPY, trainable=False)
        self.update = tf.function(self._update, reduce_retracing=True)
        self.episode, self.memory = [], []
        self.refresh()

    def refresh(self):
        """NumPy copies of the weights: many times faster than TensorFlow for one observation."""
        self.weights = [model.get_weights() for model in (self.actor, self.critic)]
        self.std = np.exp(self.log_std.numpy())

    def forward(self, which, x):
        w = self.weights[which]
        for i in range(0, len(w) - 2, 2):
            x = np.maximum(x @ w[i] + w[i + 1], 0)
        return x @ w[-2] + w[-1]

    def act(self, x, rng, explore):
        """An action in the contract's terms; while exploring, remember it."""
        head = self.forward(0, x)
        if self.categorical:
            p = np.exp(head - head.max())
            p /= p.sum()
            action = rng.choice(len(p), p=p) if explore else int(p.argmax())
            logp, raw = np.log(p[action] + 1e-12), np.float32(action)
            given = np.array([action])
        else:
            mean = np.tanh(head)
            raw = mean + self.std * rng.standard_normal(len(mean)) if explore else mean
            logp = (-0.5 * ((raw - mean) / self.std) ** 2 - np.log(self.std)).sum()
            given = np.clip(raw, -1, 1)
        if explore:
            self.episode.append([x, np.atleast_1d(raw), logp, self.forward(1, x)[0], 0.0])
        return given

    def finish_episode(self):
        """Generalised advantages (Schulman et al. 2016) of the episode, into the memory."""
        advantage, following = 0.0, self.episode[-1][3] if self.episode else 0.0
        for x, raw, logp, value, reward in reversed(self.episode[:-1]):
            advantage = reward + GAMMA * following - value + GAMMA * LAMBDA * advantage
            self.memory.append((x, raw, logp, advantage, advantage + value))
            following = value
        self.episode = []

    def learn(self, rng, learning_rate, entropy):
        self.optimizer.learning_rate.assign(learning_rate)
        self.entropy.assign(entropy)
        if len(self.memory) < MIN_BATCH:
            return
        x, raw, logp, advantage, target = (np.array(column, np.float32) for column in zip(*self.memory, strict=True))
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        for _ in range(EPOCHS):
            order = rng.permutation(len(x))
            for k in range(0, len(order), MINIBATCH):
                part = order[k : k + MINIBATCH]
                self.update(x[part], raw[part], logp[part], advantage[part], target[part])
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
        # clipped apart: the critic's early, large errors must not shrink the actor's steps
        actor, critic = tape.gradient(loss, [self.actor_variables, self.critic_variables])
        gradients = [*tf.clip_by_global_norm(actor, 0.5)[0], *tf.clip_by_global_norm(critic, 0.5)[0]]
        self.optimizer.apply_gradients(zip(gradients, [*self.actor_variables, *self.critic_variables], strict=True))


class Sampling:
    """The controller's `Policies`, asked by its decision step: act, and be rewarded."""

    def __init__(self, agents, rng, explore):
        self.agents, self.rng, self.explore = agents, rng, explore
        self.queue = {}  # TL -> vehicles that halt on its lanes now; set when the run is assembled

    def ask(self, observations: Mapping, observed_s: float | None = None):
        answers = {}
        for tl, x in observations.items():
            agent = self.agents[tl]
            if agent.episode:
                # what the last action led to: the queue at its end, scaled to about -1 .. 0
                agent.episode[-1][4] = -self.queue[tl]() / (40.0 * len(agent.policy.signal_ids))
            answers[tl] = agent.act(x, self.rng, self.explore)
        return answers


def run_episode(city, agents, rng, route_file, seed, explore, tripinfo, end_s):
    """One simulated morning until second end_s; the trips it had."""
    street = network.of_city(city)
    options = ["-c", city.network.sumocfg, "--route-files", route_file, "--seed", seed, "--no-step-log", "--no-warnings"]
    options += ["--tripinfo-output", tripinfo, *tripinfo.TRIPINFO_OPTIONS]
    link = start_libsumo([str(option) for option in options])
    try:
        policies = Sampling(agents, rng, explore)
        contracts = [agent.policy for agent in agents.values()]
        steps = assemble(link, street, contracts, policies, city.safety, city.controller)
        rows = {p.tl: [link.lanes.index(lane) for s in p.signals for lane in s.lane_ids] for p in contracts}
        policies.queue = {tl: (lambda at=at: link.readings.halting[at].sum()) for tl, at in rows.items()}
        while steps.now < end_s:
            steps.step(end_s)
    finally:
        link.close()
    for agent in agents.values():
        agent.finish_episode()
    return tripinfo.read_trips(tripinfo)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--city", type=Path, default=Path("city.toml"))
    parser.add_argument("--target-tl", action="append", help="TLs to train (default: all); the others run their plans")
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=3600, help="simulated seconds of an episode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, default=1, help="the model number of this run's checkpoints")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at the start; falls linearly to 5 %%")
    parser.add_argument("--format", action="append", default=[], metavar="TL=FORMAT", help="tf1, tf2 or h5 (default: tf2)")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--resume", action="store_true", help="go on where the run in --out was cut off")
    args = parser.parse_args()
    city = config.load(args.city)
    street = network.of_city(city)
    targets = names.select(args.target_tl or ["all"], list(city.tls), "--target-tl")
    formats = dict(item.split("=", 1) for item in args.format)
    tf.keras.utils.set_random_seed(args.seed)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    agents = {tl: Agent(contract.build(city, city.tls[tl], street), args.learning_rate) for tl in targets}
    args.out.mkdir(parents=True, exist_ok=True)
    progress = checkpoint_formats.Progress(args.out / f".trial_{args.trial}.progress", agents)
    first = progress.restore() if args.resume else 0
    curve = args.out / f"trial_{args.trial}_curve.csv"
    if first == 0:
        curve.write_text("episode,mean_delay_s,trips\n")
    with tempfile.TemporaryDirectory() as scratch, tqdm(range(first, args.episodes), disable=None) as bar:
        mornings = [Path(scratch) / f"{k}.rou.xml" for k in range(min(24, args.episodes))]
        for k, path in enumerate(mornings):
            demand.write(path, 1000 * args.seed + k)
        for episode in bar:
            # a generator per episode: a resumed run takes the same course
            rng = np.random.default_rng([args.seed, episode])
            seed = int(rng.integers(1, 10_000))
            route_file, tripinfo = mornings[episode % len(mornings)], Path(scratch) / "tripinfo.xml"
            trips = run_episode(city, agents, rng, route_file, seed, True, tripinfo, args.seconds)
            for agent in agents.values():
                left = 1.0 - 0.95 * episode / args.episodes
                agent.learn(rng, args.learning_rate * left, ENTROPY * left)
            with curve.open("a", newline="") as file:
                csv.writer(file).writerow([episode, round(trips.delay_s, 2), trips.finished])
            bar.set_postfix(delay_s=f"{trips.delay_s:.1f}")
            if bar.disable:  # no terminal: lines instead of a bar
                print(f"episode {episode}: mean delay {trips.delay_s:.1f} s, {trips.finished} trips", file=sys.stderr, flush=True)
            if episode % 10 == 9 or episode + 1 == args.episodes:
                progress.save(episode + 1)
    for tl, agent in agents.items():
        path = checkpoint_formats.write(formats.get(tl, "tf2"), args.out, agent, args.trial)
        print(f"{tl}: {path}")
    if args.episodes > 1:
        print(f"curve: {write_curve(curve)}")


if __name__ == "__main__":
    main()
