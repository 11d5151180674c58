"""Which part of a checkpoint is one TL's actor, by the names of its variables."""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from city.errors import InputError
from city.names import TL_PATTERN, contains_tl
from export.checkpoints.checkpoint import PARTS, natural, split

_TRAINING = {
    "critic", "optimizer", "optimizers", "optim", "opt", "adam", "target", "old", "oldpi", "oldactor", "value", "vf", "vpred",
    "baseline", "slots", "ema", "gradients", "discriminator",
}  # fmt: skip
_CRITIC = {"critic", "value", "vf", "vpred", "baseline"}
_SHARED = {"shared", "trunk", "common"}
_ACTOR = {"actor", "actors", "pi", "policy"}
_UNNAMED_LOG_STD = re.compile(r"(^|/)actor_output(_\d+)?/Variable(:\d+)?$")
"""Off-policy actors of the sappo dialect's trainer store their log_std under this name, as float64."""
UNKNOWN_USE = "not part of the actor's layers"
"""Of a variable in the actor's own scope that is neither part of a layer nor known to serve training."""


@functools.lru_cache(maxsize=100_000)
def name_parts(component: str) -> frozenset[str]:
    """Words of a scope's name: `actorOptimizer_1` -> actor, optimizer."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", component))


def is_training(component: str) -> bool:
    """Whether a scope only serves training: a critic's, an optimizer's, a target network's."""
    return bool(name_parts(component) & _TRAINING)


def is_actor(component: str) -> bool:
    return bool(name_parts(component) & _ACTOR) and not is_training(component)


def actor_scopes(names: Iterable[str]) -> list[str]:
    """Scopes that hold layers and serve more than training, in natural order; `.` is the whole checkpoint."""
    found = {holder for name in names if split(name)[1] in PARTS and (holder := _holder(name)) is not None}
    kept = [scope for scope in found if not any(map(is_training, scope.split("/")))]
    return sorted((scope or "." for scope in kept), key=natural)


def choose_scope(where: Path, names: Sequence[str], tl: str, scope: str | None, target_tls: Sequence[str] = ()) -> str:
    """The scope of a TL's actor, "" for the whole checkpoint.

    The given scope; else the scope with the TL's name; else, of numbered actors,
    the one at the TL's place among the training's target TLs; else the only
    actor. Raises InputError with the scopes to choose from.
    """
    if scope is not None:
        chosen = scope.strip("/") if scope != "." else ""
        if chosen and not any(name.startswith(chosen + "/") for name in names):
            raise InputError(f"{where}: has no scope {scope}; its scopes are {_list(actor_scopes(names))}")
        return chosen
    holders = {holder for name in names if split(name)[1] in PARTS and (holder := _holder(name)) is not None}
    holders = {holder for holder in holders if not any(map(is_training, holder.split("/")))}
    if tl and (named := {_up_to(holder, lambda part: contains_tl(part, tl)) for holder in holders} - {None}):
        inside = {holder for holder in holders if any(_within(holder, prefix) for prefix in named if prefix)}
        return _only(where, tl, _actors(inside) or named, "the scopes")
    actors = _actors(holders)
    if len(actors) > 1:
        return _numbered(where, tl, sorted(actors, key=natural), target_tls)
    if actors:
        return actors.pop()
    if "" in holders:
        return ""
    tops = {holder.split("/")[0] for holder in holders}
    if len(tops) == 1:
        return tops.pop()
    if not tops:
        raise InputError(
            f"{where}: holds no layers of an actor; name them such as actor/dense/kernel [inputs, units] and actor/dense/bias, "
            "actor/dense_1/kernel, ..., or as PyTorch does: 0.weight [units, inputs] and 0.bias, 2.weight, ...; "
            "greenserve inspect lists what it holds"
        )
    raise InputError(f"{where}: none of its scopes is an actor's by name; pass --scope. Top scopes: {_list(tops)}")


def unread_reason(name: str, scope: str) -> str:
    """Why an export leaves a variable of a checkpoint unread."""
    why, is_agents = _training(name)
    if why is None and scope and not name.startswith(scope + "/"):
        return "another agent" if is_agents else f"outside {scope}"
    return why or UNKNOWN_USE


def is_hyperparameter(name: str) -> bool:
    """Whether a single number only sets how training goes."""
    return bool(re.search(r"learning_rate|\blr\b|log_alpha|entropy|\bkl|beta|gamma|epsilon|clip_?(range|param)", name.lower()))


def serves_training(name: str) -> bool:
    """Whether a variable belongs to a critic, an optimizer or a copy of a network, by its name.

    A module that is an actor's too by its name, such as actor_critic, may serve both.
    """
    *holders, last = name.split("/")
    for part in holders:
        words = name_parts(part)
        if words & _TRAINING and not (words & _TRAINING <= _CRITIC and words & (_ACTOR | _SHARED)):
            return True
    return is_slot(last) or _training(last)[0] in ("counter", "training only")


def is_another_agents(name: str, scope: str, layers: Iterable[str]) -> bool:
    """Whether a variable belongs to another agent than the actor of this scope. `layers`: those that are unread."""
    own, its = (set(TL_PATTERN.findall(text)) for text in (scope, name))
    if its:
        return bool(own) and not its <= own
    top = name.split("/")[0]
    # another agent has an actor of its own
    others = [layer for layer in layers if layer.startswith(f"{top}/")] if top != scope.split("/")[0] else []
    return any(is_actor(part) for layer in others for part in layer.split("/"))


