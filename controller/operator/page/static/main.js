// The page: one WebSocket that it asks for each frame, the map, the panels, and the operator's commands.

import { decode } from "./frames.js";
import { HEAT, StreetMap } from "./map.js";
import { $, CityPanel, TlPanel, causes, clock, element, inSeconds, modeGlyph, pairs, streetTimes, swatch } from "./panels.js";
import { Player } from "./player.js";

const GOING_AWAY = 1001, RUN_FAILED = 4001, WAITING_S = 4, DEAD_S = 12, FIRST_RETRY_MS = 500, MAX_RETRY_MS = 5000, KEPT_FRAMES = 300, MAX_NAMED = 10;
const STEP_S = 1, STEPPING_MS = 2000, SPEED_S = 10, QUARTERS_PER_KMH = 4 / 3.6;  // speeds are in quarters of m/s

const map = new StreetMap($("map"), $("street"), $("traffic"));
const shown = { sequence: -1, second: 0, hasFrame: false };
let token = readToken(), city = null, cityPanel = null, tlPanel = null, run = null, socket = null, retryMs = FIRST_RETRY_MS;
let player = null;  // of a record; null: the run is live
let end = null;  // of the run: { failure }
let isAsked = false, isDrawing = false, heardAt = 0, isFresh = true, frameCount = 0;
const drawMs = [], steps = [], times = [];

function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);  // the address bar of a shared screen must not show it
  }
  return given ?? sessionStorage.getItem("token") ?? "";
}

// The connection

async function connect() {
  setStatus(end ? "ended" : city ? "lost" : "connecting");
  try {
    const response = await fetch("city.json");
    if (!response.ok) throw new Error(await response.text());
    const text = await response.text();
    if (text !== connect.text) {
      connect.text = text;
      setCity(JSON.parse(text));
    }
    open();
  } catch (error) {
    lost(city ? `${server("The")} does not answer` : String(error.message ?? error));
  }
}

function open() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket.binaryType = "arraybuffer";
  isFresh = true;
  socket.onopen = () => { retryMs = FIRST_RETRY_MS; heardAt = performance.now(); ask(); };
  socket.onmessage = (message) => { heardAt = performance.now(); isAsked = false; take(message.data); };
  socket.onclose = (event) => {
    socket = null;
    isAsked = false;
    // the last frame may not have come
    if (event.reason && (event.code === GOING_AWAY || event.code === RUN_FAILED)) end ??= { failure: event.code === RUN_FAILED ? event.reason : "" };
    lost(event.reason || `The connection to ${server("the")} is lost`);
  };
}

const server = (article) => (player ? "greenserve replay" : `${article} controller`);

function lost(reason) {
  player?.pause();
  setStatus(end ? "ended" : "lost");
  const again = "The page connects again by itself.";
  const text = end ? `${player ? "greenserve replay" : "The run"} has ended${end.failure && `: ${streetTimes(end.failure)}`}. ${again}`
    : city ? [`${reason}${shown.hasFrame && !player ? ` since ${clock(shown.second)}` : ""}.`, city.if_lost, again].join(" ") : reason;
  if ($("lost-text").textContent !== text) $("lost-text").textContent = text;  // what is written anew is read out anew
  $("lost").className = end && !end.failure ? "ended" : "";
  $("lost").hidden = false;
  showSilence();
  setTimeout(connect, retryMs);
  retryMs = Math.min(2 * retryMs, MAX_RETRY_MS);
}

function showSilence() {
  $("lost-for").textContent = heardAt && !end ? `Silent for ${Math.round((performance.now() - heardAt) / 1000)} s.` : "";
}
setInterval(showSilence, 1000);

// One request, and so one frame, at a time. A hidden page asks for none.
function ask() {
  if (!socket || socket.readyState !== WebSocket.OPEN || document.hidden || !city) return;
  const at = player ? player.take(isAsked) : undefined;
  if (at === null) return;
  socket.send(JSON.stringify({ view: map.view(), tl: tlPanel ? tlPanel.tl.tl : null, at, fresh: isFresh }));
  isFresh = false;
  isAsked = true;
}

