// The street on two canvases: lanes and junctions, drawn when the view changes, and what moves, drawn for each frame.

const MIN_SCALE = 0.005, MAX_SCALE = 30;  // pixels per metre
const STOP_LINE_SCALE = 0.12, SHAPE_SCALE = 1.2, LABEL_SCALE = 0.45;
const VEHICLE_M = [4.3, 1.8], QUEUED_M = 7.5, QUEUE_ALPHA = 0.85;
export const HEAT = [[1 / 3, 0.25], [2 / 3, 0.45], [1, 0.65]];  // up to this share of a lane that is queued, how opaque it is
const STOPPED = 0, SLOW = 20;  // quarters of m/s: below SLOW it is slow
const MARGIN = 0.08;  // of the view, so that moving it shows vehicles at once

export class StreetMap {
  constructor(holder, streetCanvas, trafficCanvas) {
    this.holder = holder;
    this.layers = [streetCanvas, trafficCanvas].map((canvas) => ({ canvas, context: canvas.getContext("2d") }));
    this.scale = 1; this.x = 0; this.y = 0; this.width = 1; this.height = 1;
    this.states = new Map(); this.modes = new Uint8Array(0); this.vehicles = null; this.queues = null; this.selected = -1; this.chosen = new Set(); this.values = new Map();
    this.onMove = () => {};
    this.coveredLeft = () => 0;  // pixels of the map that something covers from its left edge
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.colours = {};
    for (const name of ["land", "road", "junction", "cross", "policy", "hold", "fallback", "recovering", "fixed", "mark", "red", "yellow",
      "green", "dark", "free", "slow", "stopped", "queue", "text", "dim", "accent", "line", "panel"]) {
      this.colours[name] = style.getPropertyValue("--" + name).trim();
    }
  }

  setCity(city) {
    this.city = city;
    const lanes = city.lanes, crossing = new Set(lanes.crossing);
    this.lanePoints = lanes.shape.map(points);
    this.paths = new Map();
    lanes.width.forEach((width, k) => {
      const key = crossing.has(k) ? -width : width;
      if (!this.paths.has(key)) this.paths.set(key, new Path2D());
      trace(this.paths.get(key), this.lanePoints[k]);
    });
    this.junctionPath = new Path2D();
    for (const shape of city.junctions) {
      trace(this.junctionPath, points(shape));
      this.junctionPath.closePath();
    }
    this.stopLines = city.signals.map((signal) => this.linesOf(signal, crossing));
    this.rowPoints = city.rows.map((lane) => (lane < 0 ? null : this.lanePoints[lane]));
    this.rowLengths = this.rowPoints.map((shape) => shape?.reduce((sum, _, k) => (k < 2 || k % 2 ? sum : sum + Math.hypot(shape[k] - shape[k - 2], shape[k + 1] - shape[k - 1])), 0));
  }

  // By link, its segments at the stop line: [x, y, along x, along y, half width]; links of one lane share its width.
  linesOf(signal, crossing) {
    const slots = new Map();
    signal.links.forEach((lanes, link) => lanes.forEach((lane) => {
      if (!slots.has(lane)) slots.set(lane, []);
      slots.get(lane).push(link);
    }));
    const lines = signal.links.map(() => []);
    for (const [lane, links] of slots) {
      const shape = this.lanePoints[lane], last = shape.length - 2;
      if (last < 2) continue;
      if (crossing.has(lane)) {
        for (const link of links) lines[link].push({ crossing: shape });
        continue;
      }
      let [dx, dy] = [shape[last] - shape[last - 2], shape[last + 1] - shape[last - 1]];
      const length = Math.hypot(dx, dy) || 1;
      dx /= length; dy /= length;
      const width = this.city.lanes.width[lane] / 100, part = width / links.length;
      links.forEach((link, k) => {
        const left = (k + 0.5) * part - width / 2;  // link indices count from the right
        lines[link].push({ x: shape[last] - dy * left, y: shape[last + 1] + dx * left, dx, dy, half: part * 0.42 });
      });
    }
    return lines;
  }

  resize() {
    const box = this.holder.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.width = Math.max(box.width, 1); this.height = Math.max(box.height, 1); this.ratio = ratio;
    for (const { canvas } of this.layers) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    this.moved();
  }

