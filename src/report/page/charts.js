'use strict';
const SVG = 'http://www.w3.org/2000/svg';
const state = { x: 'samples', zoom: null, hidden: new Set() };

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v !== null && v !== undefined) node.setAttribute(k, v);
  }
  node.append(...children);
  return node;
}
function svg(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attributes || {})) node.setAttribute(k, v);
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- numbers as people read them ----
const finite = v => v !== null && v !== undefined && Number.isFinite(v);
const trim = text => text.includes('.') ? text.replace(/\.?0+$/, '') : text;
function fixed(v, digits) { return trim(v.toFixed(Math.max(0, Math.min(12, digits)))); }
/// Decimals that tell multiples of `step` apart.
function decimals(step) {
  let d = 0;
  while (d < 12 && Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) > 1e-6 * step * 10 ** d) ++d;
  return d;
}
/// Significant digits, with k, M, G; `step` makes the labels of one axis agree.
function si(v, step) {
  if (!finite(v)) return 'not finite';
  const size = Math.max(Math.abs(v), step || 0);
  for (const [unit, scale] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
    if (size >= scale * 0.9995) {
      return step ? fixed(v / scale, decimals(step / scale)) + (v === 0 ? '' : unit)
                  : trim((v / scale).toPrecision(4)) + unit;
    }
  }
  if (step) return fixed(v, decimals(step));
  if (v !== 0 && Math.abs(v) < 1e-3) return v.toExponential(2);
  return trim(v.toPrecision(4));
}
function duration(s) {
  if (!finite(s)) return '–';
  if (s < 60) return trim(s.toFixed(s < 10 ? 2 : 1)) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min' + (Math.floor(s % 60) ? ' ' + Math.floor(s % 60) + ' s' : '');
  const minutes = Math.round(s / 60);
  return Math.floor(minutes / 60) + ' h' + (minutes % 60 ? ' ' + minutes % 60 + ' min' : '');
}
/// For axes: one unit per tick.
function short_duration(s) {
  if (s === 0) return '0';
  if (s < 60) return fixed(s, 3) + ' s';
  if (s < 3600) return fixed(s / 60, 1) + ' min';
  return fixed(s / 3600, 2) + ' h';
}
const percent = v => finite(v) ? trim((100 * v).toPrecision(3)) + ' %' : 'not finite';
const four = v => finite(v) ? v.toFixed(4) : 'not finite';
const integer = v => finite(v) ? String(Math.round(v)).replace(/\B(?=(\d{3})+$)/g, '\u2009') : '–';

// ---- axes ----
function nice_step(span, count, steps) {
  if (steps) {
    for (const s of steps) if (span / s <= count) return s;
  }
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].find(m => m * power >= raw * 0.9999) * power;
}
function ticks(lo, hi, step) {
  const out = [];
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; ++k) out.push(k * step);
  return out;
}
const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
  3600, 7200, 10800, 21600, 43200, 86400, 172800];
const X_AXES = {
  samples: { label: 'samples', tick: si, value: v => integer(v) + ' samples' },
  time: { label: 'time', tick: short_duration, steps: TIME_STEPS, value: duration },
  step: { label: 'steps', tick: si, value: v => 'step ' + integer(v) },
};

/// The range that shows the curve: a few extreme values do not flatten the rest. Returns also how
/// many values lie outside.
function robust_range(values, options) {
  const sorted = values.filter(finite).sort((a, b) => a - b);
  if (!sorted.length) return { lo: 0, hi: 1, outside: 0 };
  const at = q => sorted[Math.round(q * (sorted.length - 1))];
  let lo = sorted[0], hi = sorted[sorted.length - 1];
  if (sorted.length >= 60 && !options.log && !options.full) {
    const a = at(0.04), b = at(0.96), body = b - a;
    if (body > 0 && hi - b > 2.5 * body) hi = b + 0.6 * body;
    if (body > 0 && a - lo > 2.5 * body && !options.zero) lo = a - 0.6 * body;
  }
  return { lo, hi, outside: sorted.filter(v => v < lo || v > hi).length };
}
/// Scale of the y axis: { lo, hi, map, ticks, tick }.
function y_scale(range, options, height) {
  let { lo, hi } = range;
  const count = Math.max(2, Math.floor(height / 40));
  if (options.log && lo > 0 && hi / lo > 30) {
    const a = Math.log10(lo), b = Math.log10(hi), pad = (b - a) * 0.05;
    const mantissas = (b - a) * 3 <= count ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil((b - a) / count));
    const marks = [];
    for (let e = Math.floor(a - pad); e <= b + pad; ++e) {
      if (e % every === 0) for (const m of mantissas) marks.push(m * 10 ** e);
    }
    const map = v => v > 0 ? (Math.log10(v) - a + pad) / (b - a + 2 * pad) : -1;
    return { map, ticks: marks.filter(v => map(v) >= 0 && map(v) <= 1), tick: v => si(v) };
  }
  if (options.zero) lo = Math.min(0, lo);
  if (hi === lo) { hi += Math.abs(hi) * 0.1 || 1; if (!options.zero) lo -= Math.abs(lo) * 0.1 || 1; }
  const pad = (hi - lo) * 0.06;
  if (!(options.zero && lo === 0)) lo -= pad;
  hi += pad;
  if (options.max !== undefined) hi = Math.min(hi, options.max);
  const step = nice_step(hi - lo, count);
  const tick = options.tick === 'percent' ? v => fixed(100 * v, decimals(100 * step)) + ' %' : v => si(v, step);
  return { map: v => (v - lo) / (hi - lo), ticks: ticks(lo, hi, step), tick };
}