function take(data) {
  let frame;
  try {
    frame = decode(data);
  } catch (error) {
    console.error(error);
    socket.close(4000, "a frame that cannot be read");
    return;
  }
  $("lost").hidden = true;
  if (frame.isEmpty) { draw(player ? () => player.drawn() : ask); return; }
  if (shown.hasFrame && frame.sequence > shown.sequence) steps.push(frame.sequence - shown.sequence - 1);
  if (steps.length > KEPT_FRAMES) steps.shift();
  shown.sequence = frame.sequence; shown.second = frame.second; shown.hasFrame = true;
  if (frame.vehicles) map.vehicles = frame.vehicles;
  if (frame.queues) map.queues = frame.queues;
  if (frame.allStates) map.states = new Map();
  if (frame.states) for (const [signal, state] of frame.states) map.states.set(signal, state);
  if (frame.modes) { map.modes = frame.modes; cityPanel.modes(frame.modes); }
  $("clock").textContent = clock(frame.second);
  $("clock").title = inSeconds(frame.second);
  if (frame.panel?.city) takeCity(frame.panel.city);
  if (frame.panel?.tl && tlPanel?.tl.tl === frame.panel.tl.tl) {
    tlPanel.shown = tlPanel.tl.signals.map((signal) => map.states.get(signal) ?? "");
    tlPanel.update(frame.panel.tl, frame.second);
    map.values = tlPanel.values ?? new Map();
  }
  frameCount++;
  draw(player ? () => player.drawn() : ask);
}

function draw(then = () => {}) {
  if (isDrawing) { draw.then = then; return; }
  isDrawing = true;
  requestAnimationFrame(() => {
    const begin = performance.now();
    map.drawTraffic();
    drawMs.push(performance.now() - begin);
    if (drawMs.length > KEPT_FRAMES) drawMs.shift();
    isDrawing = false;
    document.documentElement.dataset.frames = frameCount;
    then();
    if (draw.then) { const next = draw.then; draw.then = null; next(); }
  });
}

// A command's answer has the run too, so that the next command starts from what this one has changed.
function takeRun(state) {
  run = state;
  setStatus(end ? "ended" : run.is_paused ? "paused" : "live");
  $("pause").textContent = run.is_paused ? "Resume" : "Pause";
  $("lateness").textContent = run.speed && run.lateness_s > 0.1 && !run.is_paused ? `${run.lateness_s.toFixed(1)} s late` : "";
  if (document.activeElement !== $("speed")) {
    const speed = String(run.speed);
    if (![...$("speed").options].some((option) => option.value === speed)) $("speed").append(element("option", `${speed} ×`, { value: speed }));
    $("speed").value = speed;
  }
}

function takeCity(panel) {
  end = panel.has_ended ? { failure: panel.failure } : null;
  if (player) showRecord(panel);
  else takeRun(panel.run);
  const v = map.vehicles;
  cityPanel.update(panel, player ? panel.recorded_speed : speed(), v?.count ? v.speed.reduce((sum, each) => sum + each, 0) / v.count / QUARTERS_PER_KMH : NaN);
  showAlarmCount(panel.alarms);
  const sorted = [...drawMs].sort((a, b) => a - b), skipped = steps.reduce((a, b) => a + b, 0);
  const rows = [...(player ? [] : [["steps skipped", steps.length ? `${(100 * skipped / (skipped + steps.length)).toFixed(0)} %` : "–"]]),
    ["drawing, 95th percentile", sorted.length ? `${sorted[Math.floor(0.95 * (sorted.length - 1))].toFixed(1)} ms` : "–"],
    ["vehicles in view", map.vehicles ? map.vehicles.count : "–"], ["pages open", panel.watchers]];
  if (panel.collect_ms != null) rows.push(["read from SUMO in", `${panel.collect_ms.toFixed(1)} ms, each ${panel.collect_interval_s.toFixed(1)} s or rarer`]);
  pairs($("self"), rows);
}

// Simulated seconds per wall second over the last SPEED_S.
function speed() {
  const now = performance.now() / 1000;
  times.push([now, run.second]);
  while (times.length > 2 && (times[0][0] < now - SPEED_S || times[0][1] > run.second)) times.shift();
  const [wall, second] = times[0];
  return now - wall > 1 ? (run.second - second) / (now - wall) : NaN;
}

// On every view: the panel of a TL hides the list. An alarm's consequences are folded there, and not counted.
function showAlarmCount(alarms) {
  const active = alarms.filter((alarm) => alarm.ended_s === null), count = causes(active).length;
  const worst = active.some((alarm) => alarm.severity === "critical") ? "critical" : "warning";
  $("alarm-count").hidden = !count;
  $("alarm-count").className = `status ${worst}`;
  $("alarm-count").textContent = `${count} ${count === 1 ? "alarm" : "alarms"}, ${worst}`;
  document.title = `${count ? `(${count}) ` : ""}${city.name} · greenserve`;
}

