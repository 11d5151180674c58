// A signal's movements as the arrows that are painted on its approaches, north up, in the colours of its state.

const SVG = "http://www.w3.org/2000/svg", FAR = 46, NEAR = 20, TIP = 13, LEG = 13, OFFSETS = { "U-turn": 2, left: 4, through: 9, right: 14 };

function node(tag, attributes, title) {
  const result = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) result.setAttribute(key, value);
  if (title) result.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
  return result;
}

// Points [along the heading, to its right] from the junction's middle, as an SVG path.
function path(heading, points) {
  const a = heading * Math.PI / 180, [sin, cos] = [Math.sin(a), Math.cos(a)];
  return points.map(([along, right], k) => `${k ? "L" : "M"}${(along * sin + right * cos).toFixed(1)} ${(right * sin - along * cos).toFixed(1)}`).join("");
}

function arrow({ kind, heading_deg: heading }) {
  if (kind === "crossing") return path(heading, [[LEG, -LEG], [LEG, LEG]]);
  const at = OFFSETS[kind] ?? OFFSETS.through, side = kind === "right" ? 1 : -1;
  const head = (along, right, towards) => towards ? [[along - 3.5, right - 3.5 * towards], [along, right], [along + 3.5, right - 3.5 * towards]]
    : [[along - 3.5, right - 3.5], [along, right], [along - 3.5, right + 3.5]];
  if (kind === "through") return path(heading, [[-FAR, at], [-TIP, at]]) + path(heading, head(-TIP, at, 0));
  const tip = at + side * 7;
  return path(heading, [[-FAR, at], [-NEAR, at], [-NEAR, tip]]) + path(heading, head(-NEAR, tip, side));
}

function colour(letters, colours) {
  if (/[Gg]/.test(letters)) return [colours.green, /G/.test(letters) ? 1 : 0.75];
  return letters.includes("y") ? [colours.yellow, 1] : [colours.red, 0.45];
}

// movements: of StreetData; state: SUMO's; label: its name.
export function junction(movements, state, label, colours) {
  const svg = node("svg", { viewBox: "-50 -50 100 100", class: "junction", role: "img", "aria-label": label });
  for (const movement of movements) {
    const [stroke, opacity] = colour(movement.links.map((link) => state[link] ?? "r").join(""), colours);
    const dashes = movement.kind === "crossing" ? { "stroke-dasharray": "2 1.5", "stroke-width": 4 } : { "stroke-width": 1.8, "stroke-linejoin": "round" };
    svg.append(node("path", { d: arrow(movement), fill: "none", stroke, "stroke-opacity": opacity, ...dashes }, movement.name));
  }
  return svg;
}
