#include "train/step/batch_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/stage.h"
#include "base/time.h"
#include "tensor/device_memory.h"
#include "train/plan/scaling_model.h"

namespace segue::train {
namespace {

/// What the job throws comes out of the future, not out of the worker.
std::shared_future<bool> run_on(base::BackgroundWorker& worker, std::function<bool()> job) {
  const auto task = std::make_shared<std::packaged_task<bool()>>(std::move(job));
  std::shared_future<bool> result = task->get_future().share();
  worker.submit([task] { (*task)(); });
  return result;
}

}  // namespace

BatchPipeline::BatchPipeline(Trainer& trainer, sparse::Mode mode, Pipeline pipeline,
                             balance::Balancer* balancer)
    : trainer_(trainer), mode_(mode), balancer_(balancer) {
  for (auto& prepared : prepared_) prepared = trainer.model().new_batch();
  if (runs_ahead(pipeline, trainer.device())) {
    preparer_ = std::make_unique<base::BackgroundWorker>(prepared_.size());
    fetcher_ = std::make_unique<base::BackgroundWorker>(items_.size());
  }
}

bool BatchPipeline::fetch(int64_t number) {
  Item& to = item(number);
  if (ended_) return false;
  const std::optional<data::BatchInfo> delivery = fill_(to.batch);
  ended_ = !delivery;
  if (ended_) return false;
  to.delivery = *delivery;
  if (balancer_ == nullptr) return true;
  const base::Stage stage("balance");
  trainer_.ranks().balance->set_step(first_step_ + number);
  to.balance = balancer_->balance(to.batch);
  return true;
}

bool BatchPipeline::prepare(int64_t number) {
  Item& to = item(number);
  to.prepared = prepared_[static_cast<size_t>(number) % prepared_.size()].get();
  const base::Stage stage("prepare batch");
  const base::Stopwatch watch;
  const Ranks& ranks = trainer_.ranks();
  if (!ranks.alone()) ranks.ids->set_step(first_step_ + number);
  trainer_.prepare(to.batch, *to.prepared, mode_);
  to.prepare_seconds = watch.seconds();
  return true;
}

void BatchPipeline::ask_fetched(int64_t end) {
  for (; fetch_asked_ < end; ++fetch_asked_) {
    const int64_t number = fetch_asked_;
    fetched_[static_cast<size_t>(number) % fetched_.size()] = run_on(*fetcher_, [this, number] {
      base::name_thread("pipeline: balance");
      use_device(trainer_.device());
      return fetch(number);
    });
  }
}

void BatchPipeline::ask_prepared(int64_t end) {
  ask_fetched(end);
  for (; prepare_asked_ < end; ++prepare_asked_) {
    const int64_t number = prepare_asked_;
    const std::shared_future<bool> fetched =
        fetched_[static_cast<size_t>(number) % fetched_.size()];
    ready_[static_cast<size_t>(number) % ready_.size()] =
        run_on(*preparer_, [this, number, fetched] {
          base::name_thread("pipeline: prepare");
          use_device(trainer_.device());
          return fetched.get() && prepare(number);
        });
  }
}

void BatchPipeline::start(Fill fill) {
  settle();
  fill_ = std::move(fill);
  given_ = fetch_asked_ = prepare_asked_ = 0;
  ended_ = false;
  first_step_ = trainer_.steps_done() + 1;
  if (preparer_) ask_prepared(1);
}

BatchPipeline::Item* BatchPipeline::next(int64_t more) {
  const int64_t number = given_;
  if (!preparer_) {
    if (!fetch(number) || !prepare(number)) return nullptr;
    ++given_;
    return &item(number);
  }
  const base::Stopwatch watch;
  ask_prepared(number + 1);  // maybe nobody thought that it would be asked for
  if (!ready_[static_cast<size_t>(number) % ready_.size()].get()) return nullptr;
  ++given_;
  // The wait that a step sees is that for the whole pipeline, not for the loader behind it.
  item(number).delivery.wait_seconds = watch.seconds();
  ask_prepared(given_ + std::min<int64_t>(more, 1));
  ask_fetched(given_ + std::min<int64_t>(more, 2));
  return &item(number);
}

void BatchPipeline::settle() {
  for (int64_t number = given_; number < prepare_asked_; ++number) {
    ready_[static_cast<size_t>(number) % ready_.size()].get();
  }
  for (int64_t number = given_; number < fetch_asked_; ++number) {
    fetched_[static_cast<size_t>(number) % fetched_.size()].get();
  }
}

std::unique_ptr<balance::Balancer> make_balancer(const RunConfig& config, const Trainer& trainer) {
  if (trainer.ranks().alone() || !config.balance.on) return nullptr;
  const model::SampleWork work = trainer.model().work();
  return std::make_unique<balance::Balancer>(
      config.balance, work.shape, cost_weights(work, balancing_rates()), *trainer.ranks().balance);
}

}  // namespace segue::train
