// The panels beside the map. Texts of the server become text nodes, never HTML.

import { junction } from "./junction.js";
import { glyph } from "./map.js";

const BAND_S = 180, ROW_PX = 15, HOUR_S = 3600, MEAN_S = 60, MAX_SENTENCES = 40, MAX_POINTS = 5000;
const UNKNOWN_DELAY = "Unknown: vehicles are counted when a policy decides, and this one has decided once or decides too rarely to add them up";
const PLURAL = { policy: "policies decide", hold: "green kept", fallback: "own plan, no answer", recovering: "answers again", fixed: "own plan, by an operator" };

export const $ = (id) => document.getElementById(id);

export function element(tag, text = "", attributes = {}) {
  const result = document.createElement(tag);
  if (text !== "") result.textContent = text;
  for (const [key, value] of Object.entries(attributes)) result.setAttribute(key, value);
  return result;
}

export function clock(second) {
  const s = Math.max(0, Math.floor(second + 1e-6)), two = (value) => String(value).padStart(2, "0");
  return `${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

// A server's text with the street's clock in the place of simulated seconds.
export function streetTimes(text) {
  return text.replace(/\bsecond (\d+(?:\.\d+)?)/g, (_, second) => clock(Number(second)));
}

export function inSeconds(second) { return `simulated second ${second}`; }

function time(second) { return element("time", clock(second), { title: inSeconds(second) }); }

// A small picture, drawn in a square of 16 pixels.
function pictogram(draw) {
  const ratio = window.devicePixelRatio || 1, canvas = element("canvas", "", { class: "glyph", width: 16 * ratio, height: 16 * ratio, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  draw(context);
  return canvas;
}

export const swatch = (colour, outline, alpha = 1) => pictogram((context) => {
  Object.assign(context, { fillStyle: colour, strokeStyle: outline || "transparent", globalAlpha: alpha, lineWidth: 1.5 });
  context.fillRect(2, 5, 12, 6);
  context.strokeRect(2, 5, 12, 6);
});

export const modeGlyph = (mode, colours) => pictogram((context) => {
  const path = new Path2D();
  glyph(path, mode, 8, 8, 5.5);
  context.fillStyle = colours[mode] ?? colours.text;
  context.fill(path);
});

// The alarms that are no consequence of another one of the list.
export function causes(alarms) {
  const ids = new Set(alarms.map((alarm) => alarm.id));
  return alarms.filter((alarm) => !alarm.consequence_of || !ids.has(alarm.consequence_of));
}

export function pairs(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

function number(value, digits = 1) {
  return Number.isFinite(value) ? value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 }) : "–";
}

// A text with parts between backticks, as nodes.
function code(text) {
  return text.split("`").map((part, k) => (k % 2 ? element("code", part) : document.createTextNode(part)));
}

export class CityPanel {
  constructor(city, colours, actions) {
    this.city = city; this.colours = colours; this.actions = actions; this.open = new Set(); this.keys = new Map();
    this.buttons = city.modes.map((mode) => {
      const button = element("button", "", { type: "button", title: `Show the next TL in mode ${mode}: ${PLURAL[mode] ?? ""}` }), count = element("b", "0");
      button.append(modeGlyph(mode, colours), count, element("small", mode === "policy" && city.driver ? city.driver : mode));
      button.addEventListener("click", () => actions.nextIn(mode));
      return { button, count };
    });
    $("modes").replaceChildren(...this.buttons.map(({ button }) => button));
    this.places = new Set([...city.tls.map(({ tl }) => tl), ...city.signals.map(({ id }) => id)]);
  }

