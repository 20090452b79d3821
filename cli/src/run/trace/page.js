// The timeline of limen trace: draws what is in view, and tells the chosen slice in words.
"use strict";
const data = JSON.parse(document.getElementById("trace").textContent);
const canvas = document.getElementById("timeline");
const chosenText = document.getElementById("chosen");
const ROW = 38, BAR = 18, TOP = 24;
let first = Infinity, last = 0;
for (const track of data.tracks) {
  track.slices.sort((a, b) => a[0] - b[0]);
  for (const [at, length] of track.slices) {
    first = Math.min(first, at);
    last = Math.max(last, at + length);
  }
}
if (first > last) { first = 0; last = 1; }
const LEAST = 0.05; // microseconds in view at most zoom
let from = first, to = last, row = 0, slice = -1, colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = name => style.getPropertyValue("--" + name).trim();
  colours = { ink: read("ink"), soft: read("soft"), line: read("line"), bar: read("bar") };
  colours.kinds = data.kinds.map(read);
}

function time(us) {
  if (Math.abs(us) >= 1e6) return (us / 1e6).toFixed(3) + " s";
  if (Math.abs(us) >= 1e3) return (us / 1e3).toFixed(3) + " ms";
  return us.toFixed(3) + " µs";
}

function x(at) { return (at - from) / (to - from) * canvas.clientWidth; }

// The first slice that ends behind `at`: those of a thread may nest, so ends are not in order, but
// what began long before is found by its neighbours.
function begin(slices, at) {
  let low = 0, high = slices.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (slices[middle][0] < at) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 16);
}

function draw() {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = TOP + data.tracks.length * ROW;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = colours.soft;
  pen.fillText(time(from - first), 2, 14);
  const end = "+ " + time(to - from);
  pen.fillText(end, width - pen.measureText(end).width - 2, 14);
  data.tracks.forEach((track, index) => drawTrack(pen, track, index, width));
  drawFlows(pen);
}

function drawTrack(pen, track, index, width) {
  const y = TOP + index * ROW;
  pen.fillStyle = index === row ? colours.ink : colours.soft;
  pen.fillText(track.title, 2, y + 12);
  pen.fillStyle = colours.line;
  pen.fillRect(0, y + ROW - 1, width, 1);
  let drawn = -1;
  for (let n = begin(track.slices, from); n < track.slices.length; n++) {
    const [at, length, name, kind] = track.slices[n];
    if (at > to) break;
    if (at + length < from) continue;
    const left = Math.max(0, x(at)), right = Math.min(width, x(at + length));
    const isChosen = index === row && n === slice;
    // What falls into a pixel that is drawn already is not seen.
    if (right - left < 1 && Math.floor(left) === drawn && !isChosen) continue;
    drawn = Math.floor(left);
    pen.fillStyle = colours.kinds[kind];
    pen.fillRect(left, y + 16, Math.max(1, right - left), BAR);
    if (isChosen) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(left, y + 16, Math.max(2, right - left), BAR);
    }
    const text = data.words[name];
    if (right - left > 30 && pen.measureText(text).width < right - left - 6) {
      const isIdle = data.kinds[kind] === "idle";
      pen.fillStyle = isIdle ? colours.ink : document.documentElement.dataset.onBar;
      pen.fillText(text, left + 3, y + 29);
    }
  }
}

function drawFlows(pen) {
  const rowOf = {};
  data.tracks.forEach((track, index) => { if (track.cpu !== null) rowOf[track.cpu] = index; });
  pen.strokeStyle = colours.soft;
  pen.lineWidth = 1;
  for (const [source, sent, target, received] of data.flows) {
    if (received < from || sent > to || !(source in rowOf) || !(target in rowOf)) continue;
    pen.beginPath();
    pen.moveTo(x(sent), TOP + rowOf[source] * ROW + 16 + BAR / 2);
    pen.lineTo(x(received), TOP + rowOf[target] * ROW + 16 + BAR / 2);
    pen.stroke();
  }
}

