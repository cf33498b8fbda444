#include "train/run/metrics_log.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stage.h"
#include "tensor/device_memory.h"
#include "tensor/peak_flops.h"
#include "train/run/evaluation_json.h"

namespace segue::train {
namespace {

using Json = nlohmann::ordered_json;

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void add(Interval& sum, const Interval& part) {
  sum.steps += part.steps;
  sum.samples += part.samples;
  sum.tokens += part.tokens;
  sum.loss += part.loss;
  sum.padded_flops += part.padded_flops;
  sum.jagged_flops += part.jagged_flops;
  sum.seconds += part.seconds;
  sum.wait_seconds += part.wait_seconds;
  sum.lengths.resize(std::max(sum.lengths.size(), part.lengths.size()));
  for (size_t i = 0; i < part.lengths.size(); ++i) sum.lengths[i] += part.lengths[i];
}

std::vector<int64_t> histogram(std::span<const int64_t> offsets, int64_t width) {
  std::vector<int64_t> bins(kLengthBins);
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t tokens = offsets[b + 1] - offsets[b];
    ++bins[static_cast<size_t>(std::min(tokens / width, kLengthBins - 1))];
  }
  return bins;
}

/// Of this rank's process.
void add_memory(const Trainer& trainer, Json& line) {
  line["arena_peak_bytes"] = trainer.arena().high_water();
  line["arena_bytes"] = trainer.arena().capacity();
  if (trainer.device().is_cuda()) {
    line["gpu_memory_bytes"] = device_bytes_in_use(trainer.device());
    // The rest are other processes, CUDA's contexts and loaded kernels.
    Json& mine = line["gpu_memory_by_purpose"];
    for (int p = 0; p < kNumPurposes; ++p) {
      const auto purpose = static_cast<Purpose>(p);
      mine[to_string(purpose)] = device_bytes_held(purpose);
    }
  }
  line["memory_peak_bytes"] = peak_resident_bytes();
  line["table_bytes"] = trainer.tables().bytes();
}

/// Of tables whose size changes: what this rank has of them.
void add_tables(const Trainer& trainer, Json& line) {
  const sparse::Tables& tables = trainer.tables();
  for (const sparse::TableConfig& config : tables.config().tables) {
    const std::optional<sparse::TableStats> s = tables.table(tables.id(config.name)).stats();
    if (!s) continue;
    Json& to = line["tables"][config.name];
    if (s->cache) {
      const sparse::CacheStats& c = *s->cache;
      to.update({{"cache_rows", c.rows},
                 {"cache_capacity", c.capacity},
                 {"cache_hits", c.hits},
                 {"cache_misses", c.misses},
                 {"cache_evicted", c.evicted},
                 {"cache_bytes_in", c.bytes_in},
                 {"cache_bytes_out", c.bytes_out},
                 {"cache_stage_s", c.stage_seconds},
                 {"cache_stall_s", c.stall_seconds},
                 {"stored_rows", c.stored}});
    }
    if (!s->dynamic) continue;
    const auto capacity = static_cast<double>(std::max<int64_t>(1, s->capacity));
    to.update({{"rows", s->rows},
               {"load_factor", static_cast<double>(s->rows) / capacity},
               {"candidates", s->candidates},
               {"inserted", s->inserted},
               {"evicted", s->evicted},
               {"expired", s->expired},
               {"refused", s->refused},
               {"growths", s->growths}});
  }
}

}  // namespace

MetricsLog::MetricsLog(const RunConfig& config, const model::Model& model, Device device,
                       RunFolder& folder, const RunState& state, int64_t total_samples,
                       const CardSensor* card)
    : config_(config),
      folder_(folder),
      tensorboard_(folder.path(), state.step, config.checkpoint.when_full()),
      energy_(card),
      progress_("train", total_samples, "samples", state.samples),
      tasks_(model.tasks()),
      padded_flops_(model.padded_flops()),
      length_bin_(model.most_tokens() / kLengthBins + 1),  // a full sample falls into the last
      peak_flops_(config.train.peak_tflops * 1e12) {
  if (peak_flops_ == 0 && device.is_cuda()) {
    peak_flops_ = stated_peak_flops(cuda_facts(device.index).name);
  }
  start_energy();
}

void MetricsLog::start_energy() {
  energy_.start();
  metered_samples_ = 0;
}

/// A rank knows its own card only.
void MetricsLog::add_energy(const Trainer& trainer, Json& line) {
  const std::optional<double> joules = energy_.joules();
  if (joules && metered_samples_ > 0 && trainer.ranks().alone()) {
    line["joules_per_sample"] = *joules / static_cast<double>(metered_samples_);
  }
  start_energy();
}

void MetricsLog::drain() {
  folder_.drain_metrics();
  tensorboard_.drain();
}

