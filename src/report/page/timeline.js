'use strict';
// A trace on a canvas: wheel or +/- zooms, dragging or arrow keys move, a click shows a span.
const TRACE = JSON.parse(document.getElementById('data').textContent);
const NAMES = TRACE.names, TRACKS = TRACE.tracks;
const canvas = document.getElementById('timeline'), details = document.getElementById('details');
const context = canvas.getContext('2d');
const ROW = 18, GAP = 8, LEFT = 190, TOP = 24, CURVE = 44;
const begin = TRACE.begin, end = Math.max(TRACE.end, begin + 1);
const view = { from: begin, to: end, selected: null, found: '' };

// ---- what lies where ----
const rows = [];
let height = TOP;
for (const track of TRACKS) {
  const depth = track.depth.reduce((most, d) => Math.max(most, d + 1), 1);
  rows.push({ track, y: height, height: depth * ROW });
  height += depth * ROW + GAP;
}
for (const curve of TRACE.curves) {
  rows.push({ curve, y: height, height: CURVE });
  height += CURVE + GAP;
}

const style = getComputedStyle(document.documentElement);
const color_of = name => style.getPropertyValue(name).trim();
/// The same name has the same colour wherever it is.
function fill_of(name) {
  let hash = 0;
  for (const c of NAMES[name]) hash = (hash * 31 + c.codePointAt(0)) | 0;
  return color_of('--s' + Math.abs(hash) % 10);
}
const fills = NAMES.map((_, i) => fill_of(i));
/// Text that can be read on a colour, given as #rrggbb.
function ink_on(fill) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(fill.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#101214' : '#ffffff';
}
const inks = fills.map(ink_on);

function time_text(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return ns.toFixed(0) + ' ns';
  if (size < 1e6) return (ns / 1e3).toFixed(size < 1e4 ? 2 : 1) + ' µs';
  return size < 1e9 ? (ns / 1e6).toFixed(3) + ' ms' : (ns / 1e9).toFixed(3) + ' s';
}

// ---- drawing ----
const x_of = ns => LEFT + (ns - view.from) / (view.to - view.from) * (canvas.clientWidth - LEFT);
const ns_of = x => view.from + (x - LEFT) / (canvas.clientWidth - LEFT) * (view.to - view.from);

function draw_axis(width) {
  context.fillStyle = color_of('--soft');
  context.strokeStyle = color_of('--rule');
  const wanted = (view.to - view.from) / Math.max(2, (width - LEFT) / 140);
  const power = Math.pow(10, Math.floor(Math.log10(wanted)));
  const step = power * [1, 2, 5, 10].find(m => m * power >= wanted);
  for (let t = Math.ceil((view.from - begin) / step) * step + begin; t <= view.to; t += step) {
    const x = Math.round(x_of(t)) + 0.5;
    context.beginPath();
    context.moveTo(x, TOP - 6);
    context.lineTo(x, height);
    context.stroke();
    context.fillText(time_text(t - begin), x + 3, TOP - 10);
  }
}
/// Spans narrower than a pixel are drawn once per pixel and depth.
function draw_track(row, width) {
  const t = row.track, last = new Map();
  let drawn = 0;
  for (let i = 0; i < t.start.length; ++i) {
    const from = t.start[i], to = from + t.length[i];
    if (from > view.to) break;
    if (to < view.from) continue;
    const x0 = Math.max(LEFT, x_of(from)), x1 = Math.min(width, x_of(to)), depth = t.depth[i];
    if (x1 < (last.get(depth) ?? -1) + 0.7 && !(view.selected && view.selected.row === row && view.selected.i === i)) continue;
    last.set(depth, x1);
    const wide = Math.max(x1 - x0, 0.8), y = row.y + depth * ROW;
    const dim = view.found && !NAMES[t.name[i]].toLowerCase().includes(view.found);
    context.globalAlpha = dim ? 0.15 : 1;
    context.fillStyle = fills[t.name[i]];
    context.fillRect(x0, y, wide, ROW - 2);
    if (wide > 34) {
      context.save();
      context.beginPath();
      context.rect(x0, y, wide - 3, ROW - 2);
      context.clip();
      context.fillStyle = inks[t.name[i]];
      context.fillText(NAMES[t.name[i]], x0 + 4, y + ROW - 6);
      context.restore();
    }
    ++drawn;
  }
  context.globalAlpha = 1;
  return drawn;
}
/// Values of a counter on top of each other, each until the next time.
function draw_curve(row, width) {
  const { at, values, keys, name } = row.curve;
  const most = values.reduce((m, v) => Math.max(m, v.reduce((a, b) => a + b, 0)), 0) || 1;
  at.forEach((t, i) => {
    const x0 = Math.max(LEFT, x_of(t)), x1 = Math.min(width, x_of(i + 1 < at.length ? at[i + 1] : end));
    let y = row.y + row.height;
    values[i].forEach((v, k) => {
      const tall = v / most * row.height;
      y -= tall;
      context.fillStyle = color_of('--s' + k % 10);
      if (x1 > x0) context.fillRect(x0, y, x1 - x0, tall);
    });
  });
  label(row, `${name}, to ${amount(most)}`);
}
const amount = v => v < 1e4 ? String(v) : v < 1e9 ? (v / 1e6).toPrecision(4) + ' M' : (v / 1e9).toPrecision(4) + ' G';
function label(row, text) {
  context.fillStyle = color_of('--paper');
  context.fillRect(0, row.y, LEFT - 4, Math.min(row.height, ROW));
  context.fillStyle = color_of('--ink');
  context.save();
  context.beginPath();
  context.rect(0, row.y, LEFT - 8, ROW);
  context.clip();
  context.fillText(text, 4, row.y + 13);
  context.restore();
}
function draw_flows() {
  if (!view.selected) return;
  const { row, i } = view.selected, t = row.track, from = t.start[i], to = from + t.length[i];
  const index = TRACKS.indexOf(t);
  context.strokeStyle = color_of('--ink');
  let shown = 0;
  for (const [a, a_ns, b, b_ns] of TRACE.flows) {
    const here = (a === index && a_ns >= from && a_ns <= to) || (b === index && b_ns >= from && b_ns < Math.max(to, from + 1));
    if (!here || ++shown > 300) continue;
    context.beginPath();
    context.moveTo(x_of(a_ns), rows[a].y + rows[a].height);
    context.lineTo(x_of(b_ns), rows[b].y);
    context.stroke();
  }
  context.strokeRect(Math.max(LEFT, x_of(from)), row.y + t.depth[i] * ROW, Math.max(2, x_of(to) - Math.max(LEFT, x_of(from))), ROW - 2);
}
function draw() {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + 'px';
  canvas.width = width * scale;
  canvas.height = height * scale;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = '12px system-ui, sans-serif';
  context.fillStyle = color_of('--paper');
  context.fillRect(0, 0, width, height);
  draw_axis(width);
  let drawn = 0;
  for (const row of rows) {
    if (row.curve) { draw_curve(row, width); continue; }
    drawn += draw_track(row, width);
    label(row, row.track.label);
  }
  draw_flows();
  canvas.dataset.drawn = drawn;
  canvas.dataset.from = view.from;
  canvas.dataset.to = view.to;
}

