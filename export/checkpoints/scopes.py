"""Find one TL's actor in a checkpoint by the names of the variables."""

import functools
import itertools
import re
from collections.abc import Iterable, Sequence

from city.errors import InputError
from city.names import contains_tl, tls_in
from export.checkpoints.checkpoint import PARTS, natural, split_name
from serving.contract import PROBABILITIES, Q_VALUES

_TRAINING = {
    "critic", "optimizer", "optimizers", "optim", "opt", "adam", "target", "old", "oldpi", "oldactor", "value", "vf",
    "vpred",
    "baseline", "slots", "ema", "gradients", "discriminator",
}  # fmt: skip
_CRITIC = {"critic", "value", "vf", "vpred", "baseline"}
_OPTIMIZER = {"optimizer", "optimizers", "optim", "opt", "adam", "slots"}
_COMPANIONS = {"target", "old", "optim", "optimizer", "optimizers"}
_SHARED = {"shared", "trunk", "common"}
_ACTOR = {"actor", "actors", "pi", "policy"}
_POLICY_WORDS = re.compile(
    r"(?<![a-z])(actor|i?m?a?ppo|a[23]c|reinforce|trpo|(pi|policy|logits?|probs?)(?![a-z])|probabilit)"
)
_Q_WORDS = re.compile(r"dqn|(?<![a-z])q[sf]?(?![a-z])|(?<![a-z])q_?(net|value|head|func)|qmix|dueling")
UNKNOWN_USE = "not part of the actor's layers"
"""Reason for a variable in the actor's scope that is neither part of a layer nor known to serve training."""


@functools.lru_cache(maxsize=100_000)
def name_parts(component: str) -> frozenset[str]:
    """The words of a scope's name in lower case: `actorOptimizer_1` -> actor, optimizer."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", component))


def is_training(component: str) -> bool:
    """Tell whether a scope only serves training: a critic's, an optimizer's, a target network's."""
    return bool(name_parts(component) & _TRAINING)


def is_companion(component: str) -> bool:
    """Tell whether a scope or file only accompanies a network: an optimizer, a target network, an old copy."""
    return bool(name_parts(component) & _COMPANIONS)


def is_actor(component: str) -> bool:
    return bool(name_parts(component) & _ACTOR) and not is_training(component)


def scores_shown(texts: Iterable[str]) -> str | None:
    """The meaning of outputs that names show, `probabilities` or `q_values`; `None` if they show none or both.

    `policy_net` shows none: PyTorch's DQN tutorial calls a Q-network so.
    """
    lower = [re.sub(r"policy_?net(work)?", "", text.lower()) for text in texts]
    words = {PROBABILITIES: _POLICY_WORDS, Q_VALUES: _Q_WORDS}
    shown = [kind for kind, pattern in words.items() if any(map(pattern.search, lower))]
    return shown[0] if len(shown) == 1 else None


def choose_scope(names: Sequence[str], tl: str, scope: str | None, target_tls: Sequence[str] = ()) -> str:
    """Choose the scope of a TL's actor; "" is the whole checkpoint.

    It is the requested scope; else the scope with the TL's name; else, of numbered actors,
    the one at the TL's position among training's target TLs; else the only actor.

    Args:
        names: its variables.
        tl: the TL, or "".
        scope: the requested scope.
        target_tls: training's target TLs in order.

    Raises:
        InputError: the choice is not clear; it lists the scopes.
    """
    if scope is not None:
        chosen = scope.strip("/") if scope != "." else ""
        if chosen and not any(name.startswith(chosen + "/") for name in names):
            raise InputError(f"has no scope {scope}; its scopes are {_list(s or '.' for s in _layer_scopes(names))}")
        return chosen
    chosen = _scope_found(names, tl, target_tls)
    if tl and tls_in(chosen) and not contains_tl(chosen, tl):
        raise InputError(
            f"holds no actor of {tl}: its scope {chosen} has the name of another TL; pass --scope {chosen} if {tl} "
            "shares this actor"
        )
    return chosen


