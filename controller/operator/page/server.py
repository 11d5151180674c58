"""The live page's server, in a thread of its own.

GET  /            the page; /static/... its files
GET  /city.json   what never changes (street_data), gzip
GET  /live        WebSocket (frame_server): a frame is sent as soon as there is something new, or after IDLE_INTERVAL_S
GET  /log.csv     operators' commands, also those before the controller's start
POST /command     {"action": ..., "author": ..., ...} with the token: see controls.ACTIONS
"""

import asyncio
import contextlib
import copy
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, web

from controller.operator.command_log import as_csv
from controller.operator.control_messages import OperatorError, fields
from controller.operator.page import frames, panels
from controller.operator.page.collector import Collected, Collector
from controller.operator.page.controls import parse_command
from controller.operator.page.exports import Exports
from controller.operator.page.frame_server import FrameRequest, FrameServer, Watcher
from controller.operator.page.frames import View
from controller.operator.page.panels import RATE_S, STAGES, WatchedTl
from controller.operator.page.site import Site
from controller.operator.run_state import MAX_LOGGED_COMMANDS, KeptStep
from controller.operator.service import OperatorService
from controller.recording.traffic_minutes import MINUTE_S, Minutes
from controller.telemetry.traffic import TrafficMeter
from protos import control_pb2

MIN_FRAME_INTERVAL_S = 0.1
"""Wall time between two frames of a watcher, at least: vehicles are not read more often either."""
FRAME_SHARE = 0.03
"""Share of a processor's time that making frames for all watchers takes at most."""
FIRST_SHARE = 0.05
"""Share of a processor's time that first frames take at most, which have a TL's whole history."""
KEEPALIVE_INTERVAL_S = 2.0
"""Wall time after which a watcher whose frame is not due gets an empty one."""
IDLE_INTERVAL_S = 1.0
"""Wall time after which a watcher gets a frame without news: it shows that the connection lives."""
CITY_INTERVAL_S = 1.0
"""Wall time between two panels of the city in the frames of a watcher."""
STALLED_S = 5.0
"""Wall time after which a watcher that asks for nothing counts as absent: nothing is read for it."""
COMMAND_THREADS = 4
RUN_FAILED = 4001
"""Close code of a run that has ended by an error."""
LAST_FRAME_S = 0.2
"""Wall time in which watchers get the frame that says that the run has ended."""
NOW = (
    "mode", "since_s", "set_by", "set_reason", "until_s", "model", "version", "pinned_version", "reason", "decided_s",
)  # fmt: skip
"""Fields of a TL's state in the operator API that its panel shows."""


class LiveWatcher(Watcher):
    """A browser that has the live page open: what it asks for, and what it has already."""

    def __init__(self, connection: web.WebSocketResponse) -> None:
        super().__init__(connection)
        self.view: View | None = None
        self.asked_s = 0.0
        """Wall time of the newest request."""
        self.forget()

        self.sent_s = -math.inf

    def forget(self) -> None:
        """Forget what the browser has, so that the next frame has everything."""
        self.city_s = -math.inf
        self.step_number = self.collected_number = -2
        self.sent_view: View | None = None
        self.at_s = 0.0
        self.states: Mapping[int, str] = {}
        self.modes = b""
        self.tl: WatchedTl | None = None
        self.export: dict[str, Any] = {}
        """Where its TL's model comes from, as it was sent last."""
        self.has_end = False
        """True once it knows that the run has ended."""
        self.first_s: float | None = None
        """Wall time from which its first frame of a TL may be made; None: it waits for none."""


