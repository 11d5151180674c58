"""The sample trainer's checkpoint formats: TF1 Saver, tf.train.Checkpoint, Keras weights."""

import tensorflow as tf


def write(kind, folder, agent, trial):
    """Write an agent as `tf1`, `tf2` or `h5`; return the path."""
    return {"tf1": _tf1, "tf2": _tf2, "h5": _h5}[kind](folder, agent, trial)


def _tf1(folder, agent, trial):
    """Write with the TF1 Saver: variables by name, with critic and optimizer slots."""
    prefix = folder / f"PPO-_{agent.contract.tl}_trial_{trial}"
    models = {"actor": agent.actor.get_weights(), "critic": agent.critic.get_weights()}
    log_std = agent.log_std.numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = []
        for scope, weights in models.items():
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
    """Write a tf.train.Checkpoint through a CheckpointManager, with actor, critic and optimizer."""
    optimizer = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(agent.optimizer.variables)})
    checkpoint = tf.train.Checkpoint(
        step=tf.Variable(trial), optimizer=optimizer, actor=agent.actor, critic=agent.critic, log_std=agent.log_std
    )
    manager = tf.train.CheckpointManager(
        checkpoint, str(folder / agent.contract.tl), max_to_keep=3, checkpoint_name=agent.contract.tl
    )
    return manager.save(checkpoint_number=trial)


def _h5(folder, agent, trial):
    """Write Keras weights, one file per TL; the file name holds the settings."""
    contract = agent.contract
    sizes = ", ".join(str(layer.units) for layer in agent.actor.layers[:-1])
    settings = f"_state_{contract.observation.state}_action_{contract.action.kind}_netSz_({sizes})"
    if contract.observation.dialect == "sumo-rl":
        settings = f"_netSz_({sizes})"
    name = f"{'SAPPO' if contract.observation.dialect == 'sappo' else 'PPO'}-{settings}-trial_{trial}_{contract.tl}_actor"
    path = folder / f"{name}.weights.h5"
    agent.actor.save_weights(path)
    return path


class Progress:
    """The state that an interrupted training needs to resume, in one checkpoint."""

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
        """Restore the newest state; return the next episode, 0 if there is none."""
        if self._manager.restore_or_initialize() is not None:
            for agent in self._agents.values():
                agent.refresh()
        return int(self._episode.numpy())