// ---- looking around ----
function look(from, to) {
  const least = 100, span = Math.min(end - begin, Math.max(least, to - from));
  view.from = Math.min(Math.max(begin, from), end - span);
  view.to = view.from + span;
  draw();
}
function zoom(factor, x) {
  const at = ns_of(Math.max(LEFT, x));
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
}
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  if (event.shiftKey) {
    const by = (view.to - view.from) * Math.sign(event.deltaY || event.deltaX) * 0.1;
    look(view.from + by, view.to + by);
  } else {
    zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
  }
}, { passive: false });
let drag = null;
canvas.addEventListener('pointerdown', event => { drag = { x: event.offsetX, from: view.from, to: view.to, moved: false }; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener('pointermove', event => {
  if (!drag) return;
  const by = (drag.x - event.offsetX) / (canvas.clientWidth - LEFT) * (drag.to - drag.from);
  if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
  if (drag.moved) look(drag.from + by, drag.to + by);
});
canvas.addEventListener('pointerup', event => {
  const was = drag;
  drag = null;
  if (was && !was.moved) select(event.offsetX, event.offsetY);
});
canvas.addEventListener('keydown', event => {
  const quarter = (view.to - view.from) / 4, middle = LEFT + (canvas.clientWidth - LEFT) / 2;
  const moves = { ArrowLeft: () => look(view.from - quarter, view.to - quarter), ArrowRight: () => look(view.from + quarter, view.to + quarter),
    '+': () => zoom(0.5, middle), '=': () => zoom(0.5, middle), '-': () => zoom(2, middle), Home: () => look(begin, end), Escape: () => show(null) };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
});
document.getElementById('search').addEventListener('input', event => { view.found = event.target.value.toLowerCase(); draw(); });
document.getElementById('whole').addEventListener('click', () => look(begin, end));
window.addEventListener('resize', draw);

// ---- details ----
function select(x, y) {
  const row = rows.find(r => y >= r.y && y < r.y + r.height);
  if (!row) return show(null);
  if (row.curve) return show_curve(row.curve, ns_of(x));
  const t = row.track, at = ns_of(x), depth = Math.floor((y - row.y) / ROW), slack = (view.to - view.from) / canvas.clientWidth;
  let best = -1;
  for (let i = 0; i < t.start.length; ++i) {
    if (t.depth[i] === depth && at >= t.start[i] - slack && at <= t.start[i] + t.length[i] + slack) best = i;
  }
  show(best < 0 ? null : { row, i: best });
}
function tell(facts) {
  details.replaceChildren();
  details.hidden = facts.length === 0;
  for (const [key, value] of facts) {
    const term = document.createElement('dt'), text = document.createElement('dd');
    term.textContent = key;
    text.textContent = value;
    details.append(term, text);
  }
}
function show_curve(curve, ns) {
  let i = 0;
  while (i + 1 < curve.at.length && curve.at[i + 1] <= ns) ++i;
  view.selected = null;
  tell([['what', curve.name], ['at', time_text(curve.at[i] - begin)], ...curve.keys.map((key, k) => [key, amount(curve.values[i][k] ?? 0)])]);
  draw();
}
function show(selected) {
  view.selected = selected;
  if (!selected) {
    tell([]);
    return draw();
  }
  const t = selected.row.track, i = selected.i;
  const facts = [['what', NAMES[t.name[i]]], ['where', t.label], ['begins', time_text(t.start[i] - begin)], ['lasts', time_text(t.length[i])]];
  const told = t.facts[i] ? JSON.parse(t.facts[i]) : {};
  for (const [key, value] of Object.entries(told)) facts.push([key, Array.isArray(value) ? value.join(' × ') : String(value)]);
  if (told.flop && t.length[i] > 0) facts.push(['rate', (told.flop / t.length[i] / 1e3).toFixed(1) + ' TFLOP/s']);
  tell(facts);
  draw();
}
draw();
