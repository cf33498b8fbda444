'use strict';
const DATA = JSON.parse(document.getElementById('data').textContent);
const RUNS = DATA.runs;
const many = RUNS.length > 1;
const run_color = r => `var(--c${r % 8})`;
const stage_color = s => `var(--s${s % 10})`;

// style: '' a line, 'dots' a line with its points, 'faint', 'dash'.
const LINES = [
  { id: 'auc', section: 'quality', title: 'AUC', value: four, y: {},
    series: [['train', 'auc', 'training window', 'faint'], ['eval', 'auc', 'evaluation', 'dots']],
    refs: [['oracle_auc', 'oracle', 'start'], ['baseline_auc', 'baseline', 'end']] },
  { id: 'loss', section: 'quality', title: 'Loss', value: four, y: {},
    series: [['train', 'loss', 'training window', 'faint'], ['eval', 'loss', 'evaluation', 'dots']] },
  { id: 'entropy', section: 'quality', title: 'Normalized entropy', value: four, y: {},
    series: [['eval', 'normalized_entropy', 'evaluation', 'dots']] },
  { id: 'throughput', section: 'speed', title: 'Throughput', unit: 'samples per second', value: v => si(v) + '/s', y: { zero: true },
    series: [['train', 'samples_per_s', 'samples/s', '']] },
  { id: 'tokens', section: 'speed', title: 'Tokens', unit: 'per second', value: v => si(v) + '/s', y: { zero: true },
    series: [['train', 'tokens_per_s', 'tokens/s', '']] },
  { id: 'mfu', section: 'speed', title: 'Model FLOP utilisation', unit: 'share of peak', value: percent, y: { zero: true, tick: 'percent' },
    series: [['train', 'mfu_padded', 'padded', 'dash'], ['train', 'mfu_jagged', 'jagged', '']] },
  { id: 'wait', section: 'speed', title: 'Waiting for data', unit: 'share of time', value: percent, y: { zero: true, tick: 'percent' },
    series: [['train', 'loader_wait', 'loader wait', '']] },
  { id: 'gradient', section: 'health', title: 'Gradient norm', value: v => si(v), y: { log: true },
    series: [['train', 'grad_norm', 'gradient norm', '']] },
  { id: 'outliers', section: 'health', title: 'Outliers', unit: 'z-score', value: v => finite(v) ? fixed(v, 2) : 'not finite', y: { full: true },
    series: [['train', 'grad_norm_z', 'gradient norm', 'thin dash'], ['train', 'loss_z', 'loss', 'thin']] },
  { id: 'rate', section: 'health', title: 'Learning rate', value: v => si(v), y: { zero: true },
    series: [['train', 'sparse_lr', 'tables', 'dash'], ['train', 'lr', 'dense', '']] },
];

/// One series of one run with its places, or null.
function series_of(run, part, key, label, style) {
  const found = RUNS[run][part].series[key];
  if (!found) return null;
  const x = RUNS[run][part].x;
  const pick = column => found.i ? found.i.map(i => column[i]) : column;
  return { run, part, key, label, style, y: found.y, step: pick(x.step), samples: pick(x.samples), time: pick(x.time) };
}
const run_label = s => many ? RUNS[s.run].name : s.label;
const full_label = (s, kinds) => !many ? s.label : kinds > 1 ? RUNS[s.run].name + ' · ' + s.label : RUNS[s.run].name;

function x_range(all) {
  if (state.zoom) return state.zoom;
  let lo = Infinity, hi = -Infinity;
  for (const s of all) for (const v of s[state.x]) if (finite(v)) { lo = Math.min(lo, v); hi = Math.max(hi, v); }
  if (!(lo <= hi)) return [0, 1];
  if (lo < 0.25 * hi) lo = 0;
  return lo === hi ? [lo - 1, hi + 1] : [lo, hi];
}
function nearest(xs, x) {
  let lo = 0, hi = xs.length - 1;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (xs[mid] < x) lo = mid; else hi = mid;
  }
  return Math.abs(xs[lo] - x) <= Math.abs(xs[hi] - x) ? lo : hi;
}
function stops_of(all, [x0, x1]) {
  const set = new Set();
  for (const s of all) s[state.x].forEach((v, i) => { if (finite(v) && finite(s.y[i]) && v >= x0 && v <= x1) set.add(v); });
  return [...set].sort((a, b) => a - b);
}