  // Rows are changed and not replaced: a click may last longer than an update.
  // Compared with the earlier record that the controller has found, else with the city's own last minutes.
  traffic({ vehicles, halting, delay_s, counted_tls, mean_vehicles, mean_halting, span_s, worst, earlier }, kmh) {
    const last = `last ${number(Math.max(span_s / 60, 1), 0)} min`;
    const mean = (value, then) => (earlier ? `${earlier.of} at this time: ${number(then, 0)}` : value === null ? "" : `mean of ${last}: ${number(value)}`);
    const minutes = (seconds) => (seconds === null ? "–" : `${number(seconds / 60)} min`);
    for (const [id, text] of Object.entries({ vehicles: number(vehicles, 0), "mean-vehicles": mean(mean_vehicles, earlier?.vehicles), halting: number(halting, 0), "mean-halting": mean(mean_halting, earlier?.halting),
      "mean-speed": `${number(kmh, 0)}${kmh >= 0 ? " km/h" : ""}`, delay: minutes(delay_s), "delay-of": (delay_s === null ? "" : `of ${counted_tls < this.city.tls.length ? `${counted_tls} of ${this.city.tls.length} TLs` : "all vehicles"}, ${last}`) + (earlier ? ` (${earlier.of}: ${minutes(earlier.delay_s)})` : "") })) $(id).textContent = text;
    const body = $("worst").tBodies[0];
    $("worst").hidden = !worst.length; $("no-worst").hidden = worst.length > 0;
    while (body.rows.length > worst.length) body.lastElementChild.remove();
    while (body.rows.length < worst.length) body.append($("worst-row").content.cloneNode(true));
    worst.forEach(([tl, queue, delay], k) => {
      const [name, now, sum] = body.rows[k].cells, button = name.firstChild;
      button.textContent = tl; now.textContent = number(queue, 0); sum.textContent = minutes(delay);
      sum.title = delay === null ? UNKNOWN_DELAY : "";
      button.onclick = () => this.actions.find(tl);
    });
  }

  modes(modes) {
    const counts = new Array(this.buttons.length).fill(0);
    for (const mode of modes) counts[mode]++;
    this.buttons.forEach(({ button, count }, k) => {
      count.textContent = counts[k];
      button.disabled = counts[k] === 0;
    });
  }

  update(panel, speed, kmh) {
    const run = panel.run;
    if (panel.traffic) this.traffic(panel.traffic, kmh);
    pairs($("figures"), [
      ["simulation speed", Number.isFinite(speed) ? `${number(speed)} × real time` : "–"],
      ["decisions a second", number(panel.decisions_per_s)], ["decisions", number(panel.decisions, 0)],
      ["answers missing", number(panel.missing, 0)], ...(run.late_steps === null ? [] : [["late steps", number(run.late_steps, 0)], ["time lost to lateness", `${number(run.lost_s)} s`]]),
    ]);
    $("latency").tBodies[0].replaceChildren(...Object.entries(panel.latency_ms).map(([stage, values]) => {
      const row = element("tr");
      row.append(element("td", { sumo: "SUMO", observe: "observe", inference: "policies", apply: "apply" }[stage] ?? stage),
        ...[0, 1].map((k) => element("td", values.length ? `${number(values[k], 2)} ms` : "–")));
      return row;
    }));
    const alarms = panel.alarms.filter((alarm) => alarm.ended_s === null || alarm.ended_s > run.second - HOUR_S);
    const key = JSON.stringify(alarms.map((alarm) => [alarm.id, alarm.count, alarm.ended_s, alarm.acknowledged_by, alarm.text, alarm.consequence_of, alarm.subjects]));
    if (key !== this.alarmKey) {
      this.alarmKey = key;
      const active = alarms.filter((alarm) => alarm.ended_s === null), ended = alarms.filter((alarm) => alarm.ended_s !== null);
      $("alarms").replaceChildren(...(alarms.length ? [...causes(active).map((alarm) => this.alarm(alarm, active)), ...ended.map((alarm) => this.alarm(alarm))]
        : [element("p", "no alarms", { class: "note" })]));
    }
    if (panel.settings) this.lines("settings", panel.settings, "nothing");
    this.lines("commands", panel.commands, "none");
  }

  // A list of what operators did; written anew only if it has changed.
  lines(id, lines, none) {
    const key = JSON.stringify(lines);
    if (key === this.keys.get(id)) return;
    this.keys.set(id, key);
    $(id).replaceChildren(...(lines.length ? lines.map(({ at_s, unix_s, text }) => {
      const item = element("li");
      if (at_s !== null) item.append(time(at_s), " ");
      item.append(streetTimes(text));
      if (unix_s) item.append(element("span", ` ${new Date(1000 * unix_s).toLocaleString()}`, { class: "note" }));
      return item;
    }) : [element("p", none, { class: "note" })]));
  }

  // What to do, in one line, and the runbook's section behind it. An open one stays open when the list is written anew.
  instructions(id, known) {
    const details = element("details", "", { class: "runbook" }), summary = element("summary", "", { title: "The runbook's section" });
    summary.append(...code(`To do: ${known.remedy}`));
    details.append(summary, ...known.instructions.split("\n").map((text) => {
      const isItem = text.startsWith("- "), line = element("p", "", isItem ? { class: "item" } : {});
      line.append(...code(isItem ? text.slice(2) : text));
      return line;
    }));
    this.keepOpen(details, id);
    return details;
  }