  fit() {
    const [x0, y0, x1, y1] = this.city.bounds;
    const covered = this.coveredLeft();
    this.scale = clamp(0.92 * Math.min((this.width - covered) / Math.max(x1 - x0, 1), this.height / Math.max(y1 - y0, 1)), MIN_SCALE, MAX_SCALE);
    this.x = (x0 + x1) / 2 - covered / 2 / this.scale; this.y = (y0 + y1) / 2;
    this.moved();
  }

  show(x, y, scale) {
    this.x = x; this.y = y;
    if (scale) this.scale = clamp(scale, MIN_SCALE, MAX_SCALE);
    this.moved();
  }

  pan(dx, dy) {
    this.x -= dx / this.scale; this.y += dy / this.scale;
    this.moved();
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.world(px, py), scale = clamp(this.scale * factor, MIN_SCALE, MAX_SCALE);
    this.x = x - (px - this.width / 2) / scale; this.y = y + (py - this.height / 2) / scale;
    this.scale = scale;
    this.moved();
  }

  world(px, py) { return [this.x + (px - this.width / 2) / this.scale, this.y - (py - this.height / 2) / this.scale]; }
  screen(x, y) { return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale]; }

  view() {
    const w = (0.5 + MARGIN) * this.width / this.scale, h = (0.5 + MARGIN) * this.height / this.scale;
    return [this.x - w, this.y - h, this.x + w, this.y + h];
  }

  moved() {
    if (!this.city) return;
    this.drawStreet();
    this.onMove();
  }

  toWorld(context) {
    const k = this.scale * this.ratio;
    context.setTransform(k, 0, 0, -k, (this.width / 2 - this.x * this.scale) * this.ratio, (this.height / 2 + this.y * this.scale) * this.ratio);
  }

  toScreen(context) { context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0); }

  drawStreet() {
    const { context } = this.layers[0], c = this.colours, pixel = 1 / this.scale;
    this.toScreen(context);
    context.fillStyle = c.land;
    context.fillRect(0, 0, this.width, this.height);
    this.toWorld(context);
    context.fillStyle = c.junction;
    context.fill(this.junctionPath);
    context.lineJoin = "round";
    for (const [width, path] of this.paths) {
      context.strokeStyle = width < 0 ? c.cross : c.road;
      context.setLineDash(width < 0 ? [0.6, 0.6] : []);
      context.lineWidth = Math.max(Math.abs(width) / 100 - (this.scale > 2 ? 0.25 : 0), pixel);
      context.stroke(path);
    }
    context.setLineDash([]);
  }

  drawTraffic() {
    if (!this.city) return;
    const { context } = this.layers[1];
    this.toScreen(context);
    context.clearRect(0, 0, this.width, this.height);
    this.toWorld(context);
    this.drawQueues(context);
    this.drawSelection(context);
    this.drawVehicles(context);
    if (this.scale >= STOP_LINE_SCALE) this.drawStopLines(context);
    this.toScreen(context);
    this.drawMarkers(context);
  }

  drawQueues(context) {
    if (!this.queues) return;
    const bars = new Path2D(), lanes = HEAT.map(([, alpha]) => [new Path2D(), alpha]);
    for (let k = 0; k < this.queues.row.length; k++) {
      const row = this.queues.row[k], shape = this.rowPoints[row], queue = this.queues.vehicles[k] * QUEUED_M;
      if (!shape) continue;
      traceBack(bars, shape, queue);
      trace(lanes[HEAT.findIndex(([share]) => Math.min(1, queue / this.rowLengths[row]) <= share)][0], shape);
    }
    context.strokeStyle = this.colours.queue;
    context.lineWidth = Math.max(2.6, 3 / this.scale);
    context.lineCap = "butt";
    for (const [path, alpha] of [...lanes, [bars, QUEUE_ALPHA]]) {
      context.globalAlpha = alpha;
      context.stroke(path);
    }
    context.globalAlpha = 1;
  }

  // The lanes that the selected TL's policy sees; a wider line for a larger value.
  drawSelection(context) {
    context.strokeStyle = this.colours.accent;
    for (const [lane, share] of this.values) {
      context.beginPath();
      trace(context, this.lanePoints[lane]);
      context.lineWidth = Math.max(0.4, 1.5 / this.scale) + 2.4 * share;
      context.globalAlpha = 0.35 + 0.35 * share;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawVehicles(context) {
    const v = this.vehicles;
    if (!v) return;
    const groups = [new Path2D(), new Path2D(), new Path2D()], hasShape = this.scale >= SHAPE_SCALE;
    const size = Math.max(2.4 / this.scale, 1.8), grow = [1.25, 1, 1];
    for (let k = 0; k < v.count; k++) {
      const group = v.speed[k] <= STOPPED ? 0 : v.speed[k] < SLOW ? 1 : 2, path = groups[group];
      const x = v.x0 + v.step * v.x[k], y = v.y0 + v.step * v.y[k];
      if (!hasShape) {
        const s = size * grow[group];
        path.rect(x - s / 2, y - s / 2, s, s);
        continue;
      }
      const turn = v.angle[k] * (Math.PI / 128), dx = Math.sin(turn), dy = Math.cos(turn), w = VEHICLE_M[1] / 2;
      const nx = -dy * w, ny = dx * w, sx = x - dx, sy = y - dy, bx = x - dx * VEHICLE_M[0], by = y - dy * VEHICLE_M[0];
      path.moveTo(x + nx * 0.55, y + ny * 0.55); path.lineTo(x - nx * 0.55, y - ny * 0.55);  // the front is narrower
      path.lineTo(sx - nx, sy - ny); path.lineTo(bx - nx, by - ny); path.lineTo(bx + nx, by + ny); path.lineTo(sx + nx, sy + ny);
      path.closePath();
    }
    const c = this.colours;
    for (const [path, colour] of [[groups[2], c.free], [groups[1], c.slow], [groups[0], c.stopped]]) {
      context.fillStyle = colour;
      context.fill(path);
    }
    if (hasShape) {  // a stopped vehicle has an outline too, so that it is recognised by more than its colour
      context.strokeStyle = c.queue;
      context.lineWidth = 0.35;
      context.stroke(groups[0]);
    }
  }

  // Red: a bar across the lane. Yellow: a dashed bar. Green: open, a line along the lane; shorter if it must yield.
  drawStopLines(context) {
    const [x0, y0, x1, y1] = this.view(), red = new Path2D(), yellow = new Path2D(), green = new Path2D(), dark = new Path2D();
    for (const [signal, state] of this.states) {
      const at = this.city.signals[signal].at;
      if (at[0] < x0 - 100 || at[0] > x1 + 100 || at[1] < y0 - 100 || at[1] > y1 + 100) continue;
      const lines = this.stopLines[signal];
      for (let link = 0; link < state.length && link < lines.length; link++) {
        const letter = state[link];
        for (const line of lines[link]) {
          if (line.crossing) {
            trace(letter === "G" || letter === "g" ? green : letter === "r" ? red : yellow, line.crossing);
          } else if (letter === "G" || letter === "g") {
            const length = letter === "G" ? 7 : 3.5;
            green.moveTo(line.x, line.y);
            green.lineTo(line.x - line.dx * length, line.y - line.dy * length);
          } else {
            const path = letter === "r" ? red : "yu".includes(letter) ? yellow : dark;
            path.moveTo(line.x - line.dy * line.half, line.y + line.dx * line.half);
            path.lineTo(line.x + line.dy * line.half, line.y - line.dx * line.half);
          }
        }
      }
    }
    const c = this.colours, width = Math.max(0.9, 1.6 / this.scale);
    context.lineCap = "butt";
    for (const [path, colour, thickness, dash] of [[dark, c.dark, 1, []], [green, c.green, 1, []], [yellow, c.yellow, 1.3, [0.5, 0.3]], [red, c.red, 1.3, []]]) {
      context.strokeStyle = colour;
      context.lineWidth = width * thickness;
      context.setLineDash(dash);
      context.stroke(path);
    }
    context.setLineDash([]);
  }

  drawMarkers(context) {
    const c = this.colours, names = this.city.modes, size = clamp(1.5 + 6.5 * Math.sqrt(this.scale), 2.5, 9), hasLabel = this.scale >= LABEL_SCALE;
    const groups = names.map(() => new Path2D());
    context.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "center";
    const labels = [];
    this.city.tls.forEach((tl, k) => {
      const mode = this.modes[k] ?? 0;
      for (const signal of tl.signals) {
        const [x, y] = this.screen(...this.city.signals[signal].at);
        if (x < -20 || y < -20 || x > this.width + 20 || y > this.height + 20) continue;
        glyph(groups[mode] ?? groups[0], names[mode], x, y, size);
        if (hasLabel) labels.push([tl.signals.length > 1 ? `${tl.tl}: ${this.city.signals[signal].id}` : tl.tl, x, y - size - 5]);
        if (this.chosen.has(k)) {
          context.beginPath();
          context.arc(x, y, size + 6, 0, 2 * Math.PI);
          context.strokeStyle = c.accent;
          context.lineWidth = 3;
          context.stroke();
        }
      }
    });
    context.strokeStyle = c.dim;
    context.lineWidth = 1.5;
    for (let k = this.city.controlled; k < this.city.signals.length; k++) {
      const [x, y] = this.screen(...this.city.signals[k].at);
      if (x < -20 || y < -20 || x > this.width + 20 || y > this.height + 20) continue;
      context.beginPath();
      context.arc(x, y, size * 0.7, 0, 2 * Math.PI);
      context.stroke();
    }
    names.forEach((name, mode) => {
      context.strokeStyle = c.mark;
      context.lineWidth = Math.min(3, 0.5 * size);
      context.stroke(groups[mode]);
      context.fillStyle = c[name] ?? c.text;
      context.fill(groups[mode]);
    });
    context.lineWidth = 3;
    context.strokeStyle = c.land;
    context.fillStyle = c.text;
    for (const [text, x, y] of labels) {
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    }
  }

  // The TLs that are on the screen.
  shownTls() {
    return [...this.city.tls.keys()].filter((k) => this.city.tls[k].signals.some((signal) => {
      const [x, y] = this.screen(...this.city.signals[signal].at);
      return x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    }));
  }

  // The TL whose marker is near a point of the screen; -1: none is.
  tlAt(px, py, within = 22) {
    let best = -1, nearest = within;
    this.city.tls.forEach((tl, k) => {
      for (const signal of tl.signals) {
        const [x, y] = this.screen(...this.city.signals[signal].at), distance = Math.hypot(x - px, y - py);
        if (distance < nearest) { best = k; nearest = distance; }
      }
    });
    return best;
  }
}

// The shape of a control mode: distinguishable without colours.
export function glyph(path, mode, x, y, r) {
  const polygon = (...corners) => {
    corners.forEach(([dx, dy], k) => (k ? path.lineTo(x + dx * r, y + dy * r) : path.moveTo(x + dx * r, y + dy * r)));
    path.closePath();
  };
  if (mode === "hold") { path.rect(x - r * 0.85, y - r, r * 0.6, 2 * r); path.rect(x + r * 0.25, y - r, r * 0.6, 2 * r); }
  else if (mode === "fallback") polygon([0, -1.15], [1.1, 0.85], [-1.1, 0.85]);
  else if (mode === "recovering") polygon([0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]);
  else if (mode === "fixed") polygon([-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]);
  else { path.moveTo(x + r, y); path.arc(x, y, r, 0, 2 * Math.PI); path.closePath(); }
}

function points(flat) {
  const result = new Float64Array(flat.length);
  for (let k = 0, x = 0, y = 0; k < flat.length; k += 2) {
    x += flat[k]; y += flat[k + 1];
    result[k] = x / 100; result[k + 1] = y / 100;
  }
  return result;
}

function trace(path, shape) {
  for (let k = 0; k < shape.length; k += 2) (k ? path.lineTo(shape[k], shape[k + 1]) : path.moveTo(shape[k], shape[k + 1]));
}

// The last `length` metres of a shape, from its end.
function traceBack(path, shape, length) {
  let k = shape.length - 2;
  if (k < 2) return;
  path.moveTo(shape[k], shape[k + 1]);
  for (; k >= 2 && length > 0; k -= 2) {
    const dx = shape[k - 2] - shape[k], dy = shape[k - 1] - shape[k + 1], part = Math.hypot(dx, dy), share = Math.min(1, length / (part || 1));
    path.lineTo(shape[k] + dx * share, shape[k + 1] + dy * share);
    length -= part;
  }
}

function clamp(value, low, high) { return Math.min(Math.max(value, low), high); }
