#include "train/run/scoring.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "data/inspect/baselines.h"
#include "data/inspect/inspect.h"
#include "ops/optimizer.h"
#include "tensor/device_memory.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/run/run_state.h"
#include "train/run/store_record.h"
#include "train/step/batch_pipeline.h"
#include "train/step/source.h"
#include "train/step/store_checks.h"
#include "train/step/store_facts.h"

namespace segue::train {
namespace {

/// The config in a checkpoint may ask for any size. Nothing of it is allocated that the checkpoint
/// does not hold.
void require_size(const Checkpoint& checkpoint, const RunConfig& config) {
  const auto model = make_model(config);
  const size_t states = ops::dense_states(config.optimizer.kind).size();
  double values =
      static_cast<double>(1 + states) * static_cast<double>(model->parameters().count());
  for (const sparse::TableConfig& t : config.sparse.tables) {
    const bool touched = std::ranges::any_of(checkpoint.arrays(), [&](const auto& array) {
      return array.file == "tables" && array.name == "row/" + t.name;
    });
    if (t.dynamic() || touched) continue;  // takes memory as it is filled
    values += static_cast<double>(t.rows) * static_cast<double>(config.sparse.dim_of(t));
  }
  values += 2 * static_cast<double>(model->tasks().size()) *
            static_cast<double>(config.train.metric_window);
  const double bytes = values * sizeof(float);
  if (bytes <= static_cast<double>(checkpoint.manifest().bytes())) return;
  fail(ErrorCode::kConfig,
       fmt::format("{}: holds {} bytes, but its config is that of a model of {:.0f}; give back the "
                   "values that the run was trained with",
                   checkpoint.path(), checkpoint.manifest().bytes(), bytes));
}

/// The arrays that predictions depend on.
void read_model(const Checkpoint& checkpoint, Trainer& trainer) {
  checkpoint.read(trainer.arrays(), trainer.stream(),
                  [](const Checkpoint::Array& saved) { return saved.file == "metrics"; });
  load_tables(checkpoint, trainer.tables());
}

const RunConfig& with_store(const RunConfig& config) {
  if (config.data.store.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "the run was not trained on a store; give one with --set data.store=PATH");
  }
  return config;
}

}  // namespace

TrainedModel open_model(const std::string& path, const std::vector<std::string>& sets) {
  const base::Stage stage("open model");
  const Checkpoint checkpoint = open_checkpoint(path);
  const RunState state = run_state_of(checkpoint);
  base::ConfigSources sources;
  sources.file = checkpoint.path();
  sources.text = state.config;
  sources.sets = sets;
  TrainedModel model;
  model.config = load_run_config(sources);
  require_size(checkpoint, model.config);
  const bool new_ids = require_ids(state, checkpoint.path(), model.config.data.store);
  if (new_ids && model.config.sparse.out_of_range == sparse::OutOfRange::kError) {
    model.config.sparse.out_of_range = sparse::OutOfRange::kZero;
    model.new_ids = true;
  }
  model.step = checkpoint.step();
  model.checkpoint = checkpoint.path();
  const std::vector<ConfigDifference> changes =
      config_differences(state.config, base::to_toml(model.config));
  const bool same_samples = std::ranges::none_of(changes, [](const ConfigDifference& c) {
    return c.key == "data.store" || c.key.starts_with("data.stream.");
  });
  if (same_samples) model.trained_window = state.window;
  base::set_num_threads(static_cast<int>(model.config.train.threads));
  const Device device = choose_device(model.config.train.device);
  use_device(device);
  model.trainer = std::make_unique<Trainer>(model.config, device);
  read_model(checkpoint, *model.trainer);
  return model;
}

StoreScorer::StoreScorer(const RunConfig& config)
    : batch_size_(config.data.batch_size),
      pipeline_(config.parallel.pipeline),
      data_(with_store(config)) {
  if (data::schema_for(store().folder()).organic.empty()) organic_ = 0;
}

StoreScorer::StoreScorer(const TrainedModel& model) : StoreScorer(model.config) {
  if (!model.new_ids) return;
  const std::vector<std::string> missing = missing_rows(model.config, store());
  if (missing.empty()) return;
  base::log_warning(
      fmt::format("{}: has ids that came after {} was saved and have no rows in its tables; they "
                  "read as zeros. Tables of kind \"dynamic\" take any id; static ones would need{}",
                  store().folder(), model.checkpoint, fmt::join(missing, "")));
}