  keepOpen(details, id) {
    details.open = this.open.has(id);
    details.addEventListener("toggle", () => (details.open ? this.open.add(id) : this.open.delete(id)));
  }

  // `active`: all active alarms; those that are its consequences are folded behind it.
  alarm(alarm, active = []) {
    const ended = alarm.ended_s !== null, item = element("li", "", { class: ended ? "ended" : alarm.severity }), line = element("div");
    const who = alarm.acknowledged_by ? `, acknowledged by ${alarm.acknowledged_by}` : "";
    const when = ended ? `${clock(alarm.since_s)} to ${clock(alarm.ended_s)}` : `since ${clock(alarm.since_s)}`;
    line.append(element("strong", (alarm.name.replace(/^Greenserve/, "").match(/TLs?|[A-Z][a-z]+/g) ?? [alarm.name]).join(" ")));
    if (!ended && !alarm.acknowledged_by && this.actions.command) {
      const button = element("button", "Acknowledge", { type: "button", "data-command": "" });
      button.addEventListener("click", () => this.actions.command({ action: "acknowledge", alarm: alarm.id }));
      button.disabled = !this.actions.canCommand();
      line.append(button);
    }
    item.append(line, element("div", streetTimes(alarm.text)), element("p", `${alarm.severity}, ${when}, ${alarm.count} times${who}`, { class: "note", title: inSeconds(alarm.since_s) }));
    const places = (alarm.subjects ?? []).filter((subject) => this.places.has(subject)), row = element("div", "", { class: "places" });
    row.append(...places.map((place) => {
      const button = element("button", place, { type: "button", title: "Show it on the map" });
      button.addEventListener("click", () => this.actions.find(place));
      return button;
    }));
    if (places.length) item.append(row);
    const known = this.city.alarms?.[alarm.name];
    if (known) item.append(this.instructions(alarm.id, known));
    const consequences = active.filter(({ consequence_of }) => consequence_of === alarm.id);
    if (consequences.length) {
      const details = element("details", "", { class: "consequences" }), list = element("ul");
      list.append(...consequences.map((each) => this.alarm(each, active)));
      details.append(element("summary", `${consequences.length} ${consequences.length === 1 ? "consequence" : "consequences"}`), list);
      this.keepOpen(details, `consequences of ${alarm.id}`);
      item.append(details);
    }
    return item;
  }
}

export class TlPanel {
  constructor(city, colours, index) {
    this.city = city; this.colours = colours; this.index = index; this.tl = city.tls[index]; this.band = []; this.queue = [];
    this.laneIndex = new Map(city.lanes.id.map((id, k) => [id, k]));
    this.rows = this.tl.signals.flatMap((signal, s) => {
      const { id, links, movements } = city.signals[signal], of = this.tl.signals.length > 1 ? `${id} ` : "";
      return movements.length ? movements.map((movement) => [s, movement.links[0], of + movement.name]) : links.map((_, link) => [s, link, `${of}link ${link}`]);
    });
    $("tl-name").textContent = this.tl.tl;
    const ids = this.tl.signals.map((signal) => city.signals[signal].id);
    $("tl-signals").textContent = ids.length > 1 ? `${ids.length} signals, controlled as one: ${ids.join(", ")}` : "";
    for (const id of ["tl-mode", "tl-chart"]) $(id).replaceChildren();
    $("tl-reason").textContent = "";
    this.chart = null;
    this.clear();
  }

  // What the history has made: another one begins.
  clear() {
    this.band = []; this.queue = []; this.overrides = []; this.decided = undefined; this.values = new Map(); this.export = {};
    for (const id of ["tl-choice", "tl-overrides", "tl-sentences", "tl-sees"]) $(id).replaceChildren();
    $("tl-states").tBodies[0].replaceChildren();
    $("tl-at").textContent = $("tl-why").textContent = "";
  }

