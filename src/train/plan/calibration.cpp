#include "train/plan/calibration.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "base/log.h"
#include "base/stage.h"
#include "base/time.h"
#include "data/synth/random_batches.h"
#include "train/plan/memory_plan.h"
#include "train/plan/scaling_model.h"
#include "train/plan/shard_planning.h"
#include "train/step/random_schema.h"
#include "train/step/trainer.h"

namespace segue::train {
namespace {

constexpr int64_t kMostRows = 100'000;  // of a table: what a row costs hardly depends on it
constexpr int64_t kMostPasses = 2;      // micro-batches of a step: more of them say the same
constexpr int kWarmUp = 1, kTimed = 5;

/// Of a step with samples of so many events: a rank's share, or as many as say the same.
int64_t samples_of(const RunConfig& config, int ranks, int64_t events) {
  const int64_t enough = kMostPasses * config.train.micro_batch() /
                         make_model(config)->sample_tokens(events, config.data.random.candidates);
  return std::max<int64_t>(2, std::min(enough, samples_per_rank(config, ranks)));
}

/// The same model with random samples as long as the config allows.
RunConfig calibration_config(const RunConfig& config, int ranks) {
  const int64_t longest = std::max<int64_t>(1, step_bounds(config, *make_model(config)).events);
  RunConfig c = config;
  c.data.store.clear();
  c.data.interactions.samples = 0;
  c.data.batch_size = samples_of(config, ranks, std::max<int64_t>(1, longest / 4));
  c.data.random = {};
  c.data.random.lengths.low = longest;
  c.data.random.lengths.high = longest + 1;
  for (sparse::TableConfig& t : c.sparse.tables) {
    int64_t& most = t.max_rows > 0 ? t.max_rows : t.rows;
    most = std::min(most, kMostRows);
    t.start_rows = std::min(t.start_rows, kMostRows);
  }
  c.parallel.tensor_parallel = 1;
  return c;
}

Calibration::Step timed_step(const RunConfig& config, int64_t samples, int64_t events,
                             const std::function<double(const Batch&)>& seconds_of) {
  data::RandomDataConfig random = config.data.random_config();
  random.batch_size = samples;
  random.lengths.low = events;
  random.lengths.high = events + 1;
  const auto model = make_model(config);
  const data::RandomBatches data(
      random_schema(*model, config.sparse, config.data.random.candidates), random,
      static_cast<uint64_t>(config.train.seed));
  Calibration::Step step{samples, events, {}, {}};
  Batch batch;
  for (int i = 0; i < kWarmUp + kTimed; ++i) {
    data.fill(i + 1, batch);
    const double taken = seconds_of(batch);
    if (i >= kWarmUp) step.seconds.push_back(taken);
  }
  std::ranges::nth_element(step.seconds, step.seconds.begin() + kTimed / 2);
  step.timing.seconds = step.seconds[kTimed / 2];
  const balance::SampleShape shape = model->work().shape;
  for (const balance::SampleCost& sample :
       balance::sample_costs(batch, shape, balance::CostKind::kCalibrated, {0, 1})) {
    step.timing.tokens += static_cast<double>(sample.tokens);
    step.timing.pairs += static_cast<double>(sample.cost);
  }
  return step;
}

}  // namespace

Calibration calibrate_cost(const RunConfig& config, int ranks,
                           const std::function<double(const Batch&)>& seconds_of) {
  const RunConfig c = calibration_config(config, ranks);
  const int64_t longest = c.data.random.lengths.low;
  Calibration all;
  std::vector<balance::Timing> differences;
  for (const int64_t events : {longest, longest / 2, longest / 4}) {
    if (events == 0) continue;
    const int64_t samples = samples_of(config, ranks, events);
    // What any step costs, however small, is in both and falls out.
    const Calibration::Step half = timed_step(c, samples / 2, events, seconds_of);
    const Calibration::Step whole = timed_step(c, samples, events, seconds_of);
    differences.push_back({whole.timing.tokens - half.timing.tokens,
                           whole.timing.pairs - half.timing.pairs,
                           std::max(0.0, whole.timing.seconds - half.timing.seconds)});
    all.steps.insert(all.steps.end(), {half, whole});
  }
  all.weights = balance::calibrate(differences);
  return all;
}

Calibration calibrate_cost(const RunConfig& config, int ranks, Device device) {
  const base::Stage stage("calibrate costs");
  Trainer trainer(calibration_config(config, ranks), device);
  const auto prepared = trainer.model().new_batch();
  return calibrate_cost(config, ranks, [&](const Batch& batch) {
    trainer.prepare(batch, *prepared);
    trainer.stream()->synchronize();
    const base::Stopwatch watch;
    trainer.step(*prepared);
    trainer.stream()->synchronize();
    return watch.seconds();
  });
}

bool calibrate_balance(RunConfig& config, const Ranks& ranks, Device device,
                       const std::string& before) {
  balance::BalanceConfig& balance = config.balance;
  if (!balance.on || !balance.calibrate || balance.has_weights() ||
      balance.cost != balance::CostKind::kCalibrated) {
    return false;
  }
  std::string weights;
  if (ranks.first()) {
    const RunConfig known = before.empty() ? RunConfig{} : recorded_config(before);
    const balance::CostWeights w =
        known.balance.has_weights()
            ? balance::CostWeights{known.balance.token_ps, known.balance.pair_ps}
            : calibrate_cost(config, ranks.size(), device).weights;
    weights = fmt::format("{:.6g} {:.6g}", w.token_ps, w.pair_ps);
    base::log_info(fmt::format("a token costs {:.6g} ps and a pair of tokens {:.6g} ps ({})",
                               w.token_ps, w.pair_ps,
                               known.balance.has_weights() ? "measured before" : "measured now"));
  }
  std::istringstream all(ranks.from_first(weights));
  all >> balance.token_ps >> balance.pair_ps;
  return true;
}

}  // namespace segue::train
