"""How the sample trainer writes its checkpoints: the three ways real teams do."""

import tensorflow as tf


def write(kind, folder, agent, trial):
    """Write one agent as `tf1`, `tf2` or `h5`; returns the path."""
    return {"tf1": _tf1, "tf2": _tf2, "h5": _h5}[kind](folder, agent, trial)


def _tf1(folder, agent, trial):
    """TF1 Saver: variables by name, optimizer slots and critic beside the actor."""
    prefix = folder / f"PPO-_{agent.policy.tl}_trial_{trial}"
    everything = {"actor": agent.actor.get_weights(), "critic": agent.critic.get_weights()}
    log_std = agent.log_std.numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = []
        for scope, weights in everything.items():
            for i, value in enumerate(weights):
                layer = "dense" if i < 2 else f"dense_{i // 2}"
                name = f"{scope}/{layer}/{'bias' if i % 2 else 'kernel'}"
                values.append((tf.compat.v1.get_variable(name, initializer=value), value))
        if not agent.categorical:
            tf.compat.v1.get_variable("actor/log_std", initializer=log_std)
        step = tf.compat.v1.train.get_or_create_global_step()
        loss = tf.add_n([tf.reduce_sum(variable**2) for variable, _ in values])
        tf.compat.v1.train.AdamOptimizer().minimize(loss, global_step=step)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(prefix), write_state=False)
    return prefix


def _tf2(folder, agent, trial):
    """tf.train.Checkpoint under a CheckpointManager, everything side by side."""
    optimizer = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(agent.optimizer.variables)})
    checkpoint = tf.train.Checkpoint(
        step=tf.Variable(trial), optimizer=optimizer, actor=agent.actor, critic=agent.critic, log_std=agent.log_std
    )
    manager = tf.train.CheckpointManager(
        checkpoint, str(folder / agent.policy.tl), max_to_keep=3, checkpoint_name=agent.policy.tl
    )
    return manager.save(checkpoint_number=trial)


def _h5(folder, agent, trial):
    """Keras weights, one file a TL; the file name tells the settings."""
    policy = agent.policy
    sizes = ", ".join(str(layer.units) for layer in agent.actor.layers[:-1])
    settings = f"_state_{policy.observation.state}_action_{policy.action.kind}_netSz_({sizes})"
    if policy.observation.dialect == "sumo-rl":
        settings = f"_netSz_({sizes})"
    name = f"{'SAPPO' if policy.observation.dialect == 'sappo' else 'PPO'}-{settings}-trial_{trial}_{policy.tl}_actor"
    path = folder / f"{name}.weights.h5"
    agent.actor.save_weights(path)
    return path


class Progress:
    """Everything a cut-off run needs to go on, in one checkpoint."""

    def __init__(self, folder, agents):
        parts = {
            tl: tf.train.Checkpoint(actor=agent.actor, critic=agent.critic, log_std=agent.log_std, optimizer=agent.optimizer)
            for tl, agent in agents.items()
        }
        self._agents = agents
        self._episode = tf.Variable(0, dtype=tf.int64)
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(episode=self._episode, **parts), str(folder), max_to_keep=1
        )

    def save(self, episode):
        self._episode.assign(episode)
        self._manager.save(checkpoint_number=episode)

    def restore(self):
        """The episode to go on with; 0 where there is nothing to resume."""
        if self._manager.restore_or_initialize() is not None:
            for agent in self._agents.values():
                agent.refresh()
        return int(self._episode.numpy())