function setStatus(text) {
  $("status").textContent = text;
  $("status").className = `status ${text}`;
  document.body.dataset.status = text;
  showControls();
}

const canCommand = () => token !== "" && !player && /^(live|paused)$/.test($("status").textContent);

function showControls() {
  if (player) return;
  for (const control of document.querySelectorAll("[data-command]")) control.disabled = !canCommand();
  $("no-token").hidden = token !== "";
  $("operator").hidden = token === "";
  $("operator").textContent = author() ? `as ${author()}` : "Your name";
}

// A laptop that slept, or a line that broke without a word: the socket still looks open.
setInterval(() => {
  if (!socket || !isAsked) return;
  const silent = (performance.now() - heardAt) / 1000;
  if (silent > DEAD_S) socket.close();
  else if (silent > WAITING_S) setStatus("waiting");
}, 1000);

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  heardAt = performance.now();
  ask();
});

// The city and the selected TL

function setCity(data) {
  if (player) { location.reload(); return; }  // another record, or a live run
  const selected = tlPanel?.tl.tl;
  city = data;
  if (data.record) playRecord(data.record);
  document.title = `${data.name} · greenserve`;
  $("city").textContent = data.name;
  $("names").replaceChildren(...data.tls.map((tl) => element("option", "", { value: tl.tl })),
    ...data.signals.map((signal) => element("option", "", { value: signal.id })));
  map.setCity(data);
  cityPanel = new CityPanel(data, map.colours, cityActions());
  drawLegend();
  map.resize();
  map.fit();
  select(data.tls.findIndex((tl) => tl.tl === (player?.tl || selected)), Boolean(player?.tl));
}

// The panel of a TL, and the TLs that the next command is for; -1: the city.
function select(index, moves = true, chosen = index < 0 ? [] : [index]) {
  map.selected = index;
  map.chosen = new Set(chosen);
  map.values = new Map();
  $("tl-panel").hidden = index < 0;
  $("city-panel").hidden = index >= 0;
  if (player) { player.tl = city.tls[index]?.tl ?? ""; player.show(); }
  if (index < 0) tlPanel = null;
  else if (tlPanel?.index !== index || tlPanel.city !== city) {
    tlPanel = new TlPanel(city, map.colours, index);
    $("panel").scrollTop = 0;
    if (moves) map.show(...city.tls[index].at, Math.max(map.scale, 2.2));
  }
  if (!player) {
    $("command").hidden = !chosen.length;
    $("command-tls").textContent = chosen.length > 1 ? `A command is for ${chosen.length} TLs: ${chosen.slice(0, MAX_NAMED).map((k) => city.tls[k].tl).join(", ")}${chosen.length > MAX_NAMED ? " …" : ""}` : "";
    (tlPanel ? $("tl-why") : $("all-shown")).after($("command"));
  }
  draw();
  ask();
}

function next(step) {
  if (city.tls.length) select((map.selected + step + city.tls.length) % city.tls.length);
}

function nextIn(mode) {
  const wanted = city.modes.indexOf(mode), count = city.tls.length;
  for (let k = 1; k <= count; k++) {
    const index = (map.selected + k + count) % count;
    if (map.modes[index] === wanted) { select(index); return; }
  }
}

function find(text) {
  const wanted = text.trim().toLowerCase(), has = (id) => id.toLowerCase() === wanted;
  if (!wanted) return;
  const signal = city.signals.findIndex(({ id }) => has(id)), index = [
    city.tls.findIndex(({ tl }) => has(tl)),
    city.tls.findIndex(({ signals }) => signals.includes(signal)),
    signal < 0 ? city.tls.findIndex(({ tl }) => tl.toLowerCase().includes(wanted)) : -1,
  ].find((found) => found >= 0);
  $("toast").hidden = true;
  if (index !== undefined) select(index);
  else if (signal >= 0) { select(-1); map.show(...city.signals[signal].at, Math.max(map.scale, 2.2)); }
  else { toast(`No TL or signal is called ${text.trim()}.`); return; }
  $("search").value = "";
  $("map").focus();
}

function drawLegend() {
  const c = map.colours;
  $("legend-policy").textContent = city.driver || "policy";
  for (const line of document.querySelectorAll("[data-glyph], [data-swatch]")) {
    const { glyph, swatch: colour, heat } = line.dataset;
    line.querySelector("canvas")?.remove();
    line.prepend(glyph ? modeGlyph(glyph, c) : swatch(c[colour], colour === "stopped" ? c.queue : "", heat ? HEAT[heat][1] : 1));
  }
}

