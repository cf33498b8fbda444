#include "report/page/html_report.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "base/progress.h"
#include "report/page/page_text.h"
#include "report/page/quality_tables.h"
#include "report/page/report_data.h"
#include "report/page/report_page.h"

namespace segue::report {
namespace {

/// 57.3M, 812k, 45.
std::string with_unit(double value) {
  if (std::isnan(value)) return kNone;
  if (!std::isfinite(value)) return "not finite";
  struct Unit {
    double scale;
    const char* name;
  };
  for (const Unit unit : {Unit{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (value >= unit.scale * 0.9995) return fmt::format("{:.4g}{}", value / unit.scale, unit.name);
  }
  return fmt::format("{:.4g}", value);
}

std::string duration(double seconds) {
  constexpr double kLongest = 1e15;  // more is no duration, nor does it fit below
  if (!(std::abs(seconds) < kLongest)) return kNone;
  if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
  const auto whole = static_cast<int64_t>(seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

/// What the headline says of a run; NaN where it cannot say.
struct Headline {
  double auc = kAbsent, best_auc = kAbsent, oracle = kAbsent;
  EvalPoint eval;  // the last one
  double loss = kAbsent, train_loss = kAbsent;
  RunPoint last;
  double rate = kAbsent, mfu = kAbsent, skipped = kAbsent, memory = kAbsent, tables = kAbsent;
};

/// The last value that is there.
template <class Point>
double last_value(const std::vector<Point>& points, double Point::*value) {
  for (auto p = points.rbegin(); p != points.rend(); ++p) {
    if (!std::isnan((*p).*value)) return (*p).*value;
  }
  return kAbsent;
}

/// The middle of a run's rates: neither warm-up nor a slow checkpoint moves it.
template <class Point>
double median(const std::vector<Point>& points, double Point::*value) {
  std::vector<double> values;
  for (const Point& p : points) {
    if (std::isfinite(p.*value)) values.push_back(p.*value);
  }
  if (values.empty()) return kAbsent;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Headline headline(const Run& run) {
  Headline h;
  h.last = run.last();
  if (!run.eval.empty()) h.eval = run.eval.back();
  h.auc = last_value(run.eval, &EvalPoint::auc);
  for (const EvalPoint& p : run.eval) {
    if (std::isfinite(p.auc) && !(p.auc <= h.best_auc)) h.best_auc = p.auc;
  }
  h.oracle = last_value(run.eval, &EvalPoint::oracle_auc);
  h.loss = last_value(run.eval, &EvalPoint::loss);
  h.train_loss = last_value(run.train, &TrainPoint::loss);
  h.rate = median(run.train, &TrainPoint::samples_per_s);
  h.mfu = median(run.train, &TrainPoint::mfu_jagged);
  h.skipped = last_value(run.train, &TrainPoint::skipped_steps);
  h.memory = last_value(run.train, &TrainPoint::memory_peak_bytes);
  h.tables = last_value(run.train, &TrainPoint::table_bytes);
  return h;
}

std::string fact(const char* label, const std::string& value, const std::vector<std::string>& notes,
                 bool best) {
  std::string small;
  for (const std::string& note : notes) {
    if (note.empty()) continue;
    small += small.empty() ? "" : " · ";
    small += escape_html(note);
  }
  return fmt::format("<div{}><dt>{}</dt><dd><b>{}</b>{}</dd></div>", best ? " class=\"best\"" : "",
                     label, escape_html(value),
                     small.empty() ? "" : fmt::format("<small>{}</small>", small));
}

const char* status_class(const std::string& status) {
  if (status == "finished" || status == "target reached" || status == "success") return "good";
  return status == "unfinished" ? "open" : "bad";
}

std::string note(double value, const std::function<std::string(double)>& text) {
  return std::isfinite(value) ? text(value) : std::string();
}

struct Best {
  double auc = kAbsent, rate = kAbsent;  // absent for a single run: nothing to be better than
};

/// What was trained, on what, where; as far as the run tells.
std::string about(const Run& run, const EvalPoint& last) {
  std::string store = run.setting("data.store");
  if (store.empty() && !run.config.empty()) {
    const std::string samples = run.setting("data.interactions.samples");
    store = samples.empty() || samples == "0" ? "random samples" : "made-up interactions";
  }
  std::vector<std::string> facts;
  for (const std::string& fact :
       {store, last.model.empty() ? run.setting("model.family") : last.model,
        last.device.empty() ? run.setting("train.device") : last.device}) {
    if (!fact.empty()) facts.push_back(escape_html(fact));
  }
  return facts.empty() ? "" : fmt::format("<p class=\"soft\">{}</p>", fmt::join(facts, " · "));
}

std::string auc_value(const Headline& h) {
  return h.eval.one_class() ? kOneClass : fixed(h.auc, 4);
}

std::vector<std::string> auc_notes(const Headline& h) {
  const EvalPoint& e = h.eval;
  return {note(e.auc_high - e.auc_low,
               [](double width) { return fmt::format("± {:.4f} (95 %)", width / 2); }),
          h.best_auc > h.auc ? fmt::format("best {:.4f}", h.best_auc) : "",
          note(h.oracle, [](double v) { return fmt::format("oracle {:.4f}", v); }),
          note(e.baseline_auc, [&](double v) {
            // The lead is that over labels that rules have a prediction for, the AUC one of all.
            const double lead = std::isfinite(e.above_by) ? e.above_by : h.auc - v;
            return fmt::format("{}{} {:.4f}",
                               std::isfinite(lead) ? lead > 0 ? "above " : "below " : "baseline ",
                               e.baseline, v);
          })};
}

std::string run_card(const Run& run, size_t index, const Headline& h, const Best& best) {
  const bool has_eval_loss = !std::isnan(h.loss);
  std::string out = fmt::format(
      "<article class=\"card run\"><header><span class=\"swatch\" "
      "style=\"--color:var(--c{})\"></span>"
      "<h3>{}</h3><span class=\"status {}\">{}</span>{}</header><dl class=\"facts\">",
      index % 8, escape_html(run.name), status_class(run.status), escape_html(run.status),
      about(run, h.eval));
  out += fact("AUC", auc_value(h), auc_notes(h), h.auc == best.auc);
  out += fact("Loss", fixed(has_eval_loss ? h.loss : h.train_loss, 4),
              {has_eval_loss ? "evaluation" : "training window",
               has_eval_loss
                   ? note(h.train_loss, [](double v) { return fmt::format("training {:.4f}", v); })
                   : ""},
              false);
  out += fact("Samples", with_unit(h.last.samples),
              {h.last.step > 0 ? fmt::format("{} steps", with_unit(double(h.last.step))) : "",
               note(h.skipped,
                    [](double v) { return v > 0 ? fmt::format("{} skipped", v) : std::string(); })},
              false);
  out += fact(
      "Time", duration(h.last.wall_s),
      {note(h.memory, [](double v) { return fmt::format("{:.1f} GiB peak", v / 1073741824.0); }),
       note(h.tables, [](double v) { return "tables " + base::format_bytes(v); })},
      false);
  out += fact("Samples/s", with_unit(h.rate),
              {note(h.mfu, [](double v) { return fmt::format("MFU {:.1f} %", 100 * v); })},
              h.rate == best.rate);
  return out + "</dl></article>\n";
}

/// AUCs of different logs do not compare. A run that does not say its store may be on the same.
bool may_compare(const std::vector<Run>& runs) {
  std::string store;
  for (const Run& run : runs) {
    const std::string own = run.setting("data.store");
    if (!own.empty() && !store.empty() && own != store) return false;
    if (!own.empty()) store = own;
  }
  return true;
}

std::string headline_cards(const std::vector<Run>& runs) {
  std::vector<Headline> lines;
  Best best;
  const bool compares = may_compare(runs);
  for (const Run& run : runs) {
    lines.push_back(headline(run));
    if (runs.size() < 2) continue;
    if (compares && std::isfinite(lines.back().auc) && !(lines.back().auc <= best.auc)) {
      best.auc = lines.back().auc;
    }
    if (std::isfinite(lines.back().rate) && !(lines.back().rate <= best.rate)) {
      best.rate = lines.back().rate;
    }
  }
  std::string out = fmt::format("<div class=\"runs{}\">\n", runs.size() == 1 ? " single" : "");
  for (size_t i = 0; i < runs.size(); ++i) out += run_card(runs[i], i, lines[i], best);
  out += "</div>\n";
  std::string warnings;
  for (const Run& run : runs) {
    for (const std::string& w : run.warnings) {
      warnings += fmt::format("<li>{}</li>", escape_html(w));
    }
  }
  if (!warnings.empty()) out += fmt::format("<ul class=\"card warn\">{}</ul>\n", warnings);
  return out;
}

std::string cell(const std::string& value) {
  return value.empty() ? "<td class=\"none\">–</td>"
                       : fmt::format("<td>{}</td>", escape_html(value));
}

/// Means over the tracked steps of each run that has any.
std::string layers_table(const std::vector<Run>& runs) {
  std::string out;
  for (const Run& run : runs) {
    if (run.layers.empty()) continue;
    struct Sum {
      double seconds = 0, flop = 0;  // of parts with a rate
    };
    std::vector<std::pair<std::string, Sum>> parts;
    double device = 0, imbalance = 0;
    for (const LayersPoint& p : run.layers) {
      if (std::isfinite(p.device_s)) device += p.device_s;
      if (std::isfinite(p.imbalance)) imbalance += p.imbalance;
      for (const LayersPoint::Part& part : p.parts) {
        if (!std::isfinite(part.seconds)) continue;
        auto sum = std::ranges::find(parts, part.name, &std::pair<std::string, Sum>::first);
        if (sum == parts.end()) sum = parts.insert(sum, {part.name, {}});
        sum->second.seconds += part.seconds;
        if (std::isfinite(part.tflops)) sum->second.flop += part.tflops * part.seconds;
      }
    }
    const auto steps = static_cast<double>(run.layers.size());
    out += fmt::format(
        "<div class=\"card scroll\" tabindex=\"0\"><table><caption>{}: {} tracked step{}, {} on "
        "the device{}</caption><thead><tr><th scope=\"col\">Part of a step</th><th "
        "scope=\"col\">ms</th><th scope=\"col\">Share</th><th "
        "scope=\"col\">TFLOP/s</th></tr></thead><tbody>\n",
        escape_html(run.name), run.layers.size(), run.layers.size() > 1 ? "s" : "",
        fixed(1e3 * device / steps, 3) + " ms",
        imbalance > 0 ? fmt::format(", slowest rank {:.2f} times the mean", imbalance / steps)
                      : "");
    for (const auto& [name, sum] : parts) {
      out +=
          fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                      escape_html(name), fixed(1e3 * sum.seconds / steps, 3),
                      device > 0 ? fixed(100 * sum.seconds / device, 1) + " %" : kNone,
                      sum.flop > 0 && sum.seconds > 0 ? fixed(sum.flop / sum.seconds, 1) : kNone);
    }
    out += "</tbody></table></div>\n";
  }
  return out.empty() ? "" : "<h2>Layers</h2>\n" + out;
}

/// What differs between the runs that have such settings; empty when fewer than two have.
std::string difference_table(const std::vector<Run>& runs, Settings Run::*settings,
                             const char* source) {
  std::vector<const Settings*> compared;
  std::string head;
  for (const Run& run : runs) {
    if ((run.*settings).empty()) continue;
    compared.push_back(&(run.*settings));
    head += fmt::format("<th scope=\"col\">{}</th>", escape_html(run.name));
  }
  if (compared.size() < 2) return "";
  const std::vector<Difference> rows = differences(compared);
  if (rows.empty()) {
    return fmt::format("<p class=\"soft\">{}: the same in all {} runs.</p>\n", source,
                       compared.size());
  }
  std::string body;
  for (const Difference& row : rows) {
    body += fmt::format("<tr><th scope=\"row\"><code>{}</code></th>", escape_html(row.key));
    for (const std::string& value : row.values) body += cell(value);
    body += "</tr>\n";
  }
  return fmt::format(
      "<div class=\"card scroll\" tabindex=\"0\"><table class=\"text\"><thead><tr><th "
      "scope=\"col\">{}</th>{}"
      "</tr></thead><tbody>\n{}</tbody></table></div>\n",
      source, head, body);
}

std::string settings_section(const std::vector<Run>& runs) {
  std::string out = difference_table(runs, &Run::config, "config.toml") +
                    difference_table(runs, &Run::mlperf, "MLPerf log");
  for (const Run& run : runs) {
    std::string text = run.config_text;
    if (text.empty()) {
      for (const auto& [key, value] : run.mlperf) text += fmt::format("{} = {}\n", key, value);
    }
    if (text.empty()) continue;
    out +=
        fmt::format("<details class=\"card config\"><summary>{}</summary><pre>{}</pre></details>\n",
                    escape_html(runs.size() > 1 ? "All settings of " + run.name : "All settings"),
                    escape_html(text));
  }
  if (out.empty()) return "";
  return fmt::format("<h2>{}</h2>\n{}", runs.size() > 1 ? "What differs" : "Settings", out);
}

std::string chart_sections() {
  struct Section {
    const char *id, *title;
  };
  std::string out;
  for (const Section s : {Section{"quality", "Quality"},
                          {"speed", "Speed"},
                          {"split", "Where the time goes"},
                          {"lengths-of", "Samples"},
                          {"health", "Health"}}) {
    out +=
        fmt::format("<h2 id=\"{0}-head\" hidden>{1}</h2><div class=\"charts\" id=\"{0}\"></div>\n",
                    s.id, s.title);
  }
  return out;
}

}  // namespace

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return kNone;
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "not finite";
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string page_head(const std::string& title, const std::string& made) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n<title>{0}</title>\n<style>\n{1}</style></head>\n"
      "<body><div class=\"head\"><h1>{0}</h1><p>{2}</p></div>\n",
      escape_html(title), page::kStyle, escape_html(made));
}

std::string html_report(const std::vector<Run>& runs, const std::string& title,
                        const std::string& made) {
  std::string out = page_head(title, made) + "<main>\n";
  out += headline_cards(runs);
  out +=
      "</main>\n<div class=\"bar\"><div id=\"bar\"></div></div>\n<main>\n"
      "<noscript><p class=\"soft\">The charts need JavaScript.</p></noscript>\n";
  out += chart_sections();
  out += layers_table(runs);
  out += quality_tables(runs);
  out += settings_section(runs);
  out +=
      "<footer>Drag over a chart to look closer, double-click for the whole run. A focused chart "
      "follows the arrow keys.</footer>\n</main>\n";
  out += "<script type=\"application/json\" id=\"data\">" + page_data(runs) + "</script>\n";
  out += fmt::format("<script>\n{}</script>\n<script>\n{}</script>\n</body></html>\n",
                     page::kCharts, page::kScript);
  return out;
}

}  // namespace segue::report