def is_observations(name: str) -> bool:
    """Whether a variable scales, shifts or clips observations or actions, by its name."""
    return bool(re.search(r"(obs|observation|state|input|action|logit)s?_?(mean|var|std|scale|shift|clip|norm)", name.lower()))


def is_normaliser(name: str) -> bool:
    """Whether a variable of any scope but a critic's normalises observations, by its name."""
    *holders, _ = name.lower().split("/")
    if any(map(is_training, holders)):
        return False
    words_ = " ".join(holders)
    return (
        bool(re.search(r"obs\w*(rms|norm|stat)|running|normali[sz]|standardi[sz]|scaler", words_)) and "batch_norm" not in words_
    )


def is_unnamed_log_std(name: str) -> bool:
    """Whether a variable has the name under which the sappo dialect's trainer stores the log_std of off-policy actors."""
    return bool(_UNNAMED_LOG_STD.search(name))


def is_slot(last: str) -> bool:
    """Whether the last part of a name is an optimizer's."""
    slot = r"(adam|adagrad|rmsprop|momentum|ftrl|adadelta|exponentialmovingaverage)(_\d+)?|beta[12]_power"
    return bool(re.fullmatch(slot, last.lower()))


@functools.lru_cache(maxsize=100_000)
def _training(name: str) -> tuple[str | None, bool]:
    """(the part of training that a variable serves, or None if its name does not show it; whether it belongs to an agent)."""
    parts = name.split("/")
    last = parts[-1].lower()
    is_agents = any(is_actor(part) or TL_PATTERN.search(part) for part in parts)
    # a slot is named after its variable, in the scope of its variable
    if is_slot(last):
        return "optimizer", is_agents
    if any(name_parts(part) & {"optimizer", "optimizers", "optim", "opt", "adam", "slots"} for part in parts):
        return "optimizer", is_agents
    if any(name_parts(part) & {"critic", "value", "vf", "vpred", "baseline"} for part in parts):
        return "critic", is_agents
    if re.search(r"(global_)?step$|save_counter|epoch|episode|iteration", last):
        return "counter", is_agents
    if re.search(r"log_?std|log_?sigma", last) or is_unnamed_log_std(name):
        return "training only", is_agents
    return None, is_agents


def group_unread(names: Iterable[str], scope: str) -> dict[str, list[str]]:
    """Unread variables by reason; those outside the actor's top scope are summarised as `Critic_0/* (6)`."""
    groups: dict[str, dict[str, int]] = {}
    for name in names:
        top, _, rest = name.partition("/")
        entry = f"{top}/*" if rest and scope and top != scope.split("/")[0] else name
        counts = groups.setdefault(unread_reason(name, scope), {})
        counts[entry] = counts.get(entry, 0) + 1
    return {
        why: [f"{entry} ({count})" if entry.endswith("/*") else entry for entry, count in sorted(counts.items())]
        for why, counts in sorted(groups.items())
    }


def _holder(name: str) -> str | None:
    """Scope of a variable's layer: `a/b/dense/kernel` -> `a/b`."""
    layer = split(name)[0]
    return layer.rpartition("/")[0] if layer else None


def _actors(holders: Iterable[str]) -> set[str]:
    """The outermost actor scopes, each extended by directly nested actor scopes."""
    actors = set()
    for holder in holders:
        parts = holder.split("/")
        for k, part in enumerate(parts):
            if is_actor(part):
                end = k + 1
                while end < len(parts) and is_actor(parts[end]):
                    end += 1
                actors.add("/".join(parts[:end]))
                break
    return actors


def _numbered(where: Path, tl: str, actors: list[str], target_tls: Sequence[str]) -> str:
    if tl not in target_tls:
        whose = f"{tl}'s" if tl else "one"
        raise InputError(
            f"{where}: holds the actors {_list(actors)}; pass --scope to choose {whose}, "
            "or set [training] target_tls to training's TLs in order"
        )
    if len(actors) != len(target_tls):
        raise InputError(
            f"{where}: holds {len(actors)} actors ({_list(actors)}), but training's target TLs are "
            f"{len(target_tls)} ({', '.join(target_tls)}); pass --scope, or fix [training] target_tls"
        )
    return actors[list(target_tls).index(tl)]


def _only(where: Path, tl: str, scopes: Iterable[str | None], what: str) -> str:
    chosen = sorted({scope for scope in scopes if scope is not None}, key=natural)
    if len(chosen) > 1:
        raise InputError(f"{where}: {what} {_list(chosen)} have {tl}'s name; pass --scope to choose the actor's")
    return chosen[0]


def _up_to(holder: str, fits: Callable[[str], bool]) -> str | None:
    parts = holder.split("/")
    return next(("/".join(parts[: k + 1]) for k, part in enumerate(parts) if fits(part)), None)


def _within(holder: str, prefix: str) -> bool:
    return holder == prefix or holder.startswith(prefix + "/")


def _list(names: Iterable[str]) -> str:
    every = sorted(names, key=natural)
    return ", ".join(every[:12]) + (", ..." if len(every) > 12 else "") or "none"