// A record: the controls that command a run are removed.

function playRecord(record) {
  for (const part of document.querySelectorAll("[data-live]")) part.remove();
  for (const part of document.querySelectorAll("[data-record]")) part.hidden = false;
  player = new Player(record, () => map.colours, ask, showPlaying);
  pairs($("about"), [["run", record.run], ["greenserve", record.version], ["first second", clock(record.first_s)], ["last second", clock(record.last_s)],
    ["files", record.files.join(", ")], ["vehicles", record.has_vehicles ? "on the lanes that policies read, at each decision" : "none in this record"]]);
  $("no-vehicles").textContent = record.has_vehicles ? "" : "This record has no vehicles.";
}

function showPlaying() {
  setStatus(player.isPlaying ? "playing" : "paused");
}

function showRecord(panel) {
  run = panel.run;
  showPlaying();
  $("wall").textContent = panel.wall ? `recorded at ${panel.wall}` : "";
  $("hole").textContent = `The record lacks this second: ${streetTimes(panel.hole)}`;
  $("hole").hidden = !panel.hole;
  $("damage").textContent = streetTimes(panel.damage);
}

const cityActions = () => ({ nextIn, find, command: player ? null : command, canCommand });

// Commands

const author = () => (localStorage.getItem("author") ?? "").trim();
let sending = Promise.resolve(), withName = null;

// One after another: each begins from what the one before has changed. The first one asks for the operator's name.
function command(body) {
  if (!author()) askName(() => command(body));
  else sending = sending.then(() => send({ ...body, author: author() }));
}

