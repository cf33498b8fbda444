#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "train/run/scoring.h"
#include "train/step/metrics.h"

namespace segue::cli {
namespace {

struct EvalArguments {
  std::string path, truth;
  std::vector<std::string> sets;
  std::optional<int64_t> window;
  bool json = false, baselines = false;
};

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
  const train::Evaluation e = train::evaluate(model, scorer, positions);

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
    FactTable& t = sheet.table("baselines", {"auc"});
    for (const train::Baseline& y : train::baselines(scorer.store(), positions, arguments.truth)) {
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
