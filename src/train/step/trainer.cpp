#include "train/step/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/stage.h"
#include "base/time.h"
#include "ops/optimizer.h"
#include "tensor/launches.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/plan/memory_plan.h"
#include "train/plan/micro_batch.h"
#include "train/plan/shard_planning.h"

namespace segue::train {
namespace {

[[noreturn]] void fail_numeric(int64_t step, const std::string& what) {
  fail(ErrorCode::kNumeric,
       fmt::format("step {}: {} is not finite. Parameters and tables are as before the step. Lower "
                   "optimizer.lr or optimizer.sparse_lr, add optimizer.warmup_steps, or set "
                   "optimizer.clip_norm; train.precision = \"f64\" tells rounding from divergence",
                   step, what));
}

/// Counts of every rank, and maxima of all.
void share_counts(comm::Communicator& group, model::PreparedBatch& prepared) {
  std::vector<int64_t> mine{prepared.samples(), prepared.num_labels};
  mine.insert(mine.end(), prepared.maxima.begin(), prepared.maxima.end());
  const size_t ranks = static_cast<size_t>(group.size()), each = mine.size();
  const std::vector<int64_t> equal(ranks, static_cast<int64_t>(each));
  const std::vector<int64_t> all = gather_words(group, mine, equal);
  prepared.rank_samples.assign(ranks, 0);
  prepared.rank_labels.assign(ranks, 0);
  prepared.global_labels = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const int64_t* const theirs = all.data() + r * each;
    prepared.rank_samples[r] = theirs[0];
    prepared.rank_labels[r] = theirs[1];
    prepared.global_labels += theirs[1];
    for (size_t i = 0; i < prepared.maxima.size(); ++i) {
      prepared.maxima[i] = std::max(prepared.maxima[i], theirs[2 + i]);
    }
  }
}

}  // namespace

RunPlan plan_for(const RunConfig& config, const Ranks& ranks, Device device) {
  make_model(config)->attention_kernel(device, config.train.precision);  // an error if it cannot be
  int per_machine = ranks.alone() ? 1 : ranks.local_size();
  MachineMemory memory = machine_memory(device, per_machine);
  double installed = device_memory_share(device, per_machine);
  // What the first rank knows: all ranks must make the same plan.
  if (!ranks.alone()) {
    std::istringstream in(ranks.from_first(fmt::format("{} {} {} {}", per_machine, installed,
                                                       memory.device_bytes, memory.host_bytes)));
    in >> per_machine >> installed >> memory.device_bytes >> memory.host_bytes;
  }
  // Not what is free: a run that is repeated makes the same choice.
  constexpr double kAnyHostMemory = 1e18;
  const MicroBatchChoice choice = choose_micro_batch(
      config, device, cluster_of(config, ranks.size(), per_machine, {installed, kAnyHostMemory}));
  RunConfig chosen = config;
  chosen.train.micro_batch_tokens = choice.tokens;
  RunPlan plan = ranks.alone()
                     ? plan_run(chosen, device, memory)
                     : plan_run(chosen, cluster_of(chosen, ranks.size(), per_machine, memory),
                                ranks.rank(), device);
  if (config.train.micro_batch_tokens == 0) plan.micro_batch_why = choice.why;
  return plan;
}