async function send(body) {
  try {
    const response = await fetch("command", {
      method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` }, body: JSON.stringify(body),
    });
    const answer = await response.json().catch(() => ({ error: `the controller answered ${response.status}` }));
    if (response.status === 401) { token = ""; sessionStorage.removeItem("token"); showControls(); }
    if (answer.error) { toast(answer.error); steppedTo = 0; }
    else { takeRun(answer.run); ask(); }
  } catch {
    toast("The controller does not answer; the command was not sent.");
    steppedTo = 0;
  }
}

function askName(then = null) {
  withName = then;
  $("author").value = author();
  $("author-dialog").showModal();
}
$("operator").addEventListener("click", () => askName());
$("author-cancel").addEventListener("click", () => $("author-dialog").close());
$("author-dialog").addEventListener("close", () => { withName = null; });
$("author-dialog").addEventListener("submit", () => {
  localStorage.setItem("author", $("author").value);
  showControls();
  withName?.();
});

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

let steppedTo = 0, steppedAt = 0;
const pause = () => {
  steppedTo = 0;
  if (run) command({ action: run.is_paused ? "resume" : "pause" });
};
// The next step begins at run.second; the map shows the one before. Steps that were asked for just now may not be in `run` yet.
const step = () => {
  if (!run) return;
  const now = performance.now(), asked = now - steppedAt < STEPPING_MS ? steppedTo : 0;
  steppedTo = Math.max(Math.floor(run.second + 1e-6), run.step_until_s, asked) + STEP_S;
  steppedAt = now;
  command({ action: "step", until_s: steppedTo });
};
$("pause").addEventListener("click", pause);
$("step").addEventListener("click", step);
$("speed").addEventListener("change", () => { command({ action: "speed", speed: Number($("speed").value) }); $("speed").blur(); });
for (const button of document.querySelectorAll("[data-mode]")) {
  button.addEventListener("click", () => {
    const mode = button.dataset.mode, forS = mode === "policy" ? 0 : Number($("tl-for").value), tls = [...map.chosen].map((k) => city.tls[k].tl);
    command({ action: "set-mode", tls, mode, for_s: forS, reason: $("reason").value });
    $("reason").value = "";
  });
}
$("all-shown").addEventListener("click", () => select(-1, false, map.shownTls()));
showControls();

// The map: pointers, wheel, keys

const pointers = new Map();
let travelled = 0;
$("map").addEventListener("pointerdown", (event) => {
  if (event.target.closest("button, details")) return;
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  $("map").setPointerCapture(event.pointerId);
  travelled = 0;
});
$("map").addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const box = $("map").getBoundingClientRect(), at = [event.clientX - box.left, event.clientY - box.top];
  if (pointers.size === 2) {
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1], distance = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
    map.zoom(distance(at) / distance(before), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
    travelled = 100;
  } else {
    travelled += Math.abs(at[0] - before[0]) + Math.abs(at[1] - before[1]);
    if (travelled > 5) map.pan(at[0] - before[0], at[1] - before[1]);
  }
  pointers.set(event.pointerId, at);
});
for (const name of ["pointerup", "pointercancel"]) {
  $("map").addEventListener(name, (event) => {
    if (!pointers.delete(event.pointerId) || name === "pointercancel" || travelled > 5) return;
    const box = $("map").getBoundingClientRect(), found = map.tlAt(event.clientX - box.left, event.clientY - box.top);
    if (found < 0) return;
    const chosen = map.chosen.has(found) ? [...map.chosen].filter((k) => k !== found) : [...map.chosen, found];
    if (event.shiftKey && !player) select(chosen.includes(map.selected) ? map.selected : chosen.at(-1) ?? -1, false, chosen);
    else select(found, false);
  });
}
$("map").addEventListener("wheel", (event) => {
  if (event.target.closest("details")) return;
  event.preventDefault();
  const box = $("map").getBoundingClientRect();
  map.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
map.onMove = () => {
  draw();
  clearTimeout(map.asking);
  map.asking = setTimeout(ask, 80);  // the server answers the newest view
  const metres = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((m) => m * map.scale > 60) ?? 20000;
  const bar = $("scale").firstElementChild;
  bar.textContent = metres < 1000 ? `${metres} m` : `${metres / 1000} km`;
  bar.style.width = `${metres * map.scale}px`;
};
map.coveredLeft = () => {
  const right = $("legend-fold").open ? $("legend-fold").offsetLeft + $("legend-fold").offsetWidth : 0;
  return right < map.width / 2 ? right : 0;
};
$("zoom-in").addEventListener("click", () => map.zoom(1.5));
$("zoom-out").addEventListener("click", () => map.zoom(1 / 1.5));
$("zoom-fit").addEventListener("click", () => map.fit());
$("tl-close").addEventListener("click", () => select(-1));
$("find").addEventListener("submit", (event) => { event.preventDefault(); find($("search").value); });
$("search").addEventListener("change", () => find($("search").value));
$("search").addEventListener("input", () => { $("toast").hidden = true; });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !city || $("author-dialog")?.open) return;
  if (event.key === "Escape") { if (document.activeElement === $("search")) $("map").focus(); else select(-1); return; }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (/^(BUTTON|SUMMARY|A)$/.test(event.target.tagName) && (event.key === " " || event.key === "Enter")) return;
  const far = 80, action = {
    ArrowLeft: () => map.pan(far, 0), ArrowRight: () => map.pan(-far, 0), ArrowUp: () => map.pan(0, far), ArrowDown: () => map.pan(0, -far),
    "+": () => map.zoom(1.5), "=": () => map.zoom(1.5), "-": () => map.zoom(1 / 1.5), 0: () => map.fit(),
    n: () => next(1), p: () => next(map.selected < 0 ? 0 : -1), "/": () => $("search").focus(),
    " ": () => (player ? player.toggle() : canCommand() && pause()), ".": () => (player ? player.move(1) : canCommand() && step()),
    ",": () => player?.move(-1), "[": () => player?.toMark(-1), "]": () => player?.toMark(1),
  }[event.key];
  if (!action || (event.key.startsWith("Arrow") && event.target.closest("#panel"))) return;
  event.preventDefault();
  action();
});

new ResizeObserver(() => { if (city) { map.resize(); tlPanel?.resize(); } }).observe($("map"));
matchMedia("print").addEventListener("change", () => { $("printed").textContent = `printed ${new Date().toLocaleString()}`; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  map.readColours();
  if (!city) return;
  const index = map.selected, modes = map.modes;
  cityPanel = new CityPanel(city, map.colours, cityActions());
  cityPanel.modes(modes);
  drawLegend();
  map.drawStreet();
  tlPanel = null;
  isFresh = true;
  select(index, false);
});

$("alarm-count").addEventListener("click", () => select(-1));
$("legend-fold").open = localStorage.getItem("legend") !== "closed" && innerWidth > 760; // on a phone it would hide the map
$("legend-fold").addEventListener("toggle", () => { if (!$("legend-fold").open) localStorage.setItem("legend", "closed"); });
window.greenserve = { map, showAlarmCount, shown, cityPanel: () => cityPanel, tlPanel: () => tlPanel, run: () => run, player: () => player };  // for tests, and for a look from the browser's console
connect();