// ---- parts of a chart's card ----
function card(chart, wide) {
  const note = el('p', { class: 'soft' }, chart.unit || '');
  const plot = el('div', { class: 'plot' });
  const legend = el('ul', { class: 'legend' });
  const details = el('details', {}, el('summary', {}, 'Numbers'));
  const node = el('section', { class: 'card chart' + (wide ? ' wide' : ''), id: chart.id, 'aria-label': chart.title },
    el('header', {}, el('h3', {}, chart.title), note), legend, plot, details);
  document.getElementById(chart.section).append(node);
  document.getElementById(chart.section + '-head').hidden = false;
  return { node, note, plot, legend, details };
}
/// Rows are made when they are looked at; short tables at once, for readers of the plain page.
function table(details, head, rows) {
  const fill = () => {
    if (details.querySelector('table')) return;
    const body = el('tbody');
    for (const row of rows()) {
      const tr = el('tr', row.data);
      row.cells.forEach((c, i) => tr.append(i === 0 ? el('th', { scope: 'row' }, c.text) : el('td', { 'data-v': c.value }, c.text)));
      body.append(tr);
    }
    const top = el('tr');
    for (const h of head) top.append(el('th', { scope: 'col' }, h));
    details.append(el('div', { class: 'scroll', tabindex: '0' }, el('table', {}, el('thead', {}, top), body)));
  };
  details.addEventListener('toggle', fill, { once: true });
  if (rows().length <= 300) fill();
}
function line_key(color, style) {
  const root = svg('svg', { viewBox: '0 0 22 10', 'aria-hidden': 'true' });
  root.append(svg('path', { d: 'M1 5H21', class: 'line ' + style, style: `stroke:${color}` }));
  if (style === 'dots') root.append(svg('circle', { cx: 11, cy: 5, r: 3.5, style: `fill:${color}` }));
  return root;
}
function fill_legend(legend, all, refs) {
  const items = [];
  if (many) {
    for (const r of new Set(all.map(s => s.run))) items.push(el('li', {}, el('i', { style: `background:${run_color(r)}` }), RUNS[r].name));
  }
  const kinds = new Map(all.map(s => [s.label, s.style]));
  if (kinds.size > 1) {
    for (const [label, style] of [...kinds].reverse()) items.push(el('li', {}, line_key(many ? 'currentColor' : run_color(0), style), label));
  }
  for (const label of refs) items.push(el('li', {}, line_key('currentColor', 'ref'), label));
  legend.replaceChildren(...items);
  legend.hidden = items.length === 0;
}

const beyond = range => range.outside ? `${range.outside} extreme value${range.outside > 1 ? 's' : ''} beyond the axis` : '';

