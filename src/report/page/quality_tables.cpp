#include "report/page/quality_tables.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <fmt/format.h>

#include "report/page/html_report.h"
#include "report/page/page_text.h"

namespace segue::report {
namespace {

std::string interval(double low, double high) {
  return std::isfinite(low) && std::isfinite(high) ? fmt::format("{:.4f} to {:.4f}", low, high)
                                                   : std::string(kNone);
}

/// A table with the name of a row in front; rows come as HTML.
std::string table(const std::string& title, std::initializer_list<const char*> columns,
                  const std::string& rows) {
  if (rows.empty()) return "";
  std::string head;
  for (const char* column : columns) head += fmt::format("<th scope=\"col\">{}</th>", column);
  return fmt::format(
      "<h2>{}</h2>\n<div class=\"card scroll\" tabindex=\"0\"><table><thead><tr>{}</tr></thead>"
      "<tbody>\n{}</tbody></table></div>\n",
      title, head, rows);
}

std::string row(const std::string& name, std::initializer_list<std::string> cells) {
  std::string out = fmt::format("<tr><th scope=\"row\">{}</th>", escape_html(name));
  for (const std::string& cell : cells) out += fmt::format("<td>{}</td>", cell);
  return out + "</tr>\n";
}

/// Calls `each` with every task of the last evaluations and what its rows begin with.
template <class Each>
void for_tasks(const std::vector<Run>& runs, Each each) {
  for (const Run& run : runs) {
    if (run.eval.empty()) continue;
    for (const TaskMetrics& task : run.eval.back().tasks) {
      each(task, runs.size() > 1 ? run.name + " · " + task.name : task.name);
    }
  }
}

std::string task_table(const std::vector<Run>& runs) {
  std::string rows;
  bool telling = false;  // more than what the headline says
  for (const Run& run : runs) {
    telling = telling || (!run.eval.empty() && run.eval.back().tasks.size() > 1);
  }
  for_tasks(runs, [&](const TaskMetrics& t, const std::string& name) {
    telling = telling || std::isfinite(t.calibration_error);
    rows +=
        row(name, {t.one_class ? kOneClass : fixed(t.auc, 4), interval(t.auc_low, t.auc_high),
                   t.one_class ? kOneClass : fixed(t.normalized_entropy, 4), fixed(t.accuracy, 4),
                   fixed(t.calibration, 4), fixed(t.calibration_error, 4)});
  });
  return telling ? table("Tasks at the last evaluation",
                         {"Task", "AUC", "95 % interval", "Normalized entropy", "Accuracy",
                          "Calibration", "Calibration error"},
                         rows)
                 : "";
}

std::string user_table(const std::vector<Run>& runs) {
  std::string rows;
  for_tasks(runs, [&](const TaskMetrics& t, const std::string& name) {
    if (!std::isfinite(t.users)) return;
    rows += row(name, {fixed(t.users, 0), fixed(t.user_auc, 4), fixed(t.ndcg, 4),
                       fixed(t.recall, 4), fixed(t.k, 0)});
  });
  return table("Ranked per user",
               {"Task", "Users with both classes", "AUC per user", "NDCG@k", "Recall@k", "k"},
               rows);
}

std::string rule_table(const std::vector<Run>& runs) {
  std::string rows;
  for (const Run& run : runs) {
    if (run.eval.empty() || run.eval.back().baselines.empty()) continue;
    const EvalPoint& e = run.eval.back();
    const std::string prefix = runs.size() > 1 ? run.name + " · " : "";
    for (const auto& [name, auc] : e.baselines) {
      const bool best = name == e.baseline && std::isfinite(e.above_by);
      rows += row(
          prefix + name,
          {fixed(auc, 4),
           best ? fmt::format(
                      "{}{:.4f}{}", e.above_by > 0 ? "+" : "−", std::abs(e.above_by),
                      std::isfinite(e.above_error) ? fmt::format(" ± {:.4f}", e.above_error) : "")
                : std::string(kNone)});
    }
  }
  return table("Simple rules on the same samples",
               {"Rule", "AUC", "The model against the best (95 %)"}, rows);
}

std::string slice_table(const std::vector<Run>& runs, const char* title, const char* of,
                        std::vector<AucOfSome> TaskMetrics::*slices) {
  std::string rows;
  for_tasks(runs, [&](const TaskMetrics& t, const std::string& name) {
    for (const AucOfSome& s : t.*slices) {
      rows += row(name + " · " + s.of,
                  {fixed(s.labels, 0), std::isnan(s.auc) ? kOneClass : fixed(s.auc, 4),
                   interval(s.low, s.high)});
    }
  });
  return table(title, {of, "Labels", "AUC", "95 % interval"}, rows);
}

}  // namespace

std::string quality_tables(const std::vector<Run>& runs) {
  return rule_table(runs) + task_table(runs) + user_table(runs) +
         slice_table(runs, "AUC by activity of the user", "Events of the user before",
                     &TaskMetrics::by_history) +
         slice_table(runs, "AUC by popularity of the item", "Events of the item before the window",
                     &TaskMetrics::by_item);
}

}  // namespace segue::report