class PageServer(FrameServer[LiveWatcher]):
    """Serves the page of one run."""

    watcher_type = LiveWatcher
    log = logging.getLogger("controller")
    output = "the controller's log"

    def __init__(
        self,
        site: Site,
        service: OperatorService,
        exports: Exports,
        collector: Collector,
        traffic: TrafficMeter,
        earlier: Minutes,
    ) -> None:
        """Prepare the page; `start` answers requests.

        Args:
            site: the page's address and files.
            service: of the run.
            exports: where its models come from.
            collector: reads from SUMO for the page.
            traffic: of the run.
            earlier: that the traffic is compared with.
        """
        super().__init__(site)
        self._street = site.street
        self._service, self._state = service, service.state
        self._exports = exports
        self._collector, self._traffic, self._earlier = collector, traffic, earlier
        self._awaiting: set[LiveWatcher] = set()
        """Those that have asked and wait for news: a step wakes the page for them alone."""
        self._made_s = 0.0
        """Processor time of making a frame that is not a first one, smoothed."""
        self._next_first_s = -math.inf
        """Wall time from which first frames may be made again: all that wait then, because they share their parts."""
        self._shared: dict[Any, Any] = {}
        """Parts of frames that are made once for all watchers."""
        self._shown = self._state.newest, collector.collected
        """The step and the reading that the parts are of."""
        self._shown_s, self._shown_sequence = -math.inf, -1
        """Wall time since when, and the count of steps and commands then."""
        self._city: tuple[float, bytes] = -math.inf, b""
        """Wall time of the city's newest panel, and the panel."""
        self._wake_lock = threading.Lock()
        self._is_waking = False
        self._pool = ThreadPoolExecutor(COMMAND_THREADS, "page-command")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page", daemon=True)

    def start(self) -> None:
        """Answer requests from now on."""
        self._loop.run_until_complete(
            self.begin(web.post("/command", self._command), web.get("/log.csv", self._log_csv))
        )
        self._state.watchers.wake_page = self._wake
        self._thread.start()

    def stop(self) -> None:
        """Send every watcher a last frame if it waits for one, close, and end the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _close(self) -> None:
        self._collector.wanted_view = None
        if any(watcher.request is not None for watcher in self.watchers):
            await asyncio.sleep(LAST_FRAME_S)
        failure = self._state.failure
        await self.end(failure or "the run has ended", RUN_FAILED if failure else WSCloseCode.GOING_AWAY)

    # called by the thread of the decision loop

    def _wake(self) -> None:
        """Notify the waiting watchers of a new step; one call to the page's loop at a time."""
        if not self._awaiting:
            return
        with self._wake_lock:
            if self._is_waking:
                return
            self._is_waking = True
        with contextlib.suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._woken)

    # called by the page's thread

    def _woken(self) -> None:
        with self._wake_lock:
            self._is_waking = False
        for watcher in self._awaiting:
            watcher.changed.set()

    async def _command(self, request: web.Request) -> web.Response:
        if not self.site.gate.has_token(request.headers):
            return _error(
                401, "commands need the token of the address that the controller has printed; open that address"
            )
        if request.content_type != "application/json":
            return _error(415, "a command must be application/json")
        try:
            command = json.loads(await request.read())
        except (ValueError, RecursionError):
            return _error(400, "the command is not JSON")
        try:
            method, message = parse_command(command)
            await self._loop.run_in_executor(self._pool, self._service.call, method, message, message.author)
        except OperatorError as error:
            return _error(error.status.value, str(error))
        self._city = -math.inf, b""
        for watcher in self.watchers:
            watcher.city_s = -math.inf  # all see the command at once
            watcher.changed.set()
        return web.json_response({"run": fields(self._service.run())})

    async def _log_csv(self, request: web.Request) -> web.Response:
        name = "commands.csv"
        return web.Response(
            text=as_csv(self._state.commands(MAX_LOGGED_COMMANDS)),
            content_type="text/csv",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    def take(self, watcher: LiveWatcher, request: FrameRequest) -> None:
        if request.is_fresh:
            watcher.forget()
        watcher.view, watcher.asked_s = request.view, time.monotonic()
        self.changed_watchers()
        self._loop.call_later(STALLED_S, self.changed_watchers)

    def changed_watchers(self) -> None:
        """Ask for what the present watchers see."""
        now_s = time.monotonic()
        views = [watcher.view for watcher in self.watchers if watcher.view and now_s - watcher.asked_s < STALLED_S]
        if not views:
            self._collector.wanted_view = None
            return
        x0, y0, x1, y1 = zip(*views, strict=True)
        self._collector.wanted_view = (min(x0), min(y0), max(x1), max(y1))

    async def next_frame(self, watcher: LiveWatcher) -> bytes:
        """Wait until there is a request and something new, or the time is over, and make the frame."""
        while True:
            watcher.changed.clear()
            if watcher.request is not None:
                self._awaiting.add(watcher)  # before it looks, so that no step is missed
            try:
                wait_s = self._wait_s(watcher)
                if wait_s > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_s if math.isfinite(wait_s) else None):
                            await watcher.changed.wait()
                    continue
            finally:
                self._awaiting.discard(watcher)
            pause_s = self._pause_s(watcher)
            if pause_s <= 0:
                break
            await asyncio.sleep(min(pause_s, KEEPALIVE_INTERVAL_S))
            if pause_s > KEEPALIVE_INTERVAL_S:
                watcher.request = None
                return frames.encode(max(watcher.step_number + 1, 0), watcher.at_s, False, ())
        is_first = self._is_first(watcher)
        begin_s = time.thread_time()
        frame = self._frame(watcher)
        took_s = time.thread_time() - begin_s  # of the processor
        if is_first:
            watcher.first_s = None
            self._next_first_s = max(self._next_first_s, time.monotonic()) + took_s / FIRST_SHARE
            return frame
        # the frame that makes the shared parts takes longest: a mean over several rounds of all watchers
        self._made_s += (took_s - self._made_s) / (5 * max(len(self.watchers), 1))
        return frame

    def _is_first(self, watcher: LiveWatcher) -> bool:
        """True if the frame of a watcher's request begins the lists of its TL anew."""
        assert watcher.request is not None
        tl = self._known(watcher.request.tl)
        return tl is not None and (watcher.tl is None or watcher.tl.contract.tl != tl)

    def _pause_s(self, watcher: LiveWatcher) -> float:
        """Wall time until a watcher's next frame may be made: news come at once, but once in an interval at most.

        The intervals of several watchers begin together, so that these get the same news and share parts of a frame.
        """
        interval_s = MIN_FRAME_INTERVAL_S
        while interval_s < self._made_s * len(self.watchers) / FRAME_SHARE:
            interval_s *= 2
        next_s = watcher.sent_s + interval_s
        if len(self.watchers) > 1 and math.isfinite(next_s):
            next_s = round(next_s / interval_s) * interval_s
        if not self._is_first(watcher):
            watcher.first_s = None
        elif watcher.first_s is None:
            watcher.first_s = self._next_first_s
        return max(next_s, watcher.first_s or -math.inf) - time.monotonic()

    def _wait_s(self, watcher: LiveWatcher) -> float:
        """Wall time for which a watcher waits for news; 0: there are some; inf: it has not asked."""
        request = watcher.request
        if request is None:
            return math.inf
        is_new = (
            watcher.step_number != self._state.newest.number
            or watcher.collected_number != self._collector.collected.number
            or watcher.sent_view != request.view
            or watcher.city_s == -math.inf
            or watcher.has_end != self._state.watchers.is_closed
            or (watcher.tl.contract.tl if watcher.tl else None) != self._known(request.tl)
        )
        return 0.0 if is_new else max(watcher.sent_s + IDLE_INTERVAL_S - time.monotonic(), 0.0)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """A part of frames, made for the first watcher that needs it after a step or a reading."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def _known(self, tl: str | None) -> str | None:
        return tl if tl in self._street.layout.contracts else None

    def _frame(self, watcher: LiveWatcher) -> bytes:
        """The frame of a watcher's request, with what is new to it."""
        request, watcher.request = watcher.request, None
        assert request is not None
        newest, collected = self._shown_to(watcher)
        view = request.view
        is_new_view = watcher.sent_view != request.view
        is_new_step = is_new_view or watcher.step_number != newest.number
        is_collected = is_new_view or watcher.collected_number != collected.number
        has_ended = self._state.watchers.is_closed
        sections = []
        if is_collected:
            sections.append(self._once(("vehicles", view), lambda: frames.vehicles_section(collected.vehicles, view)))
        if is_new_step or is_collected:
            states = self._once(("states", view), lambda: self._states(view, newest, collected.states))
            known: Mapping[int, str] = {} if is_new_view else watcher.states
            # watchers that have the same frame have the same mapping, which is kept so that its id stays its own
            key = ("new states", view, None if is_new_view else id(known))
            sections.append(self._once(key, lambda: (_new_states(states, known), known))[0])
            watcher.states = states
        if watcher.modes != newest.modes:
            sections.append(frames.modes_section(newest.modes))
        if is_new_step:
            sections.append(self._once(("queues", view), lambda: self._queues(view, newest)))
        panel = self._panels(watcher, request, has_ended)
        if panel:
            sections.append(frames.panel_section(panel))
        watcher.sent_view, watcher.sent_s = request.view, time.monotonic()
        watcher.step_number, watcher.collected_number = newest.number, collected.number
        watcher.at_s = newest.event.at_s
        watcher.modes, watcher.has_end = newest.modes, has_ended
        return frames.encode(newest.number + 1, newest.event.at_s, is_new_view, sections)

    def _shown_to(self, watcher: LiveWatcher) -> tuple[KeptStep, Collected]:
        """The step and the reading for a watcher: those of the frames just made for others, if they are new to it."""
        newest, collected = self._shown
        has_them = (watcher.step_number, watcher.collected_number) == (newest.number, collected.number)
        is_old = time.monotonic() - self._shown_s >= MIN_FRAME_INTERVAL_S
        if is_old or has_them or len(self.watchers) == 1:
            sequence = self._state.watchers.sequence
            shown = self._state.newest, self._collector.collected
            if self._shown_sequence != sequence or self._shown[1] is not shown[1]:
                self._shared = {}
            self._shown, self._shown_s, self._shown_sequence = shown, time.monotonic(), sequence
        return self._shown

    def _queues(self, view: View, newest: KeptStep) -> bytes:
        rows = self._street.lanes_in(view)
        halting = newest.halting[rows] if newest.halting.size else np.zeros(len(rows))  # before the first decision
        return frames.queues_section(rows, halting)

    def _states(self, view: View, newest: KeptStep, others: Mapping[int, str]) -> dict[int, str]:
        """The states in view, by signal; those of the controlled ones come first. `others`: of uncontrolled ones."""
        states = {}
        for signal in self._street.signals_in(view):
            state = newest.states[signal] if signal < len(newest.states) else others.get(signal)
            if state is not None:
                states[signal] = state
        return states

    def _panels(self, watcher: LiveWatcher, request: FrameRequest, has_ended: bool) -> dict[str, bytes]:
        """The panels that are new to a watcher, by name, as JSON."""
        shown: dict[str, bytes] = {}
        now_s = time.monotonic()
        if now_s - watcher.city_s >= CITY_INTERVAL_S or has_ended:
            watcher.city_s = now_s
            if now_s - self._city[0] >= CITY_INTERVAL_S / 4 or has_ended:
                city = {**self._city_panel(), "has_ended": has_ended, "watchers": len(self.watchers)}
                self._city = now_s, frames.as_json(city)
            shown["city"] = self._city[1]
        tl = self._known(request.tl)
        if tl is None:
            watcher.tl = None
            return shown
        watched = watcher.tl
        if watched is None or watched.contract.tl != tl:
            watched = self._once(("first", tl), lambda: WatchedTl(self._state, self._street.layout, tl))
            watcher.export = {}
        (state,) = self._service.tl_states([tl])
        key = ("tl", tl, watched.number)
        panel, watcher.tl = self._once(key, lambda: self._tl_panel(watched, state))
        export = self._exports.of(tl, state.model, state.version)
        if export != watcher.export:
            watcher.export = export
            panel = panel[:-1] + b',"export":' + frames.as_json(export) + b"}"
        shown["tl"] = panel
        return shown

    def _tl_panel(self, watched: WatchedTl, state: control_pb2.TlState) -> tuple[bytes, WatchedTl]:
        """(news of a TL for browsers that have the same of it, what they have afterwards)."""
        follower = copy.copy(watched)
        now = {name: getattr(state, name) for name in NOW}
        history = follower.news()
        panel = panels.tl_panel(
            watched.contract, self._state.layout.names, history, now, self._street.driver, watched.is_first
        )
        return frames.as_json(panel), follower

    def _city_panel(self) -> dict[str, Any]:
        state, collector = self._state, self._collector
        durations = list(state.durations)
        begin_s = time.monotonic() - RATE_S
        recent = sum(decisions for monotonic_s, decisions, _ in durations if monotonic_s > begin_s)
        times_s = {stage: [getattr(times, f"{stage}_s") for _, _, times in durations] for stage in STAGES}
        return {
            **panels.city_panel(
                fields(self._service.run()),
                panels.figures(state.decisions, state.missing, recent, times_s),
                self._service.alarms.current(with_ended=True),
                state.commands(),
            ),
            "traffic": {
                **panels.traffic(state.tls, self._traffic.recent()),
                "earlier": self._earlier.get(int(state.second // MINUTE_S)),
            },
            "settings": self._service.settings(),
            "failure": state.failure,
            "collect_ms": round(1000 * collector.took_s, 2),
            "collect_interval_s": round(collector.interval_s, 3),
        }


def _new_states(states: Mapping[int, str], known: Mapping[int, str]) -> bytes:
    return frames.states_section({signal: state for signal, state in states.items() if known.get(signal) != state})


def _error(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