// ---- line charts ----
function line_chart(chart) {
  const all = RUNS.flatMap((_, r) => chart.series.map(s => series_of(r, ...s))).filter(s => s && s.y.some(finite));
  if (!all.length) return;
  const refs = (chart.refs || []).flatMap(([key, label, anchor]) => RUNS.map((_, r) => series_of(r, 'eval', key, label, 'ref'))
    .filter(s => s && s.y.some(finite)).map(s => ({ ...s, anchor, label: key === 'baseline_auc' && RUNS[s.run].baseline ? `best rule (${RUNS[s.run].baseline})` : label })));
  const parts = card(chart), frame = new Frame(parts.plot);
  const kinds = new Set(all.map(s => s.key + s.part)).size;
  const lost = all.reduce((n, s) => n + s.y.filter(v => !finite(v)).length, 0);
  redraws.push(() => {
    const seen = all.filter(s => !state.hidden.has(s.run) && s[state.x].some(finite));
    const lines = refs.filter(s => !state.hidden.has(s.run) && s[state.x].some(finite));
    const range = x_range(all.concat(refs).filter(s => !state.hidden.has(s.run)));
    const inside = seen.flatMap(s => s.y.filter((_, i) => s[state.x][i] >= range[0] && s[state.x][i] <= range[1]));
    const robust = robust_range(inside, chart.y);
    for (const v of lines.flatMap(s => s.y).filter(finite)) {
      robust.lo = Math.min(robust.lo, v);
      robust.hi = Math.max(robust.hi, v);
    }
    if (lines.length) robust.hi += 0.1 * (robust.hi - robust.lo);  // room for the label of the upper line
    const stops = stops_of(seen, range);
    fill_legend(parts.legend, seen, [...new Set(lines.map(s => s.label))]);
    parts.note.textContent = [chart.unit, seen.some(dense) ? `strong line: mean of ${MEAN_OF}` : '', beyond(robust),
      lost ? `${lost} not finite` : ''].filter(Boolean).join(' · ');
    const drawn = seen.concat(lines);
    frame.draw({
      id: chart.id, x: X_AXES[state.x], y: chart.y, range: robust, x_range: range, stops, zoom: true,
      aria: `${chart.title} against ${X_AXES[state.x].label}. ` + seen.map(s => `${full_label(s, kinds)}: last ${chart.value(s.y[s.y.length - 1])}`).join('; ')
        + '. Arrow keys move along the values.',
      stop_label: i => X_AXES[state.x].value(stops[i]),
      rows: i => drawn.map(s => {
        const xs = s[state.x], k = nearest(xs, stops[i]);
        if (stops[i] < xs[0] - 1e-9 || stops[i] > xs[xs.length - 1] + (range[1] - range[0]) * 0.02) return null;
        const label = s.style === 'ref' ? s.label : full_label(s, kinds);
        return { color: s.style === 'ref' ? 'var(--soft)' : run_color(s.run), label, text: chart.value(s.y[k]) };
      }).filter((row, i, rows) => row && rows.findIndex(o => o && o.label === row.label && o.text === row.text) === i),
      paint: (layer, X, Y, f) => paint_lines(layer, X, Y, f, seen, lines, chart),
    });
  });
  const numbers = () => all.concat(refs).flatMap(s => s.y.map((v, i) => ({
    data: { 'data-run': RUNS[s.run].name, 'data-part': s.part, 'data-key': s.key },
    cells: [{ text: many ? RUNS[s.run].name + ' · ' + s.label : s.label }, { text: integer(s.step[i]), value: s.step[i] },
      { text: integer(s.samples[i]), value: s.samples[i] }, { text: duration(s.time[i]), value: s.time[i] },
      { text: chart.value(v), value: v }] })));
  table(parts.details, ['Series', 'Step', 'Samples', 'Time', chart.title], numbers);
}
// A long noisy series is drawn pale, with its course over it.
const MEAN_OF = 21;
const dense = s => s.part === 'train' && s.style !== 'faint' && s.y.length > 150 && !NO_MEAN.has(s.key);
const NO_MEAN = new Set(['lr', 'sparse_lr', 'loss_z', 'grad_norm_z']);
function paint_lines(layer, X, Y, frame, seen, refs, chart) {
  const b = frame.box;
  for (const s of refs) {
    layer.append(svg('path', { class: 'line ref', d: path_of(s[state.x], s.y, X, Y) || 'M0 0' }));
    const k = s.anchor === 'end' ? s.y.length - 1 : 0, [x0] = frame.spec.x_range;
    if (s.y.length === 1) layer.append(svg('path', { class: 'line ref', d: `M${b.left} ${Y(s.y[0])}H${b.left + b.width}` }));
    if (refs.findIndex(o => o.label === s.label) !== refs.indexOf(s)) continue;
    const x = s.anchor === 'end' ? b.left + b.width - 2 : Math.max(b.left + 4, X(Math.max(x0, s[state.x][k])));
    const y = Y(s.y[k]);
    layer.append(svg('text', { class: 'mark', x, y: y - 6 < b.top + 8 ? y + 17 : y - 6, 'text-anchor': s.anchor === 'end' ? 'end' : 'start' },
      `${s.label} ${chart.value(s.y[k])}`));
  }
  for (const s of seen) {
    const path = (style, y) => layer.append(svg('path', { class: 'line ' + style, style: `stroke:${run_color(s.run)}`,
      d: path_of(s[state.x], y, X, Y) || 'M0 0', 'data-run': RUNS[s.run].name, 'data-key': s.key }));
    if (dense(s)) path('faint', s.y);
    path(s.style, dense(s) ? smooth(s.y, MEAN_OF) : s.y);
    const whiskers = s.part === 'eval' && s.key === 'auc' && s.y.length <= 60 ? interval_of(s) : [];
    for (const [x, low, high] of whiskers) {
      layer.append(svg('path', { class: 'line thin', style: `stroke:${run_color(s.run)}`, d: `M${X(x).toFixed(1)} ${Y(low).toFixed(1)}V${Y(high).toFixed(1)}` }));
    }
    if (s.style === 'dots' || s.y.length < 3) {
      const radius = s.y.length > 60 ? 1.5 : 3;
      s.y.forEach((v, i) => {
        const x = s[state.x][i];
        if (finite(v) && finite(x) && s.y.length <= 300) layer.append(svg('circle', { cx: X(x).toFixed(1), cy: Y(v).toFixed(1), r: radius, style: `fill:${run_color(s.run)}` }));
      });
    }
  }
}

