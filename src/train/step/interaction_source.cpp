#include "train/step/interaction_source.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "data/synth/interactions.h"
#include "ops/metrics.h"
#include "train/step/store_facts.h"

namespace segue::train {
namespace {

using data::BatchInfo;
using data::StreamPosition;
using model::ColumnDemand;

void require_columns(const RunConfig& config) {
  const data::InteractionConfig& log = config.data.interactions;
  for (const ColumnDemand& d : make_model(config)->demands()) {
    const bool number = d.role == ColumnDemand::Role::kNumber;
    const int64_t has =
        number && d.column == "dense" ? log.dense
        : !number && (d.column == "user_id" || d.column == "item_id" || d.column == "label") ? 1
                                                                                             : 0;
    if (has == 0 || d.of != ColumnDemand::Of::kSample || (number && d.length != has)) {
      base::fail_config(fmt::format(
          "{} reads column `{}`{}; samples of data.interactions have one `user_id`, `item_id` and "
          "`label` each, and {} numbers in `dense`",
          d.key, d.column, number ? fmt::format(" ({} numbers)", d.length) : "", log.dense));
    }
    if (d.role != ColumnDemand::Role::kId) continue;
    const int64_t ids = d.column == "user_id" ? log.users : log.items;
    const int64_t rows =
        config.sparse.tables[static_cast<size_t>(config.sparse.id(d.table))].id_limit();
    if (rows < ids && config.sparse.out_of_range == sparse::OutOfRange::kError) {
      base::fail_config(fmt::format("table `{}` has {} rows, but column `{}` has {} ids", d.table,
                                    rows, d.column, ids));
    }
  }
}

class InteractionSource final : public Source {
 public:
  InteractionSource(const RunConfig& config, int rank, int ranks)
      : wants_facts_(wants_facts(config.eval, config.data.interactions.samples, config.mlperf.log)),
        num_tasks_(make_model(config)->tasks().size()),
        log_(config.data.interactions, static_cast<uint64_t>(config.train.seed)),
        batch_size_(config.data.batch_size),
        first_(batch_size_ * rank / ranks),
        count_(batch_size_ * (rank + 1) / ranks - first_),
        batches_(log_.num_train() / batch_size_),
        eval_batches_((log_.config().samples - log_.num_train()) / batch_size_) {
    require_columns(config);
    if (config.eval.max_batches > 0) {
      eval_batches_ = std::min(eval_batches_, config.eval.max_batches);
    }
    if (batches_ == 0) {
      base::fail_config(
          fmt::format("data.interactions has {} samples to train on, less than one batch; lower "
                      "data.batch_size",
                      log_.num_train()));
    }
  }

  StreamPosition first() const override { return {}; }
  void start(StreamPosition from) override { position_ = from; }
  StreamPosition end() const override { return {log_.config().passes, 0}; }
  std::optional<BatchInfo> next(Batch& batch) override {
    if (position_.window >= log_.config().passes) return std::nullopt;
    fill(position_.batch * batch_size_, batch);
    const BatchInfo delivery{.position = position_, .batches_in_window = batches_};
    position_ = delivery.next();
    return delivery;
  }

  void prefetch_evaluation(int64_t) override {}
  void start_evaluation(int64_t) override { evaluated_ = 0; }
  std::optional<BatchInfo> next_evaluation(Batch& batch) override {
    if (evaluated_ == eval_batches_) return std::nullopt;
    fill(held_out(evaluated_++), batch);
    return BatchInfo{};
  }

  int64_t train_samples() const override { return log_.config().passes * batches_ * batch_size_; }
  int64_t eval_samples() const override { return eval_batches_ * batch_size_; }
  std::optional<double> oracle_auc() override {
    if (eval_batches_ == 0) return std::nullopt;
    if (!facts_) measure();
    return oracle_;
  }
  /// Means of users and items are the rules.
  const HeldOutFacts* facts() override {
    if (!wants_facts_ || eval_batches_ == 0) return nullptr;
    if (!facts_) measure();
    return &*facts_;
  }

 private:
  void fill(int64_t begin, Batch& batch) const {
    log_.fill(begin + first_, count_, first_, batch_size_, batch);
  }
  int64_t held_out(int64_t number) const { return log_.num_train() + number * batch_size_; }

  void measure() {
    std::optional<data::InteractionMeans> means;
    if (wants_facts_) means.emplace(log_);
    HeldOutFacts& facts = facts_.emplace();
    data::Rule user{"user", {}}, item{"item", {}};
    std::vector<float> labels, oracle;
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    Batch batch;
    for (int64_t i = 0; i < eval_batches_; ++i) {
      log_.fill(held_out(i), batch_size_, batch);
      for (const int64_t label : batch.column("label").values.span()) {
        labels.push_back(static_cast<float>(label));
      }
      append(oracle, log_.probabilities(batch));
      append(facts.lists, batch.column("user_id").values.span());
      if (!means) continue;
      append(user.predictions, means->by_user(batch));
      append(item.predictions, means->by_item(batch));
    }
    oracle_ = ops::exact_auc(oracle, labels);
    if (means) facts.rules.assign(num_tasks_, {std::move(item), std::move(user)});
  }

  bool wants_facts_ = false;
  size_t num_tasks_ = 0;
  data::Interactions log_;
  int64_t batch_size_ = 0, first_ = 0, count_ = 0;  // samples of a step, those of this rank
  int64_t batches_ = 0;                             // of one pass
  int64_t eval_batches_ = 0, evaluated_ = 0;
  StreamPosition position_;
  double oracle_ = 0.5;
  std::optional<HeldOutFacts> facts_;
};

}  // namespace

std::unique_ptr<Source> make_interaction_source(const RunConfig& config, int rank, int ranks) {
  return std::make_unique<InteractionSource>(config, rank, ranks);
}

}  // namespace segue::train
