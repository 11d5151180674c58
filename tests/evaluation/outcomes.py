"""An outcome without delays, for `dataclasses.replace`."""

from evaluation.simulation import Outcome

ZERO = Outcome(
    finished=1, total=1, delay_s=0.0, duration_s=0.0, waiting_s=0.0, stops=0.0, emissions_g={}, arm="", seed=0,
    delay_by_tl={}, worst_road="", worst_road_s=0.0, overrides_by_reason={}, delay_quantiles_s=(), delay_by_departure={},
    queue_by_road={},
)  # fmt: skip