/// The 95 % intervals of a run's evaluations: [place, low, high].
function interval_of(s) {
  const low = series_of(s.run, 'eval', 'auc_low'), high = series_of(s.run, 'eval', 'auc_high');
  if (!low || !high) return [];
  return low.y.map((v, i) => [low[state.x][i], v, high.y[i]]).filter(w => w.every(finite));
}

// ---- predictions against what came true ----
function calibration_chart() {
  const all = RUNS.flatMap((run, r) => run.calibration.map(c => ({ ...c, run: r })));
  if (!all.length) return;
  const parts = card({ id: 'calibration', section: 'quality', title: 'Calibration', unit: 'share of positive labels, bins of equal count' });
  const frame = new Frame(parts.plot), tasks = new Set(all.map(c => c.task)).size;
  const label = c => (many ? RUNS[c.run].name : 'observed') + (tasks > 1 ? ' · ' + c.task : '');
  redraws.push(() => {
    const seen = all.filter(c => !state.hidden.has(c.run)), values = seen.flatMap(c => c.prediction.concat(c.share)).filter(finite);
    const lo = Math.min(...values, 1), hi = Math.max(...values, 0), stops = [...new Set(seen.flatMap(c => c.prediction).filter(finite))].sort((a, b) => a - b);
    fill_legend(parts.legend, seen.map(c => ({ run: c.run, label: label(c), style: 'dots' })), ['as predicted']);
    frame.draw({ id: 'calibration', x: { label: 'mean prediction', tick: (v, step) => si(v, step) }, y: {}, zoom: false, range: { lo, hi }, x_range: [lo, hi], stops,
      aria: 'Share of positive labels against mean prediction. ' + seen.map(c => `${label(c)}: expected calibration error ${four(c.error)}`).join('; ') + '. Arrow keys move along the bins.',
      stop_label: i => 'predicted ' + four(stops[i]),
      rows: i => seen.map(c => ({ c, k: nearest(c.prediction, stops[i]) })).map(({ c, k }) => ({ color: run_color(c.run), label: label(c), text: four(c.share[k]) })),
      paint: (layer, X, Y) => {
        layer.append(svg('path', { class: 'line ref', d: path_of([lo, hi], [lo, hi], X, Y) }));
        for (const c of seen) {
          layer.append(svg('path', { class: 'line dots', style: `stroke:${run_color(c.run)}`, d: path_of(c.prediction, c.share, X, Y) || 'M0 0' }));
          c.prediction.forEach((x, i) => { if (finite(x) && finite(c.share[i])) layer.append(svg('circle', { cx: X(x).toFixed(1), cy: Y(c.share[i]).toFixed(1), r: 3, style: `fill:${run_color(c.run)}` })); });
        }
      } });
  });
  table(parts.details, ['Curve', 'Labels', 'Mean prediction', 'Share of positive labels'], () => all.flatMap(c => c.prediction.map((p, i) => ({
    data: { 'data-run': RUNS[c.run].name, 'data-key': 'calibration' },
    cells: [{ text: label(c) }, { text: integer(c.labels[i]), value: c.labels[i] }, { text: four(p), value: p }, { text: four(c.share[i]), value: c.share[i] }] }))));
}

