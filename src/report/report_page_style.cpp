#include "report/report_page.h"

namespace segue::report::page {

// Runs take --c0.., stages --s0..: two orders of colours that stay apart for all common kinds of
// colour blindness (after Okabe and Ito), darker on paper, lighter on black.
const std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #f7f7f5; --card: #ffffff; --ink: #1a1c1f; --soft: #5a5f67; --rule: #e2e3e5; --grid: #ececee;
  --accent: #0b6fb8; --good: #0a7a58; --bad: #b3410a; --shade: rgb(11 111 184 / 12%);
  --c0: #0b6fb8; --c1: #d1570a; --c2: #0a8a64; --c3: #a4428f; --c4: #a87500; --c5: #1f9bc1; --c6: #7a5230; --c7: #6b6f76;
  --s0: #0b6fb8; --s1: #e69f00; --s2: #0a9a72; --s3: #cc79a7; --s4: #56b4e9; --s5: #d1570a; --s6: #8a6fb5; --s7: #b5a642;
  --s8: #7d8590; --s9: #3f4b5b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #121315; --card: #1a1c1f; --ink: #e9e9e6; --soft: #a2a7ae; --rule: #31353a; --grid: #282b30;
    --accent: #62b5f1; --good: #45c99c; --bad: #ff9a5c; --shade: rgb(98 181 241 / 16%);
    --c0: #5ab0ee; --c1: #ff8f4d; --c2: #3fc79a; --c3: #dd85c6; --c4: #e6b53f; --c5: #7fd4ee; --c6: #c49a72; --c7: #a9adb3;
    --s0: #4a9fe0; --s1: #f0b63c; --s2: #37b98c; --s3: #d98bb8; --s4: #8accf2; --s5: #f08347; --s6: #a892d4; --s7: #cfc266;
    --s8: #8f97a3; --s9: #66748a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main, .head, .bar > div { max-width: 1240px; margin: 0 auto; padding: 0 16px; }
.head { padding-top: 28px; padding-bottom: 14px; }
h1 { font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 650; letter-spacing: -0.005em; margin: 36px 0 12px; }
h3 { font-size: 16px; font-weight: 600; margin: 0; }
p { margin: 0; }
.soft, .head p, .note { color: var(--soft); font-size: 14px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; min-width: 0; }

/* headline */
.runs { display: grid; gap: 10px; }
.run { padding: 14px 16px; }
.run header { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; margin-bottom: 10px; }
.run header h3 { overflow-wrap: anywhere; }
.swatch { flex: none; width: 14px; height: 14px; border-radius: 4px; background: var(--color); }
.status { font-size: 14px; color: var(--soft); }
.status::before { content: "\25CF"; margin-right: 5px; }
.status.good::before { color: var(--good); }
.status.open::before { color: var(--accent); }
.status.bad::before { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 12px 16px; margin: 0; }
.facts div { min-width: 0; }
dt { font-size: 14px; color: var(--soft); }
dd { margin: 0; font-size: 22px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em; }
.single dd { font-size: 28px; }
dd small { display: block; font-size: 14px; line-height: 1.35; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.best dd b { color: var(--good); }
dd b { font-weight: inherit; }
.warn { margin: 12px 0 0; padding: 10px 16px 10px 34px; font-size: 14px; border-left: 3px solid var(--bad); overflow-wrap: anywhere; }

/* the bar that stays in view */
.bar { position: sticky; top: 0; z-index: 5; background: color-mix(in srgb, var(--paper) 92%, transparent);
  backdrop-filter: blur(6px); border-bottom: 1px solid var(--rule); margin-top: 18px; }
.bar > div { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; padding-top: 8px; padding-bottom: 8px; }
.chips { display: flex; gap: 8px; overflow-x: auto; max-width: 100%; padding: 2px; scrollbar-width: none; }
button, select { font: inherit; font-size: 14px; color: var(--ink); background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; min-height: 34px; padding: 0 11px; cursor: pointer; white-space: nowrap; }
select { max-width: 100%; }
.group { display: inline-flex; }
.group button { border-radius: 0; margin-left: -1px; }
.group button:first-child { border-radius: 8px 0 0 8px; margin-left: 0; }
.group button:last-child { border-radius: 0 8px 8px 0; }
.group button[aria-pressed=true] { background: var(--ink); color: var(--paper); border-color: var(--ink); }
.chips button { display: inline-flex; align-items: center; gap: 7px; flex: none; }
.chips button[aria-pressed=false] { color: var(--soft); text-decoration: line-through; }
.chips button[aria-pressed=false] .swatch { background: transparent; box-shadow: inset 0 0 0 2px var(--color); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

/* charts */
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
.chart { padding: 14px 16px 10px; display: flex; flex-direction: column; }
.chart.wide, .charts > .chart:last-child:nth-child(odd) { grid-column: 1 / -1; }
.chart header { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; gap: 2px 12px; }
.chart header .soft { flex: 1 1 auto; }
.plot { position: relative; margin: 8px 0 4px; }
.plot svg { display: block; width: 100%; touch-action: pan-y; border-radius: 4px; }
svg text { font-size: 14px; fill: var(--soft); font-family: inherit; }
svg .mark { fill: var(--ink); paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--rule); }
svg .cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .brush { fill: var(--shade); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1.25; opacity: 0.4; }
.line.thin { stroke-width: 1.25; opacity: 0.8; }
.line.dash { stroke-dasharray: 6 4; stroke-width: 1.5; }
.line.ref { stroke: var(--soft); stroke-dasharray: 2 4; stroke-width: 1.5; }
.tip { position: absolute; top: 0; left: 0; pointer-events: none; z-index: 2; padding: 7px 10px; font-size: 14px; line-height: 1.4;
  background: var(--card); border: 1px solid var(--rule); border-radius: 8px; box-shadow: 0 4px 18px rgb(0 0 0 / 18%); max-width: 92%; }
.tip.below { width: 100%; max-width: none; }
.tip.below span { white-space: normal; overflow-wrap: anywhere; }
.tip[hidden] { display: none; }
.tip div { display: flex; gap: 8px; align-items: center; }
.tip span { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.tip i { flex: none; width: 10px; height: 10px; border-radius: 3px; }
.tip b { font-weight: 600; white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 14px; color: var(--soft); margin: 0 0 4px; padding: 0; list-style: none; }
.legend li { display: inline-flex; gap: 6px; align-items: center; min-width: 0; overflow-wrap: anywhere; }
.legend svg { flex: none; width: 22px; height: 10px; }
.legend i { flex: none; width: 11px; height: 11px; border-radius: 3px; }
.bars { display: grid; gap: 12px; margin: 10px 0 8px; }
.bars p { font-size: 14px; display: flex; justify-content: space-between; gap: 12px; margin-bottom: 3px; }
.bars p span { overflow-wrap: anywhere; }
.bars svg { display: block; width: 100%; height: 26px; border-radius: 4px; }

/* tables */
details { font-size: 14px; margin-top: auto; }
summary { cursor: pointer; color: var(--soft); padding: 4px 0; width: max-content; max-width: 100%; }
summary:hover { color: var(--ink); }
.scroll { overflow: auto; max-height: 340px; border: 1px solid var(--rule); border-radius: 8px; margin: 4px 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 5px 12px; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); position: sticky; top: 0; background: var(--card); }
tbody th { font-weight: 400; color: var(--ink); position: static; }
tr:last-child > * { border-bottom: 0; }
.text th, .text td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 110px; vertical-align: top; }
.text tbody th { min-width: 160px; }
.none { color: var(--soft); }
code, pre { font: 14px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 0; padding: 12px 14px; white-space: pre-wrap; overflow-wrap: anywhere; }
.config { padding: 6px 16px; margin-top: 10px; }
footer { color: var(--soft); font-size: 14px; padding: 36px 0 32px; }

@media (max-width: 860px) {
  .charts { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 640px) {
  .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  main, .head, .bar > div { padding-left: 12px; padding-right: 12px; }
  .chart { padding: 12px 12px 8px; }
  .chart .hint { display: none; }
  .single dd { font-size: 22px; }
  .runs:not(.single) .facts { grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 8px 10px; }
  .runs:not(.single) .facts div { grid-column: span 2; }
  .runs:not(.single) .facts div:nth-child(n+4) { grid-column: span 3; }
  .runs:not(.single) dd { font-size: 17px; }
  .runs:not(.single) dd small { display: none; }
  h1 { font-size: 22px; }
}
@media print {
  .bar { display: none; }
  .card { break-inside: avoid; }
}
)css";

}  // namespace segue::report::page