void MetricsLog::count(const StepStats& stats, const data::BatchInfo& delivery,
                       const balance::BalanceStats& balance, RunState& state) {
  balance_ = balance;
  Interval step;
  step.steps = 1;
  step.samples = stats.samples;
  step.tokens = stats.tokens;
  step.loss = stats.loss;
  step.padded_flops = padded_flops_ * static_cast<double>(stats.samples);
  step.jagged_flops = stats.model_flops;
  step.seconds = stats.seconds + delivery.wait_seconds;
  step.wait_seconds = delivery.wait_seconds;
  step.lengths = histogram(stats.token_offsets, length_bin_);
  add(state.interval, step);
  add(all_, step);
  metered_samples_ += stats.samples;

  loss_z_ = state.loss_score.add(stats.loss);
  gradient_z_ = state.gradient_score.add(stats.gradient_norm);
  const double limit = config_.train.warn_z_score;
  if (limit > 0 && (std::abs(loss_z_) > limit || gradient_z_ > limit)) {
    base::log_warning(fmt::format(
        "step {}: loss {:.4g} is {:+.1f}, gradient norm {:.4g} {:+.1f} deviations off its mean of "
        "late",
        stats.step, stats.loss, loss_z_, stats.gradient_norm, gradient_z_));
  }
  progress_.update(state.samples, fmt::format("step {}  window {}  loss {:.4f}  AUC {:.4f}",
                                              stats.step, delivery.position.window,
                                              has_line_ ? last_loss_ : stats.loss, last_auc_));
}

void MetricsLog::add_rates(const Interval& i, int ranks, Json& line) const {
  line["samples_per_s"] = per_second(static_cast<double>(i.samples), i.seconds);
  line["tokens_per_s"] = per_second(static_cast<double>(i.tokens), i.seconds);
  line["gflops_padded"] = per_second(i.padded_flops, i.seconds) / 1e9;
  line["gflops_jagged"] = per_second(i.jagged_flops, i.seconds) / 1e9;
  if (peak_flops_ > 0) {
    const double peak = peak_flops_ * ranks;
    line["mfu_padded"] = per_second(i.padded_flops, i.seconds) / peak;
    line["mfu_jagged"] = per_second(i.jagged_flops, i.seconds) / peak;
  }
}

void MetricsLog::scalar(const char* tag, double value, const RunState& state) {
  tensorboard_.scalar(tag, state.step, value);
}

/// Of the newest step; bytes since the start of this process.
void MetricsLog::add_ranks(const Trainer& trainer, Json& line) const {
  const Ranks& ranks = trainer.ranks();
  line["ranks"] = ranks.size();
  if (balance_.samples > 0) {
    line["imbalance_before"] = balance_.before.over_mean;
    line["imbalance_after"] = balance_.after.over_mean;
    line["samples_moved"] = balance_.samples_moved;
  }
  Json& sent = line["bytes_sent"];
  // The groups of this thread; the others are in use while a batch is prepared.
  for (const comm::Communicator* group :
       {ranks.rows.get(), ranks.dense.get(), ranks.results.get()}) {
    sent[group->name()] = group->traffic().bytes_sent;
  }
}

void MetricsLog::train_line(const StepStats& stats, const Trainer& trainer, RunState& state) {
  const Interval& interval = state.interval;
  const double mean_loss =
      interval.loss / static_cast<double>(std::max<int64_t>(1, interval.steps));
  std::vector<TaskQuality> qualities;
  Json tasks;
  for (size_t k = 0; k < tasks_.size(); ++k) {
    TaskQuality q = trainer.window().quality(k);
    q.loss = stats.task_losses[k];
    Json& task = tasks[q.name];
    task["loss"] = q.loss;
    if (q.binary) {
      task["auc"] = trainer.lifetime().value(k);
      task["auc_window"] = q.auc;
      task["normalized_entropy"] = q.normalized_entropy;
      task["accuracy"] = q.accuracy;
      task["calibration"] = q.calibration;
    }
    qualities.push_back(std::move(q));
  }
  last_auc_ = mean_auc(qualities);

  Json line = {{"event", "train"},
               {"step", state.step},
               {"window", state.window},
               {"samples", state.samples},
               {"loss", stats.loss},
               {"loss_window", mean_loss},
               {"tasks", std::move(tasks)},
               {"auc", trainer.lifetime().mean()},
               {"auc_window", last_auc_},
               {"normalized_entropy", mean_normalized_entropy(qualities)},
               {"lr", stats.rates.dense},
               {"sparse_lr", stats.rates.sparse},
               {"grad_norm", stats.gradient_norm},
               {"loss_z", loss_z_},
               {"grad_norm_z", gradient_z_},
               {"skipped_steps", state.skipped},
               {"samples_window", interval.samples},
               {"tokens_window", interval.tokens},
               {"length_bin", length_bin_},
               {"lengths", interval.lengths}};
  add_rates(interval, trainer.ranks().size(), line);
  add_energy(trainer, line);
  Json& stages = line["stages"] = Json::object();
  for (const base::StageSeconds& s : base::take_stage_seconds()) stages[s.name] = s.seconds;
  line["loader_wait_s"] = interval.wait_seconds;
  line["launches"] = stats.launches;
  if (!trainer.ranks().alone()) add_ranks(trainer, line);
  add_tables(trainer, line);
  add_memory(trainer, line);
  line["wall_s"] = state.wall_seconds;
  folder_.append_metrics(line);

  scalar("train/loss", mean_loss, state);
  scalar("train/auc_window", last_auc_, state);
  scalar("train/auc_lifetime", trainer.lifetime().mean(), state);
  scalar("train/grad_norm", stats.gradient_norm, state);
  scalar("train/lr", stats.rates.dense, state);
  scalar("speed/samples_per_s", per_second(static_cast<double>(interval.samples), interval.seconds),
         state);
  scalar("speed/tokens_per_s", per_second(static_cast<double>(interval.tokens), interval.seconds),
         state);
  if (const auto tables = line.find("tables"); tables != line.end()) {
    for (const auto& [name, counts] : tables->items()) {
      for (const auto& [count, value] : counts.items()) {
        scalar(fmt::format("tables/{}/{}", name, count).c_str(), value, state);
      }
    }
  }
  tensorboard_.flush();

  if (!has_line_) first_loss_ = mean_loss;
  last_loss_ = mean_loss;
  has_line_ = true;
  state.interval = {};
}