// ---- where a step's time goes ----
const with_stages = RUNS.map((r, i) => i).filter(i => RUNS[i].stages.names.length);
const stage_names = [...new Set(with_stages.flatMap(i => RUNS[i].stages.names))];
const sum = list => list.reduce((a, b) => a + b, 0);
const ms = v => finite(v) ? trim((1000 * v).toPrecision(4)) + ' ms' : '–';
function per_step(run) {
  const st = RUNS[run].stages, steps = sum(st.steps) || 1;
  return stage_names.map(n => { const k = st.names.indexOf(n); return k < 0 ? 0 : sum(st.seconds[k]) / steps; });
}
function stage_bars() {
  if (!with_stages.length) return;
  const parts = card({ id: 'stages', section: 'split', title: 'Mean step', unit: 'time by stage' });
  const means = new Map(with_stages.map(r => [r, per_step(r)]));
  const longest = Math.max(...[...means.values()].map(sum)) || 1;
  const bars = el('div', { class: 'bars' });
  parts.plot.replaceWith(bars);
  redraws.push(() => {
    const seen = with_stages.filter(r => !state.hidden.has(r));
    bars.replaceChildren(...seen.map(r => {
      const total = sum(means.get(r)), root = svg('svg', { viewBox: '0 0 1000 26', preserveAspectRatio: 'none', role: 'img',
        'aria-label': `${RUNS[r].name}: ${ms(total)} per step` });
      let x = 0;
      means.get(r).forEach((v, k) => {
        const width = v / longest * 1000, rect = svg('rect', { x, y: 0, width: Math.max(0, width - 1.5), height: 26, style: `fill:${stage_color(k)}` });
        rect.append(svg('title', {}, `${stage_names[k]} ${ms(v)} (${percent(v / total)})`));
        root.append(rect);
        x += width;
      });
      return el('div', {}, el('p', {}, el('span', {}, many ? RUNS[r].name : 'all stages'), el('b', {}, ms(total))), root);
    }));
    const one = seen.length === 1 ? means.get(seen[0]) : null;
    parts.legend.replaceChildren(...stage_names.map((n, k) => el('li', {}, el('i', { style: `background:${stage_color(k)}` }),
      one ? `${n} ${ms(one[k])} · ${percent(one[k] / (sum(one) || 1))}` : n)));
  });
  table(parts.details, ['Stage', ...with_stages.map(r => RUNS[r].name)], () => stage_names.map((n, k) => ({
    data: { 'data-stage': n }, cells: [{ text: n }, ...with_stages.map(r => ({ text: ms(means.get(r)[k]), value: means.get(r)[k] }))] })));
}
function stage_history() {
  if (!with_stages.length) return;
  const parts = card({ id: 'stage-history', section: 'split', title: 'Step time over the run', unit: 'by stage' });
  const frame = new Frame(parts.plot);
  let run = with_stages[0];
  if (with_stages.length > 1) {
    const select = el('select', { 'aria-label': 'run' }, ...with_stages.map(r => el('option', { value: r }, RUNS[r].name)));
    select.addEventListener('change', () => { run = Number(select.value); draw(); });
    parts.node.querySelector('header').append(select);
  }
  const draw = () => {
    const st = RUNS[run].stages, x = st.x, n = st.steps.length;
    const value = (k, i) => st.seconds[k][i] / (st.steps[i] || 1);
    const stack = [new Array(n).fill(0)];
    st.names.forEach((_, k) => stack.push(stack[k].map((v, i) => v + value(k, i))));
    const top = stack[stack.length - 1], xs = x[state.x], range = x_range([{ ...x, y: top }]);
    const stops = xs.filter(v => finite(v) && v >= range[0] && v <= range[1]);
    const robust = robust_range(top, { zero: true });
    parts.note.textContent = ['milliseconds', beyond(robust)].filter(Boolean).join(' · ');
    const scaled = v => 1000 * v;
    parts.legend.replaceChildren(...st.names.map(name => el('li', {},
      el('i', { style: `background:${stage_color(stage_names.indexOf(name))}` }), name)));
    frame.draw({ id: 'stage-history', x: X_AXES[state.x], y: { zero: true }, range: { lo: 0, hi: scaled(robust.hi) }, x_range: range, stops, zoom: true,
      aria: `Time per step by stage of ${RUNS[run].name}. Arrow keys move along the values.`,
      stop_label: i => X_AXES[state.x].value(stops[i]),
      rows: i => { const c = xs.indexOf(stops[i]); return st.names.map((name, k) => ({ color: stage_color(stage_names.indexOf(name)), label: name, text: ms(value(k, c)) }))
        .concat([{ color: 'transparent', label: 'together', text: ms(top[c]) }]).reverse(); },
      paint: (layer, X, Y) => st.names.forEach((name, k) => {
        // Steps, not slopes: a column is the mean of the steps since the one before.
        const points = [], back = [];
        for (let i = 0; i < n; ++i) {
          if (!finite(xs[i])) continue;
          const a = X(i ? xs[i - 1] : range[0] < xs[0] ? Math.max(range[0], xs[0] - (n > 1 ? xs[1] - xs[0] : xs[0])) : xs[0]).toFixed(1), b = X(xs[i]).toFixed(1);
          const hi = Y(scaled(stack[k + 1][i])).toFixed(1), lo = Y(scaled(stack[k][i])).toFixed(1);
          points.push(`${a} ${hi}L${b} ${hi}`);
          back.push(`${b} ${lo}L${a} ${lo}`);
        }
        layer.append(svg('path', { d: 'M' + points.join('L') + 'L' + back.reverse().join('L') + 'Z', style: `fill:${stage_color(stage_names.indexOf(name))}`, 'data-stage': name }));
      }) });
  };
  redraws.push(draw);
  table(parts.details, ['Run and stage', 'Step', 'Steps', 'Seconds'], () => with_stages.flatMap(r => { const st = RUNS[r].stages;
    return st.names.flatMap((name, k) => st.steps.map((steps, i) => ({ data: { 'data-run': RUNS[r].name, 'data-stage': name },
      cells: [{ text: many ? RUNS[r].name + ' · ' + name : name }, { text: integer(st.x.step[i]), value: st.x.step[i] }, { text: integer(steps), value: steps },
        { text: si(st.seconds[k][i]), value: st.seconds[k][i] }] }))); }));
}

