#include "train/step/store_facts.h"

#include <algorithm>
#include <cmath>

#include "data/inspect/baselines.h"
#include "data/store/event_log.h"
#include "ops/metrics.h"

namespace segue::train {
namespace {

/// Pools whose events have the label of a task.
std::vector<size_t> positive_pools(const data::SampleSchema& schema,
                                   const model::TaskConfig& task) {
  std::vector<size_t> pools;
  for (size_t p = 0; p < schema.pools.size(); ++p) {
    const bool labels = schema.label_pool.empty() || schema.label_pool == schema.pools[p].name;
    if (labels && (schema.pools[p].bit & task.bit) != 0) pools.push_back(p);
  }
  return pools;
}

}  // namespace

HeldOutFacts store_facts(const RunStore& store, std::span<const model::TaskConfig> tasks,
                         std::span<const int64_t> positions, const std::stop_token& stop) {
  HeldOutFacts facts;
  const data::EventLog log(store.events);
  for (const model::TaskConfig& task : tasks) {
    std::vector<data::Rule>& rules = facts.rules.emplace_back();
    if (task.kind != ops::TaskKind::kBinary) continue;
    data::RuleQuery query{.positions = std::vector(positions.begin(), positions.end()),
                          .positive = positive_pools(store.events.schema(), task),
                          .one_thread = true,
                          .stop = stop};
    if (query.positive.empty()) continue;  // its bit never occurs
    rules = data::predict_by_history(store.events, query).rules;
  }
  if (stop.stop_requested()) return facts;
  for (const int64_t p : positions) {
    facts.lists.push_back(log.at(p, &data::EventStore::users));
    facts.history.push_back(log.events_before(p));
  }
  facts.item_events = data::item_events_before(
      store.events, positions, [&](int64_t user) { return store.stream.trains_on(user); }, stop);
  return facts;
}

std::optional<double> truth_auc(const data::EventStore& store, std::span<const float> truth,
                                std::span<const int64_t> positions) {
  const std::optional<size_t> pool = store.schema().label_place();
  if (truth.empty() || !pool) return std::nullopt;
  const std::span<const uint8_t> label = store.in_pool(*pool);
  std::vector<float> predictions, labels;
  for (const int64_t position : positions) {
    const auto i = static_cast<size_t>(position);
    if (i >= truth.size() || std::isnan(truth[i])) return std::nullopt;
    predictions.push_back(truth[i]);
    labels.push_back(label[i] != 0 ? 1.f : 0.f);
  }
  return ops::exact_auc(predictions, labels);
}

bool wants_facts(const EvalConfig& eval, int64_t events, bool timed) {
  constexpr int64_t kModerate = 50'000'000;
  if (eval.details != EvalDetails::kAuto) return eval.details == EvalDetails::kOn;
  return events <= kModerate && !timed;
}

}  // namespace segue::train