void MetricsLog::eval_line(const Evaluation& e, double lifetime_auc, std::optional<double> oracle,
                           double seconds, const Trainer& trainer, const RunState& state) {
  Json line = {{"event", "eval"},
               {"step", state.step},
               {"window", state.eval_window},
               {"samples", state.samples},
               {"eval_samples", e.samples}};
  add_evaluation(e, line);
  line["auc_lifetime"] = lifetime_auc;
  if (oracle) line["oracle_auc"] = *oracle;
  line["device"] = segue::describe(trainer.device());
  line["model"] = trainer.model().summary();
  line["seconds"] = seconds;
  line["samples_per_s"] = per_second(static_cast<double>(e.samples), seconds);
  line["wall_s"] = state.wall_seconds;
  folder_.append_metrics(line);

  for (const auto& [tag, value] : evaluation_scalars(e)) scalar(tag.c_str(), value, state);
  scalar("eval/auc_lifetime", lifetime_auc, state);
  tensorboard_.flush();
  start_energy();
}

void MetricsLog::layers_line(const TrackedStep& tracked, const RunState& state) {
  const auto tag = [&](const std::string& name, const char* what, double value) {
    tensorboard_.scalar(fmt::format("layers/{}/{}", name, what).c_str(), tracked.step, value);
  };
  Json line = {{"event", "layers"}, {"step", tracked.step}, {"device_s", tracked.seconds}};
  Json& parts = line["parts"] = Json::object();
  for (const TrackedStep::Part& part : tracked.parts) {
    Json& to = parts[part.name] = {{"s", part.seconds}};
    tag(part.name, "ms", 1e3 * part.seconds);
    if (part.flop > 0) {
      to["tflops"] = part.tflops();
      tag(part.name, "tflops", part.tflops());
    }
    if (tracked.ranks.size() > 1) to["most_s"] = part.most;
  }
  Json& host = line["host"] = Json::object();
  for (const TrackedStep::HostStage& stage : tracked.host) {
    host[stage.thread][stage.name] = stage.seconds;
  }
  if (tracked.ranks.size() > 1) {
    Json& ranks = line["ranks"];
    for (const TrackedStep::Rank& rank : tracked.ranks) {
      ranks["device_s"].push_back(rank.seconds);
      ranks["wait_s"].push_back(rank.wait);
    }
    line["imbalance"] = tracked.imbalance();
    line["slowest_rank"] = tracked.slowest();
    tag("ranks", "imbalance", tracked.imbalance());
  }
  line["wall_s"] = state.wall_seconds;
  folder_.append_metrics(line);
  base::log_info(to_text(tracked));
}

void MetricsLog::end_line(const RunState& state, const char* status) {
  folder_.append_metrics({{"event", "end"},
                          {"step", state.step},
                          {"samples", state.samples},
                          {"status", status},
                          {"wall_s", state.wall_seconds}});
}

void MetricsLog::finish() {
  if (!has_line_) return;  // no step of this process has a loss
  progress_.finish(fmt::format("loss {:.4f}  AUC {:.4f}", last_loss_, last_auc_));
}

void MetricsLog::summarize(TrainSummary& summary, const RunState& state) const {
  const Interval& rest = state.interval;
  summary.first_loss = first_loss_;
  summary.last_loss = rest.steps > 0 ? rest.loss / static_cast<double>(rest.steps) : last_loss_;
  summary.samples_per_s = per_second(static_cast<double>(all_.samples), all_.seconds);
  summary.tokens_per_s = per_second(static_cast<double>(all_.tokens), all_.seconds);
  summary.model_flops_per_s = per_second(all_.jagged_flops, all_.seconds);
}

}  // namespace segue::train