// ---- lengths ----
function lengths_chart() {
  const with_lengths = RUNS.map((r, i) => i).filter(i => RUNS[i].lengths.counts.length);
  if (!with_lengths.length) return;
  const parts = card({ id: 'lengths', section: 'lengths-of', title: 'Tokens per sample', unit: 'share of samples' }, true), frame = new Frame(parts.plot);
  redraws.push(() => {
    const seen = with_lengths.filter(r => !state.hidden.has(r));
    const share = new Map(seen.map(r => { const c = RUNS[r].lengths.counts, all = sum(c) || 1; return [r, c.map(v => v / all)]; }));
    const bin = Math.min(...(seen.length ? seen : with_lengths).map(r => RUNS[r].lengths.bin));
    const end = Math.max(bin, ...seen.map(r => RUNS[r].lengths.bin * RUNS[r].lengths.counts.length));
    const stops = [];
    for (let v = 0; v < end; v += bin) stops.push(v + bin / 2);
    const at = (r, x) => share.get(r)[Math.floor(x / RUNS[r].lengths.bin)] || 0;
    fill_legend(parts.legend, seen.map(r => ({ run: r, label: 'samples', style: '' })), []);
    frame.draw({ id: 'lengths', x: { label: 'tokens', tick: v => integer(v) }, y: { zero: true, tick: 'percent' }, zoom: false, height: 240,
      range: { lo: 0, hi: Math.max(1e-6, ...[...share.values()].flat()) }, x_range: [0, end], stops,
      aria: `Histogram of tokens per sample: ${seen.map(r => RUNS[r].name).join(', ')}. Arrow keys move along the bins.`,
      stop_label: i => `${integer(stops[i] - bin / 2)} to ${integer(stops[i] + bin / 2 - 1)} tokens`,
      rows: i => seen.map(r => ({ color: run_color(r), label: many ? RUNS[r].name : 'samples', text: percent(at(r, stops[i])) })),
      paint: (layer, X, Y) => seen.forEach(r => {
        const w = RUNS[r].lengths.bin, base = Y(0);
        let d = '';
        share.get(r).forEach((v, i) => {
          const a = X(i * w), b = X((i + 1) * w), y = Y(v).toFixed(1);
          d += seen.length > 1 ? `${i ? 'L' : `M${a.toFixed(1)} ${base}L`}${a.toFixed(1)} ${y}L${b.toFixed(1)} ${y}`
                               : v ? `M${(a + 0.5).toFixed(1)} ${base}V${y}H${(b - 0.5).toFixed(1)}V${base}Z` : '';
        });
        if (seen.length > 1) d += `L${X(share.get(r).length * w).toFixed(1)} ${base}`;
        layer.append(svg('path', seen.length > 1 ? { class: 'line', d, style: `stroke:${run_color(r)}` } : { d, style: `fill:${run_color(r)}` }));
      }) });
  });
  table(parts.details, ['Run and tokens', 'Samples'], () => with_lengths.flatMap(r => RUNS[r].lengths.counts.map((c, i) => { const w = RUNS[r].lengths.bin;
    return { data: { 'data-run': RUNS[r].name }, cells: [{ text: (many ? RUNS[r].name + ' · ' : '') + `${i * w} to ${(i + 1) * w - 1}` }, { text: integer(c), value: c }] }; })));
}

