"""The street as a rollout sees and changes it: the model server's versions and labels, and the controller's pins."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format

from city import config, whole_files
from city.errors import InputError, ProgramFailed
from controller.alarms import GREEN_KEPT, MONITOR, OVERRIDES, REJECTIONS, UNIFORM
from controller.operator.control_client import ControlClient
from protos import control_pb2 as pb
from protos.model_server_config_pb2 import ModelServerConfig
from serving.client import Client
from serving.contract import ContractError
from serving.errors import ModelNotFound, ServingError
from serving.tf_serving import config_files, publication
from serving.tf_serving.config_files import MODELS_CONFIG, Versions

ANSWER_TIMEOUT_S = 5.0
"""Wall time within which the model server must answer for its status."""
PIN_LEASE_S = 600.0
"""Wall time after which the controller ends a canary by itself; half of it before, its pin is renewed."""
OF_MODELS = (MONITOR, REJECTIONS, OVERRIDES, GREEN_KEPT, UNIFORM)
"""Alarms that a model may cause; a missing answer is in the record, and may be the server's fault."""


class NotServed(ProgramFailed):
    """The model server has not loaded versions, or has not moved their labels."""


class Seen(NamedTuple):
    """The controller at a moment."""

    second: float
    """Simulated."""
    tls: Mapping[str, pb.TlState]
    alarms: Mapping[str, Sequence[tuple[str, float]]]
    """By TL: name and begin (seconds since 1970) of its alarms of OF_MODELS, ended ones too."""


@dataclass(frozen=True)
class ServedStreet:
    """A model server with a folder of files (`greenserve serve config`), and a controller with its control API.

    Errors are ProgramFailed (no answer) or InputError (a refusal).
    """

    city: config.City
    server: str
    clients: Sequence[Client]
    config_dir: Path
    control: ControlClient
    fleet: str

    def see(self, tls: Sequence[str]) -> Seen:
        """The TLs now."""
        state = self.control.call("ListTls", pb.ListTlsRequest(tls=tls))
        listed = self.control.call("ListAlarms", pb.ListAlarmsRequest(with_ended=True)).alarms
        alarms = {
            tl: [
                (alarm.id, alarm.since_unix_s)
                for alarm in listed
                if alarm.name in OF_MODELS and {tl, *self.city.tls[tl].signals} & set(alarm.subjects)
            ]
            for tl in tls
        }
        return Seen(state.run.second, {each.tl: each for each in state.tls}, alarms)

    def pin(self, tl: str, number: int | None, author: str, then: int | None = None) -> None:
        """Let a TL be answered by this number of its own model; None: by the run's version or fleet again.

        `then`: number that the controller pins by itself after PIN_LEASE_S, unless this is called again.
        """
        request = pb.PinModelRequest(tl=tl, version="latest" if number is None else str(number), author=author)
        if then is not None:
            request.for_seconds, request.then_version = PIN_LEASE_S, str(then)
        self.control.call("PinModel", request)

    def serve(self, target: Mapping[str, Versions], is_rollback: bool = False) -> None:
        """Load versions, then move labels, by models.config and a reload. Nothing is sent if it is so already.

        `is_rollback`: write the file also if the server does not answer, so that its restart finds it. Raises
        NotServed.
        """
        in_file = config_files.read(self.config_dir)
        try:
            with self._answering():
                states = publication.states(self.clients, target, in_file)
                if not all(_is_as(state, target) for state in (in_file, *states)):
                    path = self.config_dir / MODELS_CONFIG
                    publication.publish(self.clients, states, path, target, target, self._write)
        except ProgramFailed as error:
            if is_rollback:
                self._write(target)
            raise NotServed(str(error)) from None

    def is_served(self, tl: str, number: int) -> bool:
        """True if the TL's own model answers with this version."""
        with self._answering(), contextlib.suppress(ModelNotFound):
            return all(
                any(
                    each.version == number and each.state == publication.AVAILABLE
                    for each in client.status(tl, ANSWER_TIMEOUT_S)
                )
                for client in self.clients
            )
        return False

    def answers(self) -> bool:
        """True if the model server answers."""
        with contextlib.suppress(ProgramFailed):
            self.is_served(next(iter(self.city.tls)), 1)
            return True
        return False

    def number_in_fleet(self, tl: str) -> int | None:
        """The TL's number in the served fleet; None if it is in none."""
        with self._answering(), contextlib.suppress(ModelNotFound, ContractError):
            return self.clients[0].fleet(self.fleet).versions.get(tl) if self.fleet else None
        return None

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except ServingError as error:
            raise ProgramFailed(f"{self.server}: the model server does not answer ({error.code}: {error})") from None

    def _write(self, versions: Mapping[str, Versions]) -> ModelServerConfig:
        """Write models.config with other versions and labels of these models; all else stays."""
        path = self.config_dir / MODELS_CONFIG
        found = text_format.Parse(path.read_text(encoding="utf-8"), ModelServerConfig())
        entries = {entry.name: entry for entry in found.model_config_list.config}
        for name, wanted in versions.items():
            entry = entries.get(name)
            if entry is None:
                base = Path(next(iter(entries.values())).base_path).parent
                entry = found.model_config_list.config.add(
                    name=name, base_path=str(base / name), model_platform="tensorflow"
                )
            entry.model_version_policy.Clear()
            entry.model_version_policy.specific.versions.extend(wanted.numbers)
            entry.version_labels.clear()
            entry.version_labels.update(wanted.labels)
        whole_files.write(path, text_format.MessageToString(found), "make room, then run this again")
        return found


@contextlib.contextmanager
def connected(
    city: config.City, server: str, config_dir: Path, control: ControlClient, fleet: str
) -> Iterator[ServedStreet]:
    """The street of a model server. Raises InputError if the folder has no models.config, or an address is wrong."""
    if not config_files.read(config_dir):
        raise InputError(
            f"{config_dir / MODELS_CONFIG}: no such file; write it (greenserve serve config --all-models --out "
            f"{config_dir}), start the server with it, or pass --config"
        )
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client) for client in publication.clients(server, city.serving)]
        yield ServedStreet(city, server, clients, config_dir, control, fleet)


def _is_as(state: Mapping[str, Versions], target: Mapping[str, Versions]) -> bool:
    """True if a server or file has the versions and labels of the target."""
    none = Versions()
    return all(
        set(state.get(name, none).numbers) == set(wanted.numbers)
        and dict(state.get(name, none).labels) == wanted.labels
        for name, wanted in target.items()
    )


def check_tls(city: config.City, tls: Collection[str]) -> tuple[str, config.District | None]:
    """(name, district) of TLs; ("", None) in a city without districts. Raises InputError if they are in several."""
    districts = city.serving.districts
    of = {name for name, district in districts.items() for tl in tls if tl in district.tls}
    if len(of) > 1:
        raise InputError(
            f"{', '.join(tls)} are in the districts {', '.join(sorted(of))}; pass TLs of one of them at a time"
        )
    name = next(iter(of), "")
    return name, districts.get(name)
