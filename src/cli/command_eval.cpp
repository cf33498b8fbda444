#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "data/baselines.h"
#include "ops/metrics.h"
#include "train/metrics.h"
#include "train/scoring.h"

namespace segue::cli {
namespace {

struct EvalArguments {
  std::string path, truth;
  std::vector<std::string> sets;
  std::optional<int64_t> window;
  bool json = false, baselines = false;
};

/// AUC of a rule's predictions at the evaluated events; empty where it has none.
struct Yardstick {
  std::string name;
  double auc = 0.5;
};

/// What simple rules, and the truth where it is known, reach on the same events.
std::vector<Yardstick> yardsticks(const data::EventStore& store,
                                  const std::vector<int64_t>& positions,
                                  const EvalArguments& arguments) {
  std::vector<Yardstick> result;
  const data::Predictions p = data::predict_by_history(store);
  std::vector<size_t> chosen;  // places of the evaluated events among the predicted ones
  for (size_t i = 0; i < p.positions.size(); ++i) {
    if (std::ranges::binary_search(positions, p.positions[i])) chosen.push_back(i);
  }
  std::vector<float> labels;
  labels.reserve(chosen.size());
  for (const size_t i : chosen) labels.push_back(p.labels[i]);
  const auto add = [&](std::string name, auto value_of) {
    std::vector<float> values;
    values.reserve(chosen.size());
    for (const size_t i : chosen) values.push_back(value_of(i));
    result.push_back({std::move(name), ops::exact_auc(values, labels)});
  };
  add("item", [&](size_t i) { return p.item[i]; });
  add("user", [&](size_t i) { return p.user[i]; });
  if (!p.user_attribute.empty()) {
    add("user-" + p.attribute.substr(0, p.attribute.find("_id")),
        [&](size_t i) { return p.user_attribute[i]; });
  }
  const std::vector<float> truth = data::read_truth(store, arguments.truth);
  if (!truth.empty()) {
    add("oracle", [&](size_t i) { return truth[static_cast<size_t>(p.positions[i])]; });
  }
  return result;
}

void eval(const EvalArguments& arguments) {
  train::TrainedModel model = train::open_model(arguments.path, arguments.sets);
  if (model.config.data.is_random()) {
    fail(ErrorCode::kInvalidArgument,
         "the run was trained on random samples; give a store with --set data.store=PATH");
  }
  const train::StoreScorer scorer(model.config);
  std::vector<int64_t> positions =
      arguments.window ? scorer.window(*arguments.window) : scorer.held_out();
  train::Evaluator evaluator(model.trainer->model().tasks());
  scorer.score(*model.trainer, positions, [&](const model::Pass& pass) { evaluator.add(pass); });
  const train::Evaluation e = evaluator.result();

  FactSheet sheet;
  FactTable& about = sheet.table("evaluation");
  about.rows = {{"checkpoint", {model.checkpoint}},
                {"step", {model.step}},
                {"store", {scorer.store().folder()}},
                {"window", {arguments.window ? std::to_string(*arguments.window) : "held out"}},
                {"samples", {e.samples}},
                {"loss", {Fact::real(e.loss, 6)}},
                {"auc", {Fact::real(e.auc(), 6)}}};
  FactTable& tasks =
      sheet.table("tasks", {"loss", "auc", "normalized entropy", "accuracy", "calibration"});
  for (const train::TaskQuality& q : e.tasks) {
    const Fact entropy = Fact::real(q.normalized_entropy, 6);
    tasks.rows.push_back({q.name,
                          {Fact::real(q.loss, 6), Fact::real(q.auc, 6),
                           q.one_class ? entropy.with_words(train::kNoEntropy) : entropy,
                           Fact::real(q.accuracy, 6), Fact::real(q.calibration, 6)}});
  }
  if (arguments.baselines || !arguments.truth.empty()) {
    std::ranges::sort(positions);
    FactTable& t = sheet.table("yardsticks", {"auc"});
    for (const Yardstick& y : yardsticks(scorer.store(), positions, arguments)) {
      t.rows.push_back({y.name, {Fact::real(y.auc, 6)}});
    }
  }
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
                    "also what simple rules reach on the same events");
  command->add_option("--truth", arguments->truth,
                      "folder of the synthetic raw log that the store was prepared from");
  command->add_flag("--json", arguments->json, "the same numbers as one JSON object");
  command->callback([arguments] { eval(*arguments); });
}

}  // namespace segue::cli