/// A loader that keeps up needs no chart.
function waits() {
  const shares = RUNS.flatMap(run => (run.train.series.loader_wait || { y: [] }).y).filter(finite);
  return shares.reduce((a, b) => a + b, 0) >= 0.005 * shares.length && shares.length > 0;
}

// ---- the bar ----
function toolbar() {
  const bar = document.getElementById('bar'), group = el('div', { class: 'group', role: 'group', 'aria-label': 'horizontal axis' });
  const modes = [['samples', 'Samples'], ['time', 'Time'], ['step', 'Steps']];
  const usable = mode => RUNS.some(r => [...r.eval.x[mode], ...r.train.x[mode]].some(v => finite(v) && v > 0));
  if (!usable('samples')) state.x = usable('time') ? 'time' : 'step';
  for (const [mode, label] of modes.filter(m => usable(m[0]))) {
    const button = el('button', { type: 'button', 'data-x': mode }, label);
    button.addEventListener('click', () => { state.x = mode; state.zoom = null; redraw(); });
    group.append(button);
  }
  const chips = el('div', { class: 'chips', role: 'group', 'aria-label': 'runs shown' });
  if (many) RUNS.forEach((run, r) => {
    const chip = el('button', { type: 'button' }, el('span', { class: 'swatch', style: `--color:${run_color(r)}` }), run.name);
    chip.addEventListener('click', () => { if (!state.hidden.delete(r)) state.hidden.add(r); redraw(); });
    chips.append(chip);
  });
  const reset = el('button', { type: 'button' }, 'Whole run');
  reset.addEventListener('click', () => set_zoom(null));
  bar.append(group, ...(many ? [chips] : []), reset);
  redraws.push(() => {
    for (const b of group.children) b.setAttribute('aria-pressed', String(b.dataset.x === state.x));
    [...chips.children].forEach((c, r) => c.setAttribute('aria-pressed', String(!state.hidden.has(r))));
    reset.hidden = !state.zoom;
  });
}

toolbar();
for (const chart of LINES) {
  if (chart.id === 'throughput') calibration_chart();  // the last one about quality
  if (chart.id !== 'wait' || waits()) line_chart(chart);
}
stage_bars();
stage_history();
lengths_chart();
redraw();
let seen_width = window.innerWidth;
window.addEventListener('resize', () => { if (window.innerWidth !== seen_width) { seen_width = window.innerWidth; redraw(); } });
