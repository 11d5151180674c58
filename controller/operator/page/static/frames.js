// Decodes the server's binary frames; their form is described in controller/operator/page/frames.py.

const VEHICLES = 1, STATES = 2, MODES = 3, QUEUES = 4, PANEL = 5;

export function decode(buffer) {
  const data = new DataView(buffer);
  if (buffer.byteLength < 16 || data.getUint8(0) !== 1 || data.getUint16(2, true) !== 1) {
    throw new Error("not a frame of this version; reload the page");
  }
  // without sections it shows that the connection lives, and a new page has no second yet
  const frame = { isEmpty: buffer.byteLength === 16, allStates: (data.getUint8(1) & 1) === 1, sequence: data.getUint32(4, true), second: data.getFloat64(8, true) };
  for (let at = 16; at < buffer.byteLength;) {
    const kind = data.getUint8(at), size = data.getUint32(at + 4, true), begin = at + 8;
    if (begin + size > buffer.byteLength) throw new Error("a frame that ends inside a section");
    if (kind === VEHICLES) frame.vehicles = vehicles(buffer, data, begin);
    else if (kind === STATES) frame.states = states(buffer, data, begin);
    else if (kind === MODES) frame.modes = new Uint8Array(buffer, begin, size);
    else if (kind === QUEUES) frame.queues = queues(buffer, data, begin);
    else if (kind === PANEL) frame.panel = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, begin, size)));
    at = begin + Math.ceil(size / 8) * 8;
  }
  return frame;
}

function vehicles(buffer, data, at) {
  const count = data.getUint32(at + 12, true), begin = at + 16;
  return {
    x0: data.getFloat32(at, true), y0: data.getFloat32(at + 4, true), step: data.getFloat32(at + 8, true), count,
    x: new Uint16Array(buffer, begin, count), y: new Uint16Array(buffer, begin + 2 * count, count),
    angle: new Uint8Array(buffer, begin + 4 * count, count), speed: new Uint8Array(buffer, begin + 5 * count, count),
  };
}

function states(buffer, data, at) {
  const count = data.getUint32(at, true), size = data.getUint32(at + 4, true), begin = at + 8;
  const signals = new Uint16Array(buffer, begin, count), sizes = new Uint8Array(buffer, begin + 2 * count, count);
  const text = new TextDecoder("ascii").decode(new Uint8Array(buffer, begin + 3 * count, size));
  const result = new Map();
  for (let k = 0, from = 0; k < count; k++) {
    result.set(signals[k], text.slice(from, from + sizes[k]));
    from += sizes[k];
  }
  return result;
}

function queues(buffer, data, at) {
  const count = data.getUint32(at, true);
  return { row: new Uint32Array(buffer, at + 8, count), vehicles: new Uint8Array(buffer, at + 8 + 4 * count, count) };
}
