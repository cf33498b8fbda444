#include "train/batch_pipeline.h"

#include <utility>

#include "base/stage.h"
#include "base/time.h"

namespace segue::train {

BatchPipeline::BatchPipeline(Source& source, Trainer& trainer, balance::Balancer* balancer,
                             Pipeline mode)
    : source_(source), trainer_(trainer), balancer_(balancer) {
  const bool gpu = trainer.device().is_cuda();
  if (mode == Pipeline::kOn || (mode == Pipeline::kAuto && gpu)) {
    worker_ = std::make_unique<data::BackgroundWorker>();
  }
  if (!gpu) return;
  for (Item& item : items_) item.batch.use_pinned_memory();
}

bool BatchPipeline::fetch(Item& item) {
  const std::optional<data::Delivery> delivery = source_.next(item.batch);
  if (!delivery) return false;
  item.delivery = *delivery;
  trainer_.ranks().set_batch_step(++step_);
  if (balancer_ != nullptr) {
    const base::Stage stage("balance");
    balance::Balancer::Pending pending = balancer_->start(item.batch);
    item.balance = balancer_->finish(item.batch, std::move(pending));
  }
  const base::Stage stage("prepare batch");
  trainer_.prepare(item.batch, item.prepared);
  return true;
}

void BatchPipeline::fetch_ahead() {
  asked_ = true;
  worker_->submit([this, item = &items_[1 - current_]] {
    base::name_thread("batch pipeline");
    found_ = fetch(*item);
  });
}

void BatchPipeline::start(data::StreamPosition from) {
  settle();
  asked_ = false;
  source_.start(from);
  step_ = trainer_.steps_done();
  if (worker_) fetch_ahead();
}

BatchPipeline::Item* BatchPipeline::next(bool more) {
  if (!worker_) return fetch(items_[0]) ? &items_[0] : nullptr;
  const base::Stopwatch watch;
  if (!asked_) fetch_ahead();  // nobody thought that it would be asked for
  settle();
  asked_ = false;
  if (!found_) return nullptr;
  current_ = 1 - current_;
  // The wait that a step sees is that for the whole pipeline, not for the loader behind it.
  items_[current_].delivery.wait_seconds = watch.seconds();
  if (more) fetch_ahead();
  return &items_[current_];
}

void BatchPipeline::settle() {
  if (worker_) worker_->wait();
}

}  // namespace segue::train