function show(newFrom, newTo) {
  const length = Math.min(Math.max(newTo - newFrom, LEAST), last - first);
  const isAll = length >= last - first;
  from = isAll ? first : Math.min(Math.max(newFrom, first), last - length);
  to = isAll ? last : from + length;
  draw();
}

function zoom(factor, at) {
  const middle = at === undefined ? (from + to) / 2 : at;
  show(middle - (middle - from) * factor, middle + (to - middle) * factor);
}

function tell() {
  const track = data.tracks[row], it = track && track.slices[slice];
  if (!it) {
    chosenText.textContent = track ? "Track " + track.title + "." : "Nothing is chosen.";
    return;
  }
  const [at, length, name, kind, more] = it;
  const rest = data.words[more] ? " " + data.words[more] : "";
  const what = data.words[name] + " (" + data.kinds[kind] + ")";
  const when = " at " + time(at - first) + " for " + time(length) + ".";
  chosenText.textContent = track.title + ": " + what + when + rest;
}

function choose(newRow, newSlice) {
  row = Math.min(Math.max(newRow, 0), data.tracks.length - 1);
  const count = data.tracks[row] ? data.tracks[row].slices.length : 0;
  slice = Math.min(Math.max(newSlice, -1), count - 1);
  const it = slice >= 0 && data.tracks[row].slices[slice];
  if (it && (it[0] < from || it[0] > to)) {
    const half = (to - from) / 2;
    show(it[0] - half, it[0] + half);
  }
  tell();
  draw();
}

function step(by) {
  if (slice < 0 && by > 0 && data.tracks[row]) {
    // Begin with what is in view.
    const found = data.tracks[row].slices.findIndex(it => it[0] + it[1] > from);
    return choose(row, found);
  }
  choose(row, slice + by);
}

const KEYS = {
  ArrowLeft: () => show(from - (to - from) / 4, to - (to - from) / 4),
  ArrowRight: () => show(from + (to - from) / 4, to + (to - from) / 4),
  ArrowUp: () => choose(row - 1, -1),
  ArrowDown: () => choose(row + 1, -1),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => show(first, last),
  n: () => step(1), p: () => step(-1),
};
canvas.addEventListener("keydown", event => {
  const act = !event.ctrlKey && !event.altKey && !event.metaKey && KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});
canvas.addEventListener("wheel", event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, from + event.offsetX / canvas.clientWidth * (to - from));
}, { passive: false });
let drag = null;
canvas.addEventListener("pointerdown", event => {
  drag = { x: event.offsetX, from, to, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", event => {
  if (!drag) return;
  drag.moved = drag.moved || Math.abs(event.offsetX - drag.x) > 3;
  const by = (drag.x - event.offsetX) / canvas.clientWidth * (drag.to - drag.from);
  if (drag.moved) show(drag.from + by, drag.to + by);
});
canvas.addEventListener("pointerup", event => {
  if (drag && !drag.moved) pick(event.offsetX, event.offsetY);
  drag = null;
});
canvas.addEventListener("pointercancel", () => { drag = null; });

function pick(px, py) {
  const index = Math.floor((py - TOP) / ROW), track = data.tracks[index];
  if (!track) return;
  const at = from + px / canvas.clientWidth * (to - from), slack = (to - from) / canvas.clientWidth;
  let found = -1;
  for (let n = begin(track.slices, at - slack); n < track.slices.length; n++) {
    const [begins, length] = track.slices[n];
    if (begins > at + slack) break;
    if (begins + length >= at - slack) found = n;
  }
  choose(index, found);
}

for (const [id, act] of [["in", () => zoom(0.5)], ["out", () => zoom(2)],
  ["all", () => show(first, last)], ["previous", () => step(-1)], ["next", () => step(1)]]) {
  document.getElementById(id).addEventListener("click", act);
}
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function start() {
  document.documentElement.dataset.onBar = dark.matches ? "#14171b" : "#fff";
  readColours();
  draw();
}
dark.addEventListener("change", start);
window.addEventListener("resize", draw);
start();
