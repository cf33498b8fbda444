#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/stage.h"
#include "base/time.h"
#include "model/flops.h"
#include "ops/optimizer.h"
#include "tensor/launches.h"
#include "train/checkpoint_model.h"
#include "train/memory_plan.h"
#include "train/shard_planning.h"

namespace segue::train {
namespace {

[[noreturn]] void fail_numeric(int64_t step, const std::string& what) {
  fail(ErrorCode::kNumeric,
       fmt::format("step {}: {} is not finite. Parameters and tables are as before the step. Lower "
                   "optimizer.lr or optimizer.sparse_lr, add optimizer.warmup_steps, or set "
                   "optimizer.clip_norm; train.precision = \"f64\" tells rounding from divergence",
                   step, what));
}

/// Which tables lie where, and what that takes of this rank.
sparse::PlannedTables planned_tables(const RunConfig& config, const Ranks& ranks) {
  if (ranks.alone()) {
    return {.plan = sparse::ShardPlan::single(static_cast<int64_t>(config.sparse.tables.size())),
            .ranks = {{}}};
  }
  // The first rank's count: all ranks must make the same plan.
  const int per_machine = std::stoi(ranks.from_first(std::to_string(ranks.local_size())));
  return plan_shards(config, cluster_of(config, ranks.size(), per_machine));
}

/// With several ranks: room for this rank's share of a batch, and for rows and gradients on their
/// way, as rank_memory says. Address space on the CPU is free, so there the worst case is allowed
/// for.
int64_t arena_of_rank(const RunConfig& config, const Ranks& ranks, const sparse::RankLoad& load,
                      Device device) {
  const RunConfig share = share_of(config, ranks.size());
  const int64_t alone = arena_bytes(share, device);
  if (ranks.alone() || config.train.arena_gib > 0) return alone;
  const int64_t heads =
      config.parallel.tensor_parallel > 1 ? head_exchange_bytes(share, device) : 0;
  if (device.is_cpu()) {
    return alone + heads + 4 * ranks.size() * step_memory(share, device).rows;
  }
  return alone + heads + static_cast<int64_t>(load.exchange);
}

/// Labels, and the longest sample (as BatchLayout counts it), are those of all ranks.
void share_lengths(comm::Communicator& group, model::PreparedBatch& prepared) {
  model::BatchLayout& layout = prepared.layout;
  std::array<int64_t, 3> mine{layout.labels, 0, 0};  // labels, most tokens before targets, targets
  for (int64_t b = 0; b < layout.samples(); ++b) {
    const auto i = static_cast<size_t>(b);
    const int64_t tokens = layout.token_offsets[i + 1] - layout.token_offsets[i];
    mine[1] = std::max(mine[1], tokens - layout.targets(b));
    mine[2] = std::max(mine[2], layout.targets(b));
  }
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int64_t> all(ranks * mine.size());
  const std::vector<int64_t> equal(ranks, static_cast<int64_t>(mine.size()));
  group.all_gather(host_view(std::span<int64_t>(mine)), host_view(std::span<int64_t>(all)), equal)
      .throw_if_failed();
  std::array<int64_t, 3> global{};
  for (size_t r = 0; r < ranks; ++r) {
    global[0] += all[3 * r];
    global[1] = std::max(global[1], all[3 * r + 1]);
    global[2] = std::max(global[2], all[3 * r + 2]);
  }
  prepared.global_labels = global[0];
  layout.longest = global[1] + global[2];
}

}  // namespace

DType parameter_dtype(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

Trainer::Trainer(const RunConfig& config, Device device)
    : Trainer(config, device, nullptr, std::make_unique<Ranks>()) {}

Trainer::Trainer(const RunConfig& config, Device device, Ranks& ranks)
    : Trainer(config, device, &ranks, nullptr) {}

Trainer::Trainer(const RunConfig& config, Device device, Ranks* ranks, std::unique_ptr<Ranks> alone)
    : config_(config),
      alone_(std::move(alone)),
      ranks_(ranks != nullptr ? *ranks : *alone_),
      planned_(planned_tables(config, ranks_)),
      arena_(device, arena_of_rank(config, ranks_, load(), device)),
      stream_(device),
      copy_stream_(device),
      tables_(config.sparse, planned_.plan, {ranks_.ids.get(), ranks_.rows.get()}, device,
              parameter_dtype(config.train.precision), static_cast<uint64_t>(config.train.seed)),
      ranker_(config.model, tables_, device, parameter_dtype(config.train.precision),
              static_cast<uint64_t>(config.train.seed)),
      batch_bytes_(model::batch_memory(config.model, step_bounds(share_of(config, ranks_.size())))),
      request_bytes_(static_cast<int64_t>(load().requests) / kBatchesInFlight),
      lifetime_(config.model.tasks),
      window_(config.model.tasks, config.train.metric_window) {
  if (ranks_.alone()) return;
  ranker_.set_head_group(ranks_.heads.get());
  reducer_ = std::make_unique<GradientReducer>(*ranks_.dense, ranker_.gradient_buckets(), device);
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

void Trainer::prepare(const Batch& batch, model::PreparedBatch& prepared) {
  prepare(batch, sparse::Mode::kTraining, prepared);
}

void Trainer::prepare(const Batch& batch, sparse::Mode mode, model::PreparedBatch& prepared) {
  ranker_.prepare(batch, config_.train.micro_batch_tokens, mode, prepared);
  // So that memory stays what was announced.
  prepared.block.reserve_copy(device(), batch_bytes_);
  prepared.ticket.block.reserve_copy(device(), request_bytes_);
  prepared.block.send(copy_stream_);
  tables_.stage(prepared.ticket, copy_stream_);
  prepared.global_labels = prepared.layout.labels;
  if (ranks_.alone()) return;
  const bool candidates = config_.model.labels == model::LabelKind::kCandidates;
  const std::span<const int64_t> index = batch.sample_index.span();
  prepared.sample_index.assign(index.begin(), index.end());
  prepared.sample_labels.resize(index.size());
  for (int64_t b = 0; b < batch.num_samples(); ++b) {
    prepared.sample_labels[static_cast<size_t>(b)] =
        candidates ? prepared.layout.targets(b) : prepared.layout.history(b);
  }
  share_lengths(*ranks_.ids, prepared);
}

model::PassOptions Trainer::pass_options(const model::PreparedBatch& prepared, bool training) {
  model::PassOptions options;
  options.training = training;
  options.micro_batch_tokens = config_.train.micro_batch_tokens;
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
    ops::sum_of_squares(exec, ranker_.parameters().grads(), pass.results.gradient_squares);
  }
}

/// Exchanges that are queued on a GPU end, or fail, within the timeout.
void Trainer::wait_for_ranks() const {
  if (!ranks_.alone()) ranks_.results->synchronize(stream_).throw_if_failed();
}

void Trainer::gather_ranks(const model::PreparedBatch& prepared, bool training, model::Pass& pass) {
  if (ranks_.alone()) return;
  const base::Stage stage("gather results");
  gather_pass(*ranks_.results, {prepared.sample_index, prepared.sample_labels},
              static_cast<int64_t>(config_.model.tasks.size()), pass);
  pass.model_flops = model::formula_flops(config_.model, pass.token_offsets, training);
}

StepStats Trainer::step(const Batch& batch) {
  {
    const base::Stage stage("prepare batch");
    prepare(batch, prepared_);
  }
  return step(prepared_);
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
  ranker_.parameters().zero_grads(&stream_);
  model::Pass pass = ranker_.enqueue(e, prepared, pass_options(prepared, /*training=*/true));
  combine_ranks(e, pass, /*training=*/true);
  // The host reads the results while the updates run; these look for themselves whether all is
  // finite. So a GPU never waits for the host between two steps.
  ranker_.send_results(e, pass);
  update(e, pass, stats);
  prepared.block.release(stream_);
  tables_.release(pass.ticket, stream_);
  wait_for_ranks();
  ranker_.finish(pass);
  prepared.ticket = std::move(pass.ticket);  // its memory serves the next batch
  require_finite(e, pass, stats.step);
  ++steps_done_;
  gather_ranks(prepared, /*training=*/true, pass);

  const base::Stage stage("count");
  for (size_t k = 0; k < config_.model.tasks.size(); ++k) {
    lifetime_.add(k, of_task(pass.predictions, k, pass.num_labels),
                  of_task(pass.labels, k, pass.num_labels));
  }
  window_.add(pass);
  stats.loss = pass.loss;
  stats.task_losses = std::move(pass.task_losses);
  stats.gradient_norm = std::sqrt(pass.gradient_squares);
  stats.samples = pass.samples;
  stats.tokens = pass.tokens;
  stats.token_offsets = std::move(pass.token_offsets);
  stats.model_flops = pass.model_flops;
  stats.launches = launches() - launches_before;
  stats.seconds = watch.seconds();
  return stats;
}

void Trainer::update(const Exec& exec, model::Pass& pass, const StepStats& stats) {
  const Tensor& finite = pass.results.sums;  // losses and squares of all gradients
  std::optional<base::Stage> stage("update tables");
  tables_.apply(exec, pass.ticket, pass.looked_up, pass.all_row_gradients, stats.rates.sparse,
                stats.step, finite);
  stage.reset();
  stage.emplace("update dense");
  model::update_dense(exec, config_.optimizer, steps_done_, ranker_.parameters(),
                      pass.results.gradient_squares, finite);
}

void Trainer::require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const {
  const base::Stage stage("check finite");
  for (size_t k = 0; k < pass.task_losses.size(); ++k) {
    if (!std::isfinite(pass.task_losses[k])) {
      fail_numeric(step, fmt::format("the loss of task `{}`", config_.model.tasks[k].name));
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
    for (const model::Parameter& p : ranker_.parameters().all()) {
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

model::Pass Trainer::predict(const Batch& batch) {
  const Arena::Mark mark(arena_);
  const Exec e = exec(0);
  prepare(batch, sparse::Mode::kEvaluation, prepared_);
  model::Pass pass = ranker_.enqueue(e, prepared_, pass_options(prepared_, /*training=*/false));
  combine_ranks(e, pass, /*training=*/false);
  ranker_.send_results(e, pass);
  prepared_.block.release(stream_);
  tables_.release(pass.ticket, stream_);
  wait_for_ranks();
  ranker_.finish(pass);
  prepared_.ticket = std::move(pass.ticket);
  gather_ranks(prepared_, /*training=*/false, pass);
  return pass;
}

std::vector<CheckpointArray> Trainer::arrays() {
  std::vector<CheckpointArray> all = model_arrays(ranker_.parameters(), tables_);
  for (std::vector<CheckpointArray> part :
       {lifetime_.arrays("train_lifetime"), window_.arrays("train_window")}) {
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

void Trainer::restore(int64_t steps_done, int64_t window_labels_seen) {
  tables_.restore();
  steps_done_ = steps_done;
  window_.restore_seen(window_labels_seen);
}

}  // namespace segue::train
