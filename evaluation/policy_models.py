"""Models of a policy for any junction, for an arm: exported into a temporary folder, whatever dialect city.toml has."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from city import config
from city.errors import InputError
from simulation import model_files
from simulation.model_files import Versions

STREET = "street"


def with_street_dialect(city: config.City) -> config.City:
    """The city with the street dialect for every TL; those of another dialect get its default times.

    A TL of several signals becomes one TL for each of them. Raises InputError if another TL has the name of one of
    them.
    """
    tls: dict[str, config.TL] = {}
    for name, tl in city.tls.items():
        for own, signal in _by_signal(city, name).items():
            tls[own] = tl if tl.dialect == STREET else config.TL((signal,), STREET, own, program=tl.program)
    return replace(city, tls=tls)


def _by_signal(city: config.City, tl: str) -> dict[str, str]:
    """TL of the street dialect -> its signal, for the signals of a city's TL. Raises InputError."""
    signals = city.tls[tl].signals
    if len(signals) == 1:
        return {tl: signals[0]}
    by_signal = {f"{tl}.{k}": signal for k, signal in enumerate(signals, 1)}
    if used := next((name for name in by_signal if name in city.tls), None):
        raise InputError(
            f"{city.path}: [tl.{tl}] has several signals, which are TLs of their own under a policy for any junction; "
            f"{used} is the name of another TL; rename that one"
        )
    return by_signal


def export(city: config.City, tls: Sequence[str], policy: Path, folder: Path) -> Versions:
    """Export a policy for the TLs of a city into a folder; return TL (`with_street_dialect`) -> version. Raises
    InputError."""
    # not at the top: TensorFlow takes seconds
    from export import quiet, single_model
    from export.config import city_job
    from export.locate import candidate_of

    candidate = candidate_of(policy) if policy.is_file() else None
    if candidate is None:
        raise InputError(f"--arms: {policy} is not a policy for any junction; name a .policy file of greenserve train")
    quiet.first_session()
    own_tls = [own for tl in tls for own in _by_signal(city, tl)]
    job = city_job(with_street_dialect(city), own_tls, policy.parent, folder, candidate.number or 1)
    job = replace(job, search=replace(job.search, candidates=(candidate,)))
    for tl in own_tls:
        single_model.export(job, tl)
    return model_files.find(folder, dict.fromkeys(own_tls))