std::vector<int64_t> StoreScorer::anchors(std::optional<int64_t> window) const {
  if (!window) return data_.stream.eval_positions(data_.stream.end_window() - 1);
  const data::LogWindows& windows = data_.stream.windows();
  if (*window < 0 || *window >= windows.num_windows()) {
    fail(ErrorCode::kOutOfRange, fmt::format("{} has windows 0 to {}, not {}", store().folder(),
                                             windows.num_windows() - 1, *window));
  }
  if (*window >= data_.stream.first_window() && *window < data_.stream.end_window()) {
    base::log_warning(fmt::format(
        "window {} is one that the run trains on ({} to {}), so this says little about "
        "new data; {}",
        *window, data_.stream.first_window(), data_.stream.end_window() - 1,
        data_.stream.config().train_share < 1 ? "of its samples, those of all users are taken"
                                              : "without --window it is what the run holds out"));
  }
  return windows.read(*window);
}

int64_t StoreScorer::trained(const TrainedModel& model, int64_t window,
                             std::span<const int64_t> positions) const {
  const data::SampleStream& stream = data_.stream;
  // Windows of later epochs count on.
  if (window < stream.first_window() || window >= stream.end_window() ||
      window > model.trained_window) {
    return 0;
  }
  const data::EventLog log(store());
  return std::ranges::count_if(
      positions, [&](int64_t p) { return stream.trains_on(log.at(p, &data::EventStore::users)); });
}

HeldOutFacts StoreScorer::facts(std::span<const model::TaskConfig> tasks,
                                std::span<const int64_t> positions) const {
  return store_facts(data_, tasks, positions);
}

std::optional<double> StoreScorer::oracle_auc(std::span<const int64_t> positions,
                                              const std::string& raw_folder) const {
  return truth_auc(store(), data::read_truth(store(), raw_folder), positions);
}

void StoreScorer::score(Trainer& trainer, size_t samples, const Fill& fill,
                        const Each& each) const {
  size_t first = 0;
  BatchPipeline pipeline(trainer, sparse::Mode::kEvaluation, pipeline_);
  pipeline.start([&](Batch& batch) -> std::optional<data::BatchInfo> {
    const size_t count = std::min(static_cast<size_t>(batch_size_), samples - first);
    if (count == 0) return std::nullopt;
    fill(first, count, batch);
    batch.global_samples = static_cast<int64_t>(count);
    first += count;
    return data::BatchInfo{};
  });
  while (const BatchPipeline::Item* item = pipeline.next()) each(trainer.predict(*item->prepared));
  for (const auto& verifier : data_.verifiers) verifier->finish();
}

void StoreScorer::score(Trainer& trainer, std::span<const int64_t> positions,
                        const Each& each) const {
  std::vector<int64_t> numbers(static_cast<size_t>(batch_size_));
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<int64_t> all = data_.stream.starts(positions);
  const auto fill = [&](size_t first, size_t count, Batch& batch) {
    const std::span<const int64_t> of_batch = std::span(numbers).first(count);
    if (all.empty()) return data_.gatherer.fill(positions.subspan(first, count), of_batch, batch);
    const std::span<const int64_t> starts = std::span(all).subspan(first, count + 1);
    const auto begin = static_cast<size_t>(starts.front());
    data_.gatherer.fill(positions.subspan(begin, static_cast<size_t>(starts.back()) - begin),
                        of_batch, batch, starts);
  };
  score(trainer, all.empty() ? positions.size() : all.size() - 1, fill, each);
}

void StoreScorer::score(Trainer& trainer, std::span<const data::CandidateQuery> questions,
                        const Each& each) const {
  const auto fill = [&](size_t first, size_t count, Batch& batch) {
    data_.gatherer.fill(questions.subspan(first, count), batch);
  };
  score(trainer, questions.size(), fill, each);
}

Evaluation evaluate(TrainedModel& model, const StoreScorer& scorer,
                    std::span<const int64_t> positions, const HeldOutFacts* facts) {
  Evaluator evaluator(model.trainer->model().tasks());
  scorer.score(*model.trainer, positions, [&](const model::Pass& pass) { evaluator.add(pass); });
  Evaluation result = evaluator.result();
  if (facts != nullptr) evaluator.add_facts(*facts, model.config.eval.top_k, result);
  return result;
}

}  // namespace segue::train