def _scope_found(names: Sequence[str], tl: str, target_tls: Sequence[str]) -> str:
    layer_scopes = _layer_scopes(names)
    of_tl = {candidate: _up_to_tl(candidate, tl) for candidate in layer_scopes if tl and contains_tl(candidate, tl)}
    if of_tl:
        chosen_scopes = _actors(of_tl) or set(of_tl.values())
        if len(chosen_scopes) > 1:
            raise InputError(
                f"the scopes {_list(chosen_scopes)} contain {tl}'s name; pass --scope to choose the actor's"
            )
        return chosen_scopes.pop()
    actors = _actors(layer_scopes)
    if len(actors) > 1:
        return _numbered(tl, sorted(actors, key=natural), target_tls)
    if actors:
        return actors.pop()
    if "" in layer_scopes:
        return ""
    tops = {candidate.split("/")[0] for candidate in layer_scopes}
    if len(tops) == 1:
        return tops.pop()
    if not tops:
        raise InputError(
            "holds no layers of an actor; name them like actor/dense/kernel [inputs, units] and "
            "actor/dense/bias, actor/dense_1/kernel, ..., or like PyTorch 0.weight [units, inputs] and 0.bias, "
            "2.weight, ...; greenserve inspect lists its variables"
        )
    raise InputError(f"no scope has the name of an actor; pass --scope. Its top scopes are {_list(tops)}")


def unread_reason(name: str, scope: str) -> str:
    """Why an export leaves a variable of a checkpoint unread."""
    reason = _training_use(name)
    if reason is None and scope and not name.startswith(scope + "/"):
        is_agents = any(is_actor(part) or tls_in(part) for part in name.split("/"))
        return "another agent" if is_agents else f"outside {scope}"
    return reason or UNKNOWN_USE


def is_hyperparameter(name: str) -> bool:
    """Tell whether a scalar is a hyperparameter of training, by its name."""
    return bool(
        re.search(r"learning_rate|\blr\b|log_alpha|entropy|\bkl|beta|gamma|epsilon|clip_?(range|param)", name.lower())
    )


def serves_training(name: str) -> bool:
    """Tell whether a variable belongs to a critic, an optimizer or a copy of a network, by its name.

    A module with the names of both, such as actor_critic, may serve the actor too.
    """
    *modules, last = name.split("/")
    for module in modules:
        words = name_parts(module)
        if words & _TRAINING and not (words & _TRAINING <= _CRITIC and words & (_ACTOR | _SHARED)):
            return True
    return is_slot(last) or _training_use(last) in ("counter", "training only")


def unknown_variables(names: Iterable[str], scope: str) -> list[str]:
    """Variables in a scope that may be part of the actor: they do not only serve training."""
    prefix = f"{scope}/" if scope else ""
    return [name for name in names if name.startswith(prefix) and unread_reason(name, scope) == UNKNOWN_USE]


def is_another_agents(name: str, scope: str, layers: Iterable[str]) -> bool:
    """Tell whether a variable is another agent's than that in `scope`. `layers`: names of the unread layers."""
    scope_tls, variable_tls = set(tls_in(scope)), set(tls_in(name))
    if variable_tls:
        return bool(scope_tls) and not variable_tls <= scope_tls
    top = name.split("/")[0]
    if top == scope.split("/")[0]:
        return False
    # another agent has its own actor
    return any(is_actor(part) for layer in layers if layer.startswith(f"{top}/") for part in layer.split("/"))


def is_observations(name: str) -> bool:
    """Tell whether a variable scales, shifts or clips observations or actions, by its name."""
    return bool(
        re.search(r"(obs|observation|state|input|action|logit)s?_?(mean|var|std|scale|shift|clip|norm)", name.lower())
    )


def is_normaliser(name: str) -> bool:
    """Tell whether a variable normalises observations, by the names of its modules. A critic's does not count."""
    *modules, _ = name.lower().split("/")
    if any(map(is_training, modules)):
        return False
    path = " ".join(modules)
    return "batch_norm" not in path and bool(
        re.search(r"obs\w*(rms|norm|stat)|running|normali[sz]|standardi[sz]|scaler", path)
    )


