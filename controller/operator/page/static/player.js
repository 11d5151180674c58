// Plays a record: the position in simulated time, its slider and buttons, and where something happened.

import { $, clock, element, streetTimes } from "./panels.js";

const POLL_MS = 1000, MARK_PX = 3, MAX_LISTED = 200, THUMB_PX = 16,  // the middle of the slider's thumb stops half of it before an end
  NAMES = { critical: "critical alarm", warning: "alarm", command: "command", missing: "missing" };

export class Player {
  // `ask`: asks for the frame of `second`. `changed`: called when it begins to play, and when it stops.
  constructor(record, colours, ask, changed) {
    this.record = record; this.colours = colours; this.ask = ask; this.changed = changed;
    this.step = record.step_s; this.isPlaying = false; this.speed = 1; this.asked = NaN; this.isStale = false;
    this.overview = { marks: [], missing: [], read_to_s: null, is_complete: false, unshown_marks: 0 };
    const link = new URLSearchParams(location.hash.slice(1)), wanted = Number(link.get("at") ?? NaN);
    this.tl = link.get("tl") ?? "";  // selected; the address leads to this second of this TL
    this.second = this.within(Number.isFinite(wanted) ? wanted : record.first_s);
    const slider = $("position");
    slider.min = record.first_s; slider.max = record.last_s; slider.step = this.step;
    slider.addEventListener("input", () => this.seek(Number(slider.value)));
    slider.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      this.toggle();
    });
    $("play").addEventListener("click", () => this.toggle());
    $("back").addEventListener("click", () => this.move(-1));
    $("forward").addEventListener("click", () => this.move(1));
    $("previous-mark").addEventListener("click", () => this.toMark(-1));
    $("next-mark").addEventListener("click", () => this.toMark(1));
    $("play-speed").addEventListener("change", () => { this.setSpeed(Number($("play-speed").value)); $("play-speed").blur(); });
    window.addEventListener("hashchange", () => {
      const at = Number(new URLSearchParams(location.hash.slice(1)).get("at") ?? NaN);
      if (Number.isFinite(at) && at !== this.second) this.seek(at);
    });
    new ResizeObserver(() => this.drawMarks()).observe($("marks"));
    this.show();
    this.poll();
  }

  within(second) { return Math.min(Math.max(second, this.record.first_s), this.record.last_s); }

  // Where the position is now, in whole steps of SUMO.
  now() {
    if (this.isPlaying) {
      const second = this.from + this.speed * (performance.now() - this.since) / 1000;
      this.second = this.within(this.record.first_s + Math.floor((second - this.record.first_s) / this.step + 1e-6) * this.step);
      if (second >= this.record.last_s) { this.second = this.record.last_s; this.stop(); }
    }
    return this.second;
  }

  // The second to ask for; null while a frame is on its way.
  take(isWaiting) {
    if (isWaiting) { this.isStale = true; return null; }
    this.isStale = false;
    this.asked = this.now();
    this.show();
    return this.asked;
  }

  // A frame is drawn: ask for the next one once the position has moved.
  drawn() {
    clearTimeout(this.timer);
    if (this.isStale || this.now() !== this.asked) this.ask();
    else if (this.isPlaying) this.timer = setTimeout(() => this.drawn(), Math.min(1000 * this.step / this.speed, 100));
  }

  play() {
    if (this.second >= this.record.last_s) this.second = this.record.first_s;
    this.from = this.second; this.since = performance.now(); this.isPlaying = true;
    this.changed();
    this.ask();
  }

  stop() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.show();
    this.changed();
  }

  pause() { this.now(); this.stop(); }

  toggle() { if (this.isPlaying) this.pause(); else this.play(); }

  setSpeed(speed) {
    this.now();
    this.from = this.second; this.since = performance.now(); this.speed = speed;
  }

  seek(second) {
    this.second = this.within(second);
    this.from = this.second; this.since = performance.now();
    this.show();
    this.ask();
  }

  move(steps) { this.pause(); this.seek(this.second + steps * this.step); }

  // To the next place where something happened, or to the one before.
  toMark(direction) {
    const marks = this.overview.marks.map(([at]) => at), here = this.now();
    const found = direction > 0 ? marks.find((at) => at > here) : marks.findLast((at) => at < here);
    if (found !== undefined) this.seek(found);
  }

  show() {
    const slider = $("position");
    slider.value = this.second;
    slider.setAttribute("aria-valuetext", clock(this.second));
    $("play").textContent = this.isPlaying ? "Pause" : "Play";
    if (!this.isPlaying) history.replaceState(null, "", `#at=${this.second}${this.tl && `&tl=${encodeURIComponent(this.tl)}`}`);
  }

  async poll() {
    try {
      const response = await fetch("overview.json");
      if (response.ok) { this.overview = await response.json(); this.showOverview(); }
    } catch {
      // the page's connection says that the server does not answer
    }
    if (!this.overview.is_complete) setTimeout(() => this.poll(), POLL_MS);
  }

  showOverview() {
    const { marks, missing, is_complete, read_to_s, unshown_marks } = this.overview;
    marks.sort((a, b) => a[0] - b[0]);
    $("read-to").textContent = is_complete ? "" : `alarms and commands are read up to ${read_to_s === null ? "–" : clock(read_to_s)}`;
    $("missing").replaceChildren(...(missing.length ? missing.map((text) => element("li", streetTimes(text))) : [element("li", is_complete ? "nothing is missing" : "")]));
    $("marks-list").replaceChildren(...marks.slice(0, MAX_LISTED).map(([at, kind, text]) => {
      const item = element("li"), button = element("button", clock(at), { type: "button", title: "Show this second" });
      button.addEventListener("click", () => this.seek(at));
      item.append(button, element("span", `${NAMES[kind] ?? kind}: ${streetTimes(text)}`));
      return item;
    }));
    const more = Math.max(marks.length - MAX_LISTED, 0) + unshown_marks;
    $("marks-more").textContent = marks.length ? (more ? `and ${more} more` : "") : (is_complete ? "nothing happened" : "");
    for (const id of ["previous-mark", "next-mark"]) $(id).disabled = marks.length === 0;
    this.drawMarks();
  }

  // Under the slider; the part that is not read yet is hatched.
  drawMarks() {
    const canvas = $("marks"), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const context = canvas.getContext("2d"), c = this.colours(), { first_s, last_s } = this.record;
    const x = (at) => (THUMB_PX - MARK_PX) / 2 + (width - THUMB_PX) * (at - first_s) / Math.max(last_s - first_s, 1e-9);
    context.scale(ratio, ratio);
    if (!this.overview.is_complete) {
      context.fillStyle = c.line;
      const from = this.overview.read_to_s === null ? 0 : x(this.overview.read_to_s);
      for (let k = from; k < width; k += 4) context.fillRect(k, 0, 2, height);
    }
    for (const [at, kind] of this.overview.marks) {
      context.fillStyle = { critical: c.fallback, warning: c.hold, command: c.accent, missing: c.dim }[kind] ?? c.text;
      // distinguished by height too
      const share = { critical: 1, warning: 0.7, command: 0.45 }[kind] ?? 1;
      context.fillRect(x(at), height * (1 - share), MARK_PX, height * share);
    }
  }
}