// ---- one chart: a frame with axes, a cursor, a tooltip; the caller draws inside ----
const redraws = [];
function redraw() { for (const f of redraws) f(); }

/// spec: { id, x: {label, tick, value, steps}, y options, y_values, x_range, stops (x of the cursor),
///         paint(layer, X, Y), rows(i): what the tooltip says at stop i, zoom: allowed, aria }
class Frame {
  constructor(plot) {
    this.plot = plot;
    this.tip = el('div', { class: 'tip', hidden: '', role: 'status', 'aria-live': 'polite' });
    this.at = -1;
    this.root = svg('svg', { tabindex: '0', role: 'img' });
    plot.append(this.root, this.tip);
    this.root.addEventListener('pointermove', e => this.move(e));
    this.root.addEventListener('pointerdown', e => this.down(e));
    this.root.addEventListener('pointerup', e => this.up(e));
    this.root.addEventListener('pointerleave', () => { if (!this.drag) this.hide(); });
    this.root.addEventListener('dblclick', () => set_zoom(null));
    this.root.addEventListener('keydown', e => this.key(e));
    this.root.addEventListener('blur', () => this.hide());
  }
  draw(spec) {
    this.spec = spec;
    const width = Math.max(240, this.plot.clientWidth);
    const height = spec.height || Math.round(Math.max(220, Math.min(300, width * 0.5)));
    const top = 12, bottom = 44;
    const scale = y_scale(spec.range, spec.y, height - top - bottom);
    const labels = scale.ticks.map(scale.tick);
    const left = 14 + 8 * Math.max(2, ...labels.map(t => t.length)), right = 14;
    this.box = { left, top, width: width - left - right, height: height - top - bottom };
    const b = this.box, [x0, x1] = spec.x_range;
    this.X = v => b.left + (v - x0) / (x1 - x0 || 1) * b.width;
    this.Y = v => b.top + (1 - scale.map(v)) * b.height;
    this.root.replaceChildren();
    this.root.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.root.setAttribute('height', height);
    this.root.setAttribute('aria-label', spec.aria);
    const clip = 'clip-' + spec.id;
    const defs = svg('defs'), path = svg('clipPath', { id: clip });
    path.append(svg('rect', { x: b.left, y: b.top - 4, width: b.width + 4, height: b.height + 8 }));
    defs.append(path);
    this.root.append(defs);
    scale.ticks.forEach((v, i) => {
      const y = Math.round(this.Y(v)) + 0.5;
      this.root.append(svg('line', { class: 'grid', x1: b.left, x2: b.left + b.width, y1: y, y2: y }),
        svg('text', { x: b.left - 8, y: y + 5, 'text-anchor': 'end' }, labels[i]));
    });
    this.x_axis(x0, x1);
    const layer = svg('g', { 'clip-path': `url(#${clip})`, class: 'data' });
    this.root.append(layer);
    spec.paint(layer, this.X, this.Y, this);
    this.cursor = svg('line', { class: 'cursor', y1: b.top, y2: b.top + b.height, visibility: 'hidden' });
    this.brush = svg('rect', { class: 'brush', y: b.top, height: b.height, visibility: 'hidden' });
    this.root.append(this.brush, this.cursor);
    this.hide();
  }
  x_axis(x0, x1) {
    const b = this.box, base = b.top + b.height, axis = this.spec.x;
    this.root.append(svg('line', { class: 'axis', x1: b.left, x2: b.left + b.width, y1: base + 0.5, y2: base + 0.5 }));
    const step = nice_step(x1 - x0 || 1, Math.max(2, Math.floor(b.width / 72)), axis.steps);
    for (const v of ticks(x0, x1, step)) {
      const text = axis.tick(v, step), half = text.length * 4;
      const x = Math.max(half, Math.min(this.X(v), b.left + b.width + 12 - half));
      this.root.append(svg('text', { x, y: base + 19, 'text-anchor': 'middle' }, text));
    }
    this.root.append(svg('text', { x: b.left + b.width, y: base + 38, 'text-anchor': 'end' }, axis.label));
  }
  pixel(event) {
    const r = this.root.getBoundingClientRect();
    return event.clientX - r.left;
  }
  value(pixel) {
    const [x0, x1] = this.spec.x_range;
    return x0 + Math.max(0, Math.min(1, (pixel - this.box.left) / this.box.width)) * (x1 - x0);
  }
  down(event) {
    if (event.pointerType === 'mouse' && event.button === 0 && this.spec.zoom) {
      this.drag = { from: this.pixel(event) };
      this.root.setPointerCapture(event.pointerId);
    }
    this.move(event);
  }
  up(event) {
    if (!this.drag) return;
    const [a, b] = [this.drag.from, this.pixel(event)].sort((p, q) => p - q);
    this.drag = null;
    this.brush.setAttribute('visibility', 'hidden');
    if (b - a > 8) set_zoom([this.value(a), this.value(b)]);
  }
  move(event) {
    const p = this.pixel(event);
    if (this.drag) {
      const [a, b] = [this.drag.from, p].sort((m, n) => m - n);
      this.brush.setAttribute('x', a);
      this.brush.setAttribute('width', b - a);
      this.brush.setAttribute('visibility', 'visible');
    }
    let best = -1, distance = Infinity;
    this.spec.stops.forEach((x, i) => {
      const d = Math.abs(this.X(x) - p);
      if (d < distance) { best = i; distance = d; }
    });
    this.show(best);
  }
  key(event) {
    const last = this.spec.stops.length - 1;
    const jump = Math.max(1, Math.round(last / 20));
    const moves = { ArrowRight: this.at + 1, ArrowLeft: this.at < 0 ? last : this.at - 1, PageDown: this.at + jump,
      PageUp: this.at - jump, Home: 0, End: last };
    if (event.key === 'Escape') { this.hide(); if (this.spec.zoom) set_zoom(null); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.show(Math.max(0, Math.min(last, moves[event.key])));
  }
  show(i) {
    if (i < 0 || i >= this.spec.stops.length) return this.hide();
    this.at = i;
    const x = this.X(this.spec.stops[i]);
    this.cursor.setAttribute('x1', x);
    this.cursor.setAttribute('x2', x);
    this.cursor.setAttribute('visibility', 'visible');
    const head = el('div', {}, this.spec.stop_label(i));
    this.tip.replaceChildren(head, ...this.spec.rows(i).map(r =>
      el('div', {}, el('i', { style: `background:${r.color}` }), el('span', {}, r.label), el('b', {}, r.text))));
    this.tip.hidden = false;
    // Beside the cursor; on a narrow screen, where it would hide the curves, below the chart.
    const room = this.plot.clientWidth, narrow = room < 480;
    this.tip.classList.toggle('below', narrow);
    const width = this.tip.offsetWidth;
    const left = x + 14 + width <= room ? x + 14 : x - 14 - width;
    this.tip.style.left = narrow ? '0' : Math.max(0, Math.min(left, room - width)) + 'px';
    this.tip.style.top = narrow ? this.root.clientHeight - 22 + 'px' : '8px';
  }
  hide() {
    this.at = -1;
    this.tip.hidden = true;
    if (this.cursor) this.cursor.setAttribute('visibility', 'hidden');
  }
}
function set_zoom(range) {
  if (!range && !state.zoom) return;
  state.zoom = range;
  redraw();
}

/// Centred means over `width` values: the course of a noisy series.
function smooth(ys, width) {
  const half = width >> 1;
  return ys.map((v, i) => {
    if (!finite(v)) return null;
    const near = ys.slice(Math.max(0, i - half), i + half + 1).filter(finite);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}
/// "M x y L x y", broken where a value is missing.
function path_of(xs, ys, X, Y) {
  let d = '', pen = 'M';
  for (let i = 0; i < ys.length; ++i) {
    if (!finite(ys[i]) || !finite(xs[i])) { pen = 'M'; continue; }
    d += pen + X(xs[i]).toFixed(1) + ' ' + Y(ys[i]).toFixed(1);
    pen = 'L';
  }
  return d;
}
