#include "train/run/saver.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "train/checkpoint/checkpoint.h"

namespace segue::train {

Saver::Saver(const std::string& folder, const RunConfig& config, const Ranks& ranks,
             const Publisher::Publish& publish, int64_t saved_step)
    : folder_(folder), config_(config.checkpoint), saved_step_(saved_step) {
  ranks.first_then_others([&] {
    writer_ = std::make_unique<CheckpointWriter>(
        folder, config.checkpoint, kShardBytes,
        WriterRanks{ranks.rank(), ranks.size(), config.comm.timeout_seconds});
  });
  if (!ranks.first() || !publish) return;
  publisher_ = std::make_unique<Publisher>(publish);
  if (saved_step_ >= 0) this->publish(saved_step_);
}

void Saver::before_step(int64_t batches, int64_t steps) {
  const SaveReason reason = due(config_, batches, steps, since_save_.seconds());
  if (reason != SaveReason::kNone && !std::exchange(wanted_, true)) since_due_.restart();
}

Saver::Wish Saver::wish(bool verified) const {
  constexpr double kPatience = 60;  // seconds
  const bool free = !writer_->busy();
  return {.save = wanted_ && free && (verified || since_due_.seconds() > kPatience),
          .full = free && !writer_->succeeded()};
}

bool Saver::next_is_full(bool full) {
  full = full || ++since_full_ >= config_.full_every;
  if (full) since_full_ = 0;
  return full;
}

void Saver::save(int64_t step, CheckpointContents contents, const std::string& state_json,
                 const Stream* stream, const Status& logs, bool full) {
  writer_->save(step, std::move(contents), state_json, stream, logs, !full);
  saved_step_ = step;
  wanted_ = false;
  since_save_.restart();
}

void Saver::look() {
  report(writer_->take_failure());
  publish_saved();
}

void Saver::report(const Status& status) const {
  if (status.ok()) return;
  if (config_.on_failure == CheckpointConfig::OnFailure::kStop) {
    fail(ErrorCode::kIo, status.message());
  }
  base::log_warning(
      fmt::format("a checkpoint could not be saved, training goes on: {}", status.message()));
}

/// The newest checkpoint, when it is whole and the one before it is published.
void Saver::publish_saved() {
  if (!publisher_ || publisher_->busy() || writer_->busy() || !writer_->succeeded()) return;
  if (saved_step_ != published_step_) publish(saved_step_);
}

void Saver::publish(int64_t step) {
  published_step_ = step;
  publisher_->start(checkpoint_path(folder_, step));
}

void Saver::settle() {
  static_cast<void>(writer_->wait());
  report(writer_->take_failure());
}

void Saver::finish() {
  const Status status = writer_->wait();
  if (!status.ok()) fail(ErrorCode::kIo, "the last checkpoint: " + status.message());
  wait_until_published();
  publish_saved();
  wait_until_published();
}

void Saver::wait_until_published() {
  if (publisher_) publisher_->wait();
}

}  // namespace segue::train
