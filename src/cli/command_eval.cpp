#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "train/run/scoring.h"
#include "train/step/metrics.h"
#include "train/step/store_facts.h"

namespace segue::cli {
namespace {

struct EvalArguments {
  std::string path, truth;
  std::vector<std::string> sets;
  std::optional<int64_t> window;
  bool json = false, baselines = false;
};

Fact auc_fact(double auc, bool one_class) {
  const Fact fact = Fact::real(auc, 6);
  return one_class ? fact.with_words(train::kOneClass) : fact;
}

/// The limits of the 95 % interval of an AUC, where there is one.
void add_interval(double auc, const std::optional<double>& error, std::vector<Fact>& facts) {
  const train::AucInterval interval = train::auc_interval(auc, error.value_or(0));
  for (const double limit : {interval.low, interval.high}) {
    facts.push_back(error ? Fact::real(limit, 6) : Fact("n/a"));
  }
}

void add_tasks(const train::Evaluation& e, FactSheet& sheet) {
  std::vector<std::string> columns = {
      "loss", "auc", "auc low", "auc high", "normalized entropy", "accuracy", "calibration"};
  if (std::ranges::any_of(e.tasks, [](const auto& q) { return q.details.has_value(); })) {
    columns.push_back("calibration error");
  }
  FactTable& tasks = sheet.table("tasks", std::move(columns));
  for (const train::TaskQuality& q : e.tasks) {
    if (!q.binary) {
      tasks.rows.push_back({q.name, {Fact::real(q.loss, 6)}});
      continue;
    }
    std::vector<Fact> facts = {Fact::real(q.loss, 6), auc_fact(q.auc, q.one_class)};
    add_interval(q.auc, q.auc_error, facts);
    const Fact entropy = Fact::real(q.normalized_entropy, 6);
    facts.push_back(q.one_class ? entropy.with_words(train::kOneClass) : entropy);
    facts.push_back(Fact::real(q.accuracy, 6));
    facts.push_back(Fact::real(q.calibration, 6));
    if (q.details) facts.push_back(Fact::real(q.details->calibration.error, 6));
    tasks.rows.push_back({q.name, std::move(facts)});
  }
}

void add_table(FactTable table, FactSheet& sheet) {
  if (!table.rows.empty()) sheet.table(table.title, table.columns).rows = std::move(table.rows);
}

/// Tables of what is known beside AUC; rows carry the task's name where there are several.
void add_details(const train::Evaluation& e, FactSheet& sheet) {
  const auto binary = std::ranges::count_if(e.tasks, &train::TaskQuality::binary);
  const auto each =
      [&](const std::function<void(const train::TaskQuality&, const std::string&)>& f) {
        for (const train::TaskQuality& q : e.tasks) {
          if (q.details) f(q, binary > 1 ? q.name + " " : "");
        }
      };
  FactTable lists{"ranked per user", {"users", "labels", "auc", "ndcg", "recall", "k"}, {}};
  each([&](const train::TaskQuality& q, const std::string&) {
    const ops::ListQuality& l = q.details->lists;
    if (l.lists == 0) return;
    lists.rows.push_back({q.name,
                          {l.lists, l.labels, Fact::real(l.auc, 6), Fact::real(l.ndcg, 6),
                           Fact::real(l.recall, 6), e.top_k}});
  });
  add_table(std::move(lists), sheet);
  const auto add_slices = [&](const char* title, auto slices_of) {
    FactTable table{title, {"labels", "auc", "auc low", "auc high"}, {}};
    each([&](const train::TaskQuality& q, const std::string& task) {
      for (const train::AucSlice& slice : slices_of(*q.details)) {
        std::vector<Fact> facts = {slice.labels, auc_fact(slice.auc, slice.one_class)};
        add_interval(slice.auc, slice.error, facts);
        table.rows.push_back({task + slice.name, std::move(facts)});
      }
    });
    add_table(std::move(table), sheet);
  };
  add_slices("auc by earlier events of the user",
             [](const train::TaskDetails& d) { return d.by_history; });
  add_slices("auc by earlier events of the item",
             [](const train::TaskDetails& d) { return d.by_item; });
  FactTable calibration{"calibration curve", {"labels", "prediction", "share"}, {}};
  each([&](const train::TaskQuality& q, const std::string& task) {
    const std::vector<ops::CalibrationCurve::Bin>& bins = q.details->calibration.bins;
    for (size_t b = 0; b < bins.size(); ++b) {
      calibration.rows.push_back(
          {fmt::format("{}bin {}", task, b + 1),
           {bins[b].labels, Fact::real(bins[b].prediction, 6), Fact::real(bins[b].share, 6)}});
    }
  });
  add_table(std::move(calibration), sheet);
}

void add_comparison(const train::Comparison& c, FactTable& about) {
  about.rows.push_back({"best baseline", {c.best_rule().name}});
  about.rows.push_back({"best baseline auc", {Fact::real(c.best_rule().auc, 6)}});
  about.rows.push_back({"above it by", {Fact::real(c.difference, 6)}});
  about.rows.push_back({"verdict",
                        {fmt::format("{}{}",
                                     !c.significant() ? "about as good"
                                     : c.above()      ? "above it"
                                                      : "below it",
                                     c.error ? fmt::format(" (± {:.6f})", c.margin()) : "")}});
}

void eval(const EvalArguments& arguments) {
  train::TrainedModel model = train::open_model(arguments.path, arguments.sets);
  const train::StoreScorer scorer(model);
  const std::vector<int64_t> positions = scorer.anchors(arguments.window);
  if (positions.empty()) {
    fail(ErrorCode::kOutOfRange,
         fmt::format("{} holds out no sample, so there is nothing to evaluate; name a window with "
                     "--window N, or set data.stream.eval_window or eval_windows",
                     arguments.path));
  }
  std::optional<train::HeldOutFacts> facts;
  if (arguments.baselines || !arguments.truth.empty() ||
      train::wants_facts(model.config.eval, scorer.num_events(), false)) {
    facts = scorer.facts(model.trainer->model().tasks(), positions);
  }
  const train::Evaluation e = train::evaluate(model, scorer, positions, facts ? &*facts : nullptr);

  FactSheet sheet;
  FactTable& about = sheet.table("evaluation");
  about.rows = {{"checkpoint", {model.checkpoint}},
                {"step", {model.step}},
                {"store", {scorer.store().folder()}},
                {"window", {arguments.window ? std::to_string(*arguments.window) : "held out"}},
                {"samples", {e.samples}},
                {"loss", {Fact::real(e.loss, 6)}},
                {"auc", {auc_fact(e.auc(), e.one_class())}}};
  if (e.auc_error) {
    const train::AucInterval interval = train::auc_interval(e.auc(), *e.auc_error);
    about.rows.push_back({"auc low", {Fact::real(interval.low, 6)}});
    about.rows.push_back({"auc high", {Fact::real(interval.high, 6)}});
  }
  const int64_t trained =
      arguments.window ? scorer.trained(model, *arguments.window, positions) : 0;
  if (trained > 0) {
    about.rows.push_back({"trained samples", {trained}});
    about.rows.push_back(
        {"note",
         {fmt::format("{} of these samples were trained on: AUC says little about new ones",
                      trained == e.labels ? "all" : "some")}});
  }
  if (e.comparison) add_comparison(*e.comparison, about);
  add_tasks(e, sheet);
  if (facts) add_details(e, sheet);
  FactTable baselines{"baselines", {"auc"}, {}};
  if (e.comparison) {
    for (const train::Comparison::RuleAuc& rule : e.comparison->rules) {
      baselines.rows.push_back({rule.name, {Fact::real(rule.auc, 6)}});
    }
  }
  if (const std::optional<double> oracle = scorer.oracle_auc(positions, arguments.truth)) {
    baselines.rows.push_back({"oracle", {Fact::real(*oracle, 6)}});
  }
  add_table(std::move(baselines), sheet);
  print(arguments.json ? sheet.json() : sheet.text());
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Metrics of a trained model on a window.");
  const auto arguments = std::make_shared<EvalArguments>();
  command->add_option("path", arguments->path, "run or checkpoint")->required();
  add_sets(*command, arguments->sets);
  command->add_option("--window", arguments->window,
                      "number of the window (default: what the run holds out)");
  command->add_flag("--baselines", arguments->baselines,
                    "what simple rules reach on the same events, however large the log is");
  command->add_option("--truth", arguments->truth,
                      "folder of the synthetic raw log that the store was prepared from");
  command->add_flag("--json", arguments->json, "the same numbers as one JSON object");
  command->callback([arguments] { eval(*arguments); });
}

}  // namespace segue::cli