  update(panel, second) {
    if (panel.is_first) this.clear();
    if (panel.export) { this.export = panel.export; this.showModel(); }
    const now = panel.now, decision = panel.decision;
    this.showMode(now);
    this.band.push(...panel.band);
    while (this.band.length && this.band[0][1] < second - BAND_S) this.band.shift();
    if (panel.queue.length || (panel.is_first && this.chart)) {
      this.queue.push(...panel.queue);
      if (this.queue.length > MAX_POINTS) this.queue.splice(0, this.queue.length - MAX_POINTS);
      this.drawChart();
    }
    this.requested = panel.states.requested?.[0];
    const decided = [decision.at_s, now.mode].join();
    if (decision.at_s !== undefined && decided !== this.decided) {
      this.decided = decided;
      this.showChoice(decision, now.mode);
      this.showFeatures(decision.observation);
    }
    if (panel.shown.length) this.shownNames = panel.shown;
    this.showStates(panel.states);
    if (panel.overrides.length || panel.is_first) {
      this.overrides = [...panel.overrides.reverse(), ...this.overrides].slice(0, 3);
      $("tl-overrides").replaceChildren(...this.overrides.map((o) => element("div",
        `${clock(o.at_s)} override of ${o.signal}: ${o.text}`, { class: "override", title: `requested ${o.requested}, permitted ${o.permitted}` })));
    }
    if (panel.sentences.length) {
      const list = $("tl-sentences");
      $("tl-why").textContent = panel.sentences.at(-1).replace(` ${this.tl.tl}:`, "");
      list.prepend(...panel.sentences.reverse().map((text) => element("li", text)));
      while (list.children.length > MAX_SENTENCES) list.lastChild.remove();
    }
    this.drawBand(second);
  }

  showMode(now) {
    const until = now.until_s ? ` until ${clock(now.until_s)}` : "", by = now.set_by ? `, set by ${now.set_by}${now.set_reason && `: ${now.set_reason}`}` : "";
    const model = now.model ? `${now.model} version ${now.version}${now.pinned_version ? " (pinned)" : ""}` : this.city.driver || "no answer yet";
    const key = [now.mode, now.since_s, until, by, model].join();
    if (key !== this.modeKey) {
      this.modeKey = key;
      $("tl-mode").replaceChildren(modeGlyph(now.mode, this.colours), element("strong", now.mode === "policy" && this.city.driver ? this.city.driver : now.mode),
        element("span", `${now.since_s === null ? "" : `since ${clock(now.since_s)}`}${until}${by}`, now.since_s === null ? {} : { title: inSeconds(now.since_s) }));
      this.model = now.model ? ` by ${model}` : "";
      for (const button of document.querySelectorAll("[data-mode]")) {
        // what an operator has set, or the policy while it controls
        button.setAttribute("aria-pressed", String(button.dataset.mode === now.mode && (now.set_by !== "" || now.mode === "policy")));
      }
      this.modelName = model;
      this.showModel();
    }
    $("tl-reason").textContent = now.reason;
  }

  // The origin is that in the contract of the version that answers; a run without models, and a record, have the contract of the start.
  showModel() {
    const origin = this.export.origin ?? this.tl.origin, manifest = this.export.manifest, rows = [
      ["model", this.modelName ?? "–"], ["dialect", this.tl.dialect], ["action", this.tl.action], ["trained as", origin.model_number ?? "–"],
      ["from", origin.file_name ?? "–"], ["format", origin.source_format ?? "–"], ["SHA-256", (origin.sha256 ?? "–").slice(0, 16)],
      ["exported", origin.exported_at ?? "–"], ["exporter", [origin.exporter_version, origin.tensorflow_version && `TensorFlow ${origin.tensorflow_version}`].filter(Boolean).join(", ") || "–"]];
    if (manifest) {
      const parity = manifest.parity, digits = (value) => value.toExponential(1).replace("-", "\u2212");
      rows.push(["parity check", `${number(parity.observations, 0)} observations, largest difference ${digits(parity.difference)} (permitted ${digits(parity.permitted)})`],
        ["compared with", parity.reference], ["architecture", manifest.architecture], ["scope", manifest.scope || "–"],
        ["files", manifest.files.join(", ")], ["variables", manifest.variables], ["export manifest", manifest.path]);
    } else if (this.export.why) rows.push(["export manifest", `not shown: ${this.export.why}`]);
    pairs($("tl-model"), rows);
  }

