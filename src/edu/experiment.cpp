#include "edu/experiment.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::edu {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "as predicted";
    case Verdict::kWarn:
      return "weaker than predicted";
    case Verdict::kFail:
      return "NOT as predicted";
    case Verdict::kNote:
      return "shown, not judged";
  }
  return "?";
}

std::string Experiment::text() const {
  std::string out = fmt::format("\n{}  {}\n  prediction  {}\n\n", id, title, prediction);
  size_t named = 0;
  for (const std::string& name : names) named = std::max(named, name.size());
  out += fmt::format("  {:<{}}", "", named);
  for (const std::string& column : columns) out += fmt::format("  {:>12}", column);
  out += "\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    out += fmt::format("  {:<{}}", names.empty() ? "" : names[r], named);
    for (size_t c = 0; c < columns.size(); ++c) {
      // A long heading makes its column wide.
      const size_t width = std::max<size_t>(12, columns[c].size());
      out += fmt::format("  {:>{}}", fmt::format("{:.4g}", rows[r][c]), width);
    }
    out += "\n";
  }
  return out +
         fmt::format("\n  measured    {}\n  {}: {}\n", finding, to_string(verdict), criterion);
}

std::string Experiment::csv() const {
  std::string out = names.empty() ? "" : "name,";
  out += fmt::format("{}\n", fmt::join(columns, ","));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!names.empty()) out += names[r] + ",";
    for (size_t c = 0; c < rows[r].size(); ++c)
      out += fmt::format("{}{}", c > 0 ? "," : "", rows[r][c]);
    out += "\n";
  }
  return out;
}

std::vector<double> Experiment::column(size_t number) const {
  std::vector<double> out;
  for (const std::vector<double>& row : rows) out.push_back(row[number]);
  return out;
}

Series Experiment::curve(std::string name, size_t x, size_t y) const {
  return {std::move(name), column(x), column(y)};
}

void Experiment::plot(std::string what, std::string x_label, std::string y_label, Scale scale,
                      std::vector<Series> series) {
  charts.push_back(
      {std::move(what), std::move(x_label), std::move(y_label), scale, std::move(series)});
}

const std::vector<ExperimentKind>& experiment_kinds() {
  static const std::vector<ExperimentKind> kKinds = {
      {"E1", "The pair: the same model, cached and not", pair_experiment},
      {"E2", "Row width: gather time grows with the bytes of a row", width_experiment},
      {"E3", "MLP width: who pays for more FLOP", mlp_experiment},
      {"E4", "Table size: a plateau, a knee, a plateau", size_experiment},
      {"E5", "Pooling: how many look-ups stand against one product", pooling_experiment},
      {"E6", "Batch size: the fixed cost of a step", batch_experiment},
      {"E7", "A large table is not a large working set", faithful_experiment},
      {"E8", "Threads: what more of them can and cannot do", threads_experiment},
      {"E9", "Skew: popular ids bring the cache back", skew_experiment}};
  return kKinds;
}

const ExperimentKind& find_experiment(const std::string& id) {
  const auto& kinds = experiment_kinds();
  const auto found = std::ranges::find(kinds, id, &ExperimentKind::id);
  if (found != kinds.end()) return *found;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("there is no experiment `{}`; there are E1 to E{}", id, kinds.size()));
}

Experiment run_experiment(Lab& lab, const std::string& id) {
  const ExperimentKind& kind = find_experiment(id);
  lab.measure_machine();
  Experiment e = kind.run(lab);
  e.id = kind.id;
  e.title = kind.title;
  if (lab.options().quick) {
    e.verdict = Verdict::kNote;  // caches of a real machine hold everything
    e.criterion += " (not judged: --quick)";
  }
  return e;
}

Line fit_line(const std::vector<double>& x, const std::vector<double>& t) {
  const auto n = static_cast<double>(x.size());
  const double mx = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mt = std::accumulate(t.begin(), t.end(), 0.0) / n;
  double xx = 0, xt = 0, tt = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    xt += (x[i] - mx) * (t[i] - mt);
    tt += (t[i] - mt) * (t[i] - mt);
  }
  Line line{.b = xt / xx};
  line.a = mt - line.b * mx;
  line.r2 = tt > 0 ? xt * xt / (xx * tt) : 1;
  return line;
}

Prediction predict_forward(const Workload& w, const Ceilings& ceilings) {
  return {.gather = w.gathered_bytes() / ceilings.gather_bytes,
          .mlp = static_cast<double>(w.batch) * w.forward_flops() / ceilings.flops};
}

}  // namespace segue::edu