DType parameter_dtype(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

Trainer::Trainer(const RunConfig& config, Device device)
    : Trainer(config, device, std::make_unique<Ranks>()) {}

Trainer::Trainer(const RunConfig& config, Device device, std::unique_ptr<Ranks> alone)
    : Trainer(config, device, *alone) {
  alone_ = std::move(alone);
}

Trainer::Trainer(const RunConfig& config, Device device, Ranks& ranks)
    : Trainer(config, device, ranks, plan_for(config, ranks, device)) {}

Trainer::Trainer(const RunConfig& config, Device device, Ranks& ranks, RunPlan plan)
    : config_(config),
      ranks_(ranks),
      plan_(std::move(plan)),
      arena_(device, plan_.arena_bytes),
      stream_(device),
      copy_stream_(device),
      timer_(stream_),
      tables_(config.sparse, plan_.tables.plan, {ranks_.ids.get(), ranks_.rows.get()}, device,
              parameter_dtype(config.train.precision), static_cast<uint64_t>(config.train.seed)),
      model_(make_model(config)),
      metrics_{LifetimeAuc(model_->tasks()),
               WindowMetrics(model_->tasks(), config.train.metric_window),
               {}} {
  model_->allocate(tables_, device, parameter_dtype(config.train.precision),
                   static_cast<uint64_t>(config.train.seed));
  model_->parameters().allocate_states(config.optimizer.kind);
  model_->reserve_prepare(plan_.prepare_bytes);
  if (ranks_.alone()) return;
  model_->set_head_group(ranks_.heads.get());
  reducer_ = std::make_unique<GradientReducer>(*ranks_.dense, model_->gradient_buckets(), device);
}

Exec Trainer::exec(int64_t step) {
  Exec e;
  e.arena = &arena_;
  e.stream = &stream_;
  e.device = arena_.device();
  e.precision = config_.train.precision;
  e.dropout_key =
      base::philox_key(static_cast<uint64_t>(config_.train.seed), static_cast<uint64_t>(step));
  return e;
}

void Trainer::prepare(const Batch& batch, model::PreparedBatch& prepared, sparse::Mode mode) {
  model_->prepare(batch, plan_.micro_batch_tokens, mode, prepared);
  // So that memory stays what was announced.
  prepared.block.reserve_copy(device(), plan_.batch_bytes);
  prepared.ticket.block.reserve_copy(device(), plan_.request_bytes);
  prepared.block.send(copy_stream_);
  tables_.stage(prepared.ticket, copy_stream_);
  prepared.global_labels = prepared.num_labels;
  if (ranks_.alone()) return;
  const std::span<const int64_t> index = batch.sample_index.span();
  prepared.sample_index.assign(index.begin(), index.end());
  share_counts(*ranks_.ids, prepared);
}

model::PassOptions Trainer::pass_options(const model::PreparedBatch& prepared, bool training) {
  model::PassOptions options;
  options.training = training;
  options.micro_batch_tokens = plan_.micro_batch_tokens;
  options.loss_denominator = static_cast<double>(prepared.global_labels);
  if (reducer_ && training) {
    options.gradients_ready = [this](size_t bucket) { reducer_->ready(bucket, stream_); };
  }
  return options;
}

/// Gradients and sums of all ranks, where those of this rank were. What follows is the same on all.
void Trainer::combine_ranks(const Exec& exec, const model::Pass& pass, bool training) {
  if (ranks_.alone()) return;
  if (training) reducer_->finish(stream_);
  ranks_.results->all_reduce(pass.results.sums, &stream_).throw_if_failed();
  if (training) {
    ops::sum_of_squares(exec, model_->parameters().grads(), pass.results.gradient_squares);
  }
}

/// Exchanges that are queued on a GPU end, or fail, within the timeout.
void Trainer::wait_for_ranks() const {
  if (!ranks_.alone()) ranks_.results->synchronize(stream_).throw_if_failed();
}

void Trainer::gather_ranks(const model::PreparedBatch& prepared, bool training, model::Pass& pass) {
  agreed_ = wish_ ? wish_() : Ranks::StopSave{};
  if (ranks_.alone()) return;
  const base::Stage stage("gather results");
  agreed_ = ranks_.gather(prepared, agreed_, pass);
  pass.model_flops = model_->flops(pass.token_offsets, training);
}

StepStats Trainer::step(model::PreparedBatch& prepared) {
  const base::Stopwatch watch;
  const int64_t launches_before = launches();
  const Arena::Mark mark(arena_);
  StepStats stats;
  stats.step = steps_done_ + 1;
  stats.rates = model::learning_rates(config_.optimizer, steps_done_);
  const Exec e = exec(stats.step);

  ranks_.set_step(stats.step);
  std::optional<PartTimer::Step> timed;
  const int64_t every = config_.train.track_layers_every;
  if (every > 0 && stats.step % every == 0) timed.emplace(timer_, stats.step);
  model_->parameters().zero_grads(&stream_);
  model::Pass pass = model_->enqueue(e, prepared, pass_options(prepared, /*training=*/true));
  combine_ranks(e, pass, /*training=*/true);
  // The host reads the results while the updates run; these look for themselves whether all is
  // finite. So a GPU never waits for the host between two steps.
  model_->send_results(e, pass);
  update(e, pass, stats);
  prepared.block.release(stream_);
  tables_.release(pass.ticket, stream_);
  timed.reset();
  counted();
  if (meanwhile_) meanwhile_();
  wait_for_ranks();
  model_->finish(pass, /*with_logits=*/false);
  prepared.ticket = std::move(pass.ticket);  // its memory serves the next batch
  gather_ranks(prepared, /*training=*/true, pass);
  require_finite(e, pass, stats.step);
  ++steps_done_;

  stats.loss = pass.loss;
  stats.task_losses = std::move(pass.task_losses);
  stats.gradient_norm = std::sqrt(pass.gradient_squares);
  stats.samples = pass.samples;
  stats.tokens = pass.tokens;
  stats.token_offsets = std::move(pass.token_offsets);
  stats.model_flops = pass.model_flops;
  stats.launches = launches() - launches_before;
  metrics_.uncounted = std::move(pass);
  stats.seconds = watch.seconds();
  return stats;
}

const Trainer::Metrics& Trainer::counted() const {
  if (!metrics_.uncounted) return metrics_;
  const base::Stage stage("count");
  const model::Pass& pass = *metrics_.uncounted;
  for (size_t k = 0; k < model_->tasks().size(); ++k) {
    metrics_.lifetime.add(k, of_task(pass.predictions, k, pass.num_labels),
                          of_task(pass.labels, k, pass.num_labels));
  }
  metrics_.window.add(pass);
  metrics_.uncounted.reset();
  return metrics_;
}

void Trainer::update(const Exec& exec, model::Pass& pass, const StepStats& stats) {
  const Tensor& finite = pass.results.sums;  // losses and squares of all gradients
  std::optional<Part> part("update tables");
  tables_.apply(exec, pass.ticket, pass.looked_up, pass.all_row_gradients, stats.rates.sparse,
                stats.step, finite);
  part.reset();
  part.emplace("update dense");
  model::update_dense(exec, config_.optimizer, steps_done_, model_->parameters(),
                      pass.results.gradient_squares, finite);
}

void Trainer::require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const {
  const base::Stage stage("check finite");
  for (size_t k = 0; k < pass.task_losses.size(); ++k) {
    if (!std::isfinite(pass.task_losses[k])) {
      fail_numeric(step, fmt::format("the loss of task `{}`", model_->tasks()[k].name));
    }
  }
  const auto finite = [&](const Tensor& t) {
    const Arena::Mark scratch(*exec.arena);
    const Tensor squares = exec.arena->tensor(DType::kF64, {1});
    ops::sum_of_squares(exec, t.reshape({t.elements()}), squares);
    double value = 0;
    copy(host_view(std::span(&value, 1)), squares, exec.stream);
    exec.stream->synchronize();
    return std::isfinite(value);
  };
  if (!std::isfinite(pass.gradient_squares)) {
    for (const model::Parameter& p : model_->parameters().all()) {
      if (!finite(p.grad)) fail_numeric(step, fmt::format("the gradient of `{}`", p.name));
    }
    fail_numeric(step, "the norm of the dense gradient");
  }
  if (!std::isfinite(pass.row_gradient_squares)) {
    for (size_t t = 0; t < pass.row_gradients.size(); ++t) {
      const Tensor& gradients = pass.row_gradients[t];
      if (gradients && !finite(gradients)) {
        fail_numeric(step,
                     fmt::format("the gradient of table `{}`", config_.sparse.tables[t].name));
      }
    }
    fail_numeric(step, "the norm of the gradients of all tables");
  }
}

model::Pass Trainer::predict(model::PreparedBatch& prepared) {
  const Arena::Mark mark(arena_);
  const Exec e = exec(0);
  model::Pass pass = model_->enqueue(e, prepared, pass_options(prepared, /*training=*/false));
  combine_ranks(e, pass, /*training=*/false);
  model_->send_results(e, pass);
  prepared.block.release(stream_);
  tables_.release(pass.ticket, stream_);
  wait_for_ranks();
  model_->finish(pass, /*with_logits=*/false);
  prepared.ticket = std::move(pass.ticket);
  gather_ranks(prepared, /*training=*/false, pass);
  return pass;
}

std::vector<CheckpointArray> Trainer::arrays() {
  std::vector<CheckpointArray> all = model_arrays(model_->parameters(), tables_);
  add_metrics(all);
  return all;
}

CheckpointContents Trainer::contents(sparse::Extent extent) {
  CheckpointContents all = model_contents(model_->parameters(), tables_, extent, stream_);
  add_metrics(all.arrays);
  return all;
}

void Trainer::add_metrics(std::vector<CheckpointArray>& arrays) {
  for (std::vector<CheckpointArray> part :
       {lifetime().arrays("train_lifetime"), window().arrays("train_window")}) {
    std::ranges::move(part, std::back_inserter(arrays));
  }
}

void Trainer::begin_with(const Checkpoint& checkpoint) {
  load_weights(checkpoint, model_->parameters(), tables_, stream_);
}

void Trainer::restore(const Checkpoint& checkpoint, int64_t steps_done,
                      int64_t window_labels_seen) {
  load_tables(checkpoint, tables_);
  steps_done_ = steps_done;
  metrics_.window.restore_seen(window_labels_seen);
}

}  // namespace segue::train