  // Bold is what controls the signals: in hold the green that is kept, while their own programs run none.
  showChoice(decision, mode) {
    $("tl-at").textContent = `at ${clock(decision.at_s)}${this.model}`;
    $("tl-at").title = inSeconds(decision.at_s);
    const rows = [];
    if (decision.failure) rows.push(element("p", `no valid answer: ${decision.failure}`, { class: "note" }));
    else if (mode !== "policy" && decision.action.length) rows.push(element("p", `not followed in mode ${mode}`, { class: "note" }));
    const greens = this.tl.greens[0] ?? [], names = this.tl.green_names[0] ?? [];
    if (this.tl.action === "categorical" && greens.length) {
      const chosen = mode === "policy" && decision.action.length ? decision.action[0] : mode === "policy" || mode === "hold" ? greens.indexOf(this.requested) : -1;
      const low = Math.min(0, ...decision.scores), high = Math.max(this.tl.scores === "probabilities" ? 1 : 0, ...decision.scores, low + 1e-9);
      const ignored = mode === "policy" && decision.action.length && !decision.min_green_passed && chosen !== decision.phases[0] ? chosen : -1;
      greens.forEach((state, k) => {
        const score = decision.scores[k], row = element("div", "", { class: `choice${k === chosen ? " chosen" : ""}${k === ignored ? " ignored" : ""}${score === undefined ? " plain" : ""}`, "data-state": state });
        row.append(element("span", names[k], { title: `green ${k}, ${state}` }));
        if (score !== undefined) row.append(element("meter", "", { min: low, max: high, value: score, title: state }), element("span", number(score, 3)));
        rows.push(row);
      });
    } else {
      // one number for each signal; gro: for each signal its offset, then its green splits
      const kinds = this.tl.action === "gro" ? ["offset", "gr"] : [this.tl.action];
      decision.action.forEach((value, k) => {
        const signal = this.tl.signals[Math.floor(k / kinds.length)];
        rows.push(element("p", `${this.city.signals[signal]?.id ?? ""}: ${kinds[k % kinds.length]} ${number(value, 3)}`));
      });
    }
    if (!decision.min_green_passed && this.tl.action === "categorical") rows.push(element("p", "min green has not passed", { class: "note" }));
    $("tl-choice").replaceChildren(...rows);
  }

  // A table by lane, with the kinds of features as columns; on the map, lanes by their queue or density.
  showFeatures(values) {
    const kinds = [], lanes = new Map(), others = [], greens = this.tl.green_names[0] ?? [];
    const perGreen = (kind) => greens.length > 1 && this.tl.features.filter((each) => each[0] === kind && !each[2]).length === greens.length;
    this.values = new Map();
    this.tl.features.forEach(([kind, signal, lane], k) => {
      if (!lane) {
        const green = perGreen(kind) ? greens[others.filter((each) => each[2] === kind).length] : signal;
        others.push([`${kind.replaceAll("_", " ")} ${green}`, values[k], kind]);
        return;
      }
      if (!kinds.includes(kind)) kinds.push(kind);
      if (!lanes.has(lane)) lanes.set(lane, new Map());
      lanes.get(lane).set(kind, values[k]);
      const index = this.laneIndex.get(lane), share = Math.min(Math.abs(values[k] ?? 0), 1);
      if (index !== undefined && (kind === "queue" || kind === "density" || !this.values.has(index))) {
        this.values.set(index, Math.max(share, this.values.get(index) ?? 0));
      }
    });
    const table = element("table"), head = element("tr");
    // a relative value is no share
    const isShare = (kind) => (kind === "queue" || kind === "density") && this.tl.normalisation !== "block-maximum";
    head.append(element("th", "lane"), ...kinds.map((kind) => element("th", kind.replaceAll("_", " ") + (isShare(kind) ? ", % of the lane" : ""))));
    table.append(head);
    for (const [lane, by] of lanes) {
      const row = element("tr");
      row.append(element("td", this.tl.lane_names[lane] ?? lane, { title: lane }), ...kinds.map((kind) => element("td", !by.has(kind) ? "" : isShare(kind) ? `${number(100 * (by.get(kind) ?? NaN), 0)} %` : number(by.get(kind), 2))));
      table.append(row);
    }
    const list = element("dl");
    pairs(list, others.map(([name, value]) => [name, number(value, 2)]));
    $("tl-sees").replaceChildren(table, list);
  }