def is_unnamed_log_std(name: str) -> bool:
    """Tell whether a variable has the sappo trainer's name of the log_std of off-policy actors, float64."""
    return bool(re.search(r"(^|/)actor_output(_\d+)?/Variable(:\d+)?$", name))


def is_slot(last: str) -> bool:
    """Tell whether the last part of a name is that of an optimizer's slot."""
    slot = r"(adam|adagrad|rmsprop|momentum|ftrl|adadelta|exponentialmovingaverage)(_\d+)?|beta[12]_power"
    return bool(re.fullmatch(slot, last.lower()))


@functools.lru_cache(maxsize=100_000)
def _training_use(name: str) -> str | None:
    """The use of a variable in training, or `None` if its name does not show one."""
    parts = name.split("/")
    last = parts[-1].lower()
    # TF1 puts an optimizer's slot into the scope of its variable, under its own name
    if is_slot(last) or any(name_parts(part) & _OPTIMIZER for part in parts):
        return "optimizer"
    if any(name_parts(part) & _CRITIC for part in parts):
        return "critic"
    if re.search(r"(global_)?step$|save_counter|epoch|episode|iteration", last):
        return "counter"
    if re.search(r"log_?std|log_?sigma", last) or is_unnamed_log_std(name):
        return "training only"
    return None


def group_unread(names: Iterable[str], scope: str) -> dict[str, list[str]]:
    """Group unread variables by reason; those outside the actor's top scope are summarised as `Critic_0/* (6)`."""
    groups: dict[str, dict[str, int]] = {}
    for name in names:
        top, _, rest = name.partition("/")
        entry = f"{top}/*" if rest and scope and top != scope.split("/")[0] else name
        counts = groups.setdefault(unread_reason(name, scope), {})
        counts[entry] = counts.get(entry, 0) + 1
    return {
        reason: [f"{entry} ({count})" if entry.endswith("/*") else entry for entry, count in sorted(counts.items())]
        for reason, counts in sorted(groups.items())
    }


def _layer_scopes(names: Iterable[str]) -> set[str]:
    """Scopes of layers, without those that only serve training: `a/b` for `a/b/dense/kernel`."""
    layers = [layer for layer, part in map(split_name, names) if layer and part in PARTS]
    layer_scopes = {layer.rpartition("/")[0] for layer in layers}
    return {scope for scope in layer_scopes if not any(map(is_training, scope.split("/")))}


def _actors(layer_scopes: Iterable[str]) -> set[str]:
    """The outermost actor scopes, each extended by directly nested actor scopes."""
    actors = set()
    for parts in (scope.split("/") for scope in layer_scopes):
        outer = list(itertools.takewhile(lambda part: not is_actor(part), parts))
        if inner := list(itertools.takewhile(is_actor, parts[len(outer) :])):
            actors.add("/".join(outer + inner))
    return actors


def _numbered(tl: str, actors: list[str], target_tls: Sequence[str]) -> str:
    if tl not in target_tls:
        raise InputError(
            f"holds the actors {_list(actors)}; pass --scope{f' to choose that of {tl}' if tl else ''}, "
            "or set [training] target_tls to training's TLs in order"
        )
    if len(actors) != len(target_tls):
        raise InputError(
            f"holds {len(actors)} actors ({_list(actors)}), but training has "
            f"{len(target_tls)} target TLs ({', '.join(target_tls)}); pass --scope, or fix [training] target_tls"
        )
    return actors[list(target_tls).index(tl)]


def _up_to_tl(scope: str, tl: str) -> str:
    parts = scope.split("/")
    return next("/".join(parts[: k + 1]) for k, part in enumerate(parts) if contains_tl(part, tl))


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names, key=natural)
    return ", ".join(ordered[:12]) + (", ..." if len(ordered) > 12 else "") or "none"
