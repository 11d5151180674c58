"""State and Prometheus metrics of a guard, served at its --http."""

from prometheus_client import CollectorRegistry, Gauge, Info

from city.version import VERSION
from controller.telemetry.health import Health


class GuardMetrics:
    """Health and metrics of a guard."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Info("guard_build", "Version of the guard", registry=self.registry).info({"version": VERSION})
        self.connected = Gauge(
            "guard_controller_connected", "1: a controller is connected; 0: none is", registry=self.registry
        )
        self.health = Health(status="holding the connection to SUMO")