  showStates(states) {
    const shown = this.shown ?? [], names = this.shownNames ?? [];
    const pictures = JSON.stringify([shown, names]);
    if (pictures !== this.pictures && shown.length) {
      this.pictures = pictures;
      $("tl-junction").replaceChildren(...this.tl.signals.flatMap((signal, k) => {
        const figure = element("figure"), { id, movements } = this.city.signals[signal];
        if (!movements.length) return [];
        figure.append(junction(movements, shown[k] ?? "", names[k] ?? "", this.colours), element("figcaption", (this.tl.signals.length > 1 ? `${id}: ` : "") + (names[k] ?? ""), { title: `${id}: ${shown[k] ?? ""}` }));
        return figure;
      }));
    }
    for (const row of document.querySelectorAll("#tl-choice .choice")) row.classList.toggle("now", row.dataset.state === shown[0]);
    if (!states.permitted) return;
    const rows = this.tl.signals.map((signal, k) => {
      const row = element("tr");
      row.append(...[this.city.signals[signal].id, shown[k] ?? "", states.requested[k] ?? "own program", states.requested.length ? states.permitted[k] : "–"].map((text) => element("td", text)));
      return row;
    });
    $("tl-states").tBodies[0].replaceChildren(...rows);
  }

  // A row for each movement. Green is a full row, yellow half of it, red a line.
  drawBand(second) {
    const canvas = $("tl-band"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 300, rows = this.rows;
    const height = Math.max(rows.length, 1) * ROW_PX + 16, label = Math.min(150, 0.42 * width);
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d"), c = this.colours, x = (t) => label + (width - label) * (1 - (second - t) / BAND_S);
    context.scale(ratio, ratio);
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    rows.forEach(([s, link, name], k) => {
      const top = k * ROW_PX;
      context.fillStyle = c.dim;
      context.fillText(fitted(context, name, label - 6), 0, top + ROW_PX / 2);
      for (const part of this.band) {
        const letter = part[2 + s]?.[link], from = Math.max(x(part[0]), label), to = Math.max(x(part[1]), label);
        const [colour, share] = letter === "G" ? [c.green, 0.8] : letter === "g" ? [c.green, 0.6] : letter === "y" || letter === "u" ? [c.yellow, 0.45] : letter === "r" ? [c.red, 0.16] : [c.dark, 0.1];
        context.fillStyle = colour;
        context.fillRect(from, top + ROW_PX * (1 - share) / 2, Math.max(to - from, 0) + 0.3, ROW_PX * share);
      }
    });
    context.fillStyle = c.dim;
    for (let t = Math.max(Math.ceil((second - BAND_S) / 60) * 60, 0); t <= second; t += 60) {
      context.fillRect(x(t), 0, 0.5, height - 14);
      context.textAlign = x(t) > width - 24 ? "right" : "center";
      context.fillText(clock(t).slice(0, 5), Math.max(x(t), label + 20), height - 7);
    }
    context.textAlign = "left";
  }

  drawChart() {
    const times = this.queue.map(([t]) => t), queue = this.queue.map(([, q]) => q), delay = minuteMeans(times, queue);
    const data = [times, queue, delay], holder = $("tl-chart");
    if (this.chart) { this.chart.setData(data); return; }
    const c = this.colours, axis = { stroke: c.dim, grid: { stroke: c.line, width: 1 }, ticks: { stroke: c.line, width: 1 }, font: "11px system-ui, 'DejaVu Sans', sans-serif" };
    this.chart = new uPlot({
      width: holder.clientWidth || 340, height: 150, scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(5, 1.1 * high)] } }, cursor: { y: false },
      axes: [{ ...axis, size: 24, space: 64, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 34 }],
      series: [{ label: "time", value: (_, t) => (t === null ? "–" : clock(t)) },
        { label: "queue, vehicles", stroke: c.queue, width: 1.5, points: { show: false } },
        { label: "mean of a minute", stroke: c.accent, width: 1.5, dash: [5, 3], points: { show: false } }],
    }, data, holder);
  }

  resize() { if (this.chart) this.chart.setSize({ width: $("tl-chart").clientWidth || 340, height: 150 }); }
}

function fitted(context, text, width) {
  while (context.measureText(text).width > width) text = `${text.slice(0, -2)}…`;
  return text;
}

// The mean queue in the minute up to each time, or since the first one. A queue keeps its length until the next decision.
export function minuteMeans(times, queue) {
  let from = 0, sum = 0;
  return times.map((time, k) => {
    if (k) sum += queue[k - 1] * (time - times[k - 1]);
    while (from < k && times[from + 1] <= time - MEAN_S) { sum -= queue[from] * (times[from + 1] - times[from]); from++; }
    const before = Math.max(time - MEAN_S - times[from], 0), observed = Math.min(time - times[0], MEAN_S);
    return observed ? (sum - queue[from] * before) / observed : queue[k];
  });
}
