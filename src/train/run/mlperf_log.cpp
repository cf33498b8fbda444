#include "train/run/mlperf_log.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "ops/optimizer.h"
#include "train/plan/shard_planning.h"

namespace segue::train {
namespace {

const char* precision_word(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "fp32";
    case Precision::kF64:
      return "fp64";
    case Precision::kBf16:
      return "bfloat16";
  }
  return "fp32";
}

const char* wire_word(const sparse::TablesConfig& tables) {
  const auto narrowest = std::max(tables.forward_wire, tables.backward_wire);
  switch (narrowest) {
    case sparse::Wire::kF32:
      return "fp32";
    case sparse::Wire::kBf16:
      return "bfloat16";
    case sparse::Wire::kF16:
      return "fp16";
  }
  return "fp32";
}

/// Those of all tables, each once.
std::string optimizer_words(const sparse::TablesConfig& tables) {
  std::vector<std::string_view> words;
  for (const sparse::TableConfig& table : tables.tables) {
    const std::string_view word = ops::published_name(tables.optimizer_of(table));
    if (std::ranges::find(words, word) == words.end()) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, "+"));
}

/// A process that was killed while it set up has trained nothing: its log begins anew.
bool has_begun(const std::string& path) {
  return base::exists(path) && base::read_file(path).find("\"run_start\"") != std::string::npos;
}

}  // namespace

report::MllogHyperparameters mllog_hyperparameters(const RunConfig& c, int64_t train_samples,
                                                   int64_t eval_samples) {
  report::MllogHyperparameters h;
  h.global_batch_size = c.data.batch_size;
  h.seed = c.train.seed;
  h.train_samples = train_samples;
  h.eval_samples = eval_samples;
  h.max_sequence_length = make_model(c)->most_tokens();
  h.opt_name = ops::published_name(c.optimizer.kind);
  h.opt_base_learning_rate = c.optimizer.lr;
  h.opt_adam_beta_1 = c.optimizer.beta1;
  h.opt_adam_beta_2 = c.optimizer.beta2;
  h.opt_adam_epsilon = c.optimizer.eps;
  h.opt_weight_decay = c.optimizer.weight_decay;
  h.opt_gradient_clip_norm = c.optimizer.clip_norm;
  h.opt_learning_rate_warmup_steps = c.optimizer.warmup_steps;
  h.opt_learning_rate_warmup_start_lr = c.optimizer.warmup_start_lr;
  h.opt_sparse_name = optimizer_words(c.sparse);
  h.opt_sparse_base_learning_rate = c.optimizer.sparse_lr;
  h.eval_every_data_pct = c.eval.every_share;
  if (c.eval.skip_share > 0) h.skip_eval_epoch_pct = c.eval.skip_share;
  h.lowest_numerical_precision_in_linear = precision_word(c.train.precision);
  h.lowest_numerical_precision_in_attn = precision_word(c.train.precision);
  h.lowest_numerical_precision_in_comm = wire_word(c.sparse);
  h.micro_batch_size = c.data.batch_size;
  h.config_filename = "config.toml";
  return h;
}

MlperfLog::MlperfLog(const RunConfig& config, const RunFolder& folder, bool resuming,
                     const std::string& state)
    : config_(config) {
  if (!config.mlperf.log) return;
  using Mode = report::MllogWriter::Mode;
  const std::string path = folder.mlperf_path();
  const bool append = resuming && has_begun(path);
  log_ = std::make_unique<report::MllogRun>(
      path, append ? Mode::kAppend : Mode::kTruncate,
      append && !state.empty() ? report::mllog_state_from_json(state) : report::MllogState{},
      config.checkpoint.when_full());
  log_->init_start();
}

void MlperfLog::open(int64_t train_samples, int64_t eval_samples, int64_t samples, int ranks) {
  if (!log_) return;
  const MlperfConfig& m = config_.mlperf;
  report::MllogHyperparameters h = mllog_hyperparameters(config_, train_samples, eval_samples);
  h.micro_batch_size = samples_per_rank(config_, ranks);
  log_->open({m.benchmark, m.division, m.org, m.platform, m.status}, h);
  log_->block_start(samples);
}

void MlperfLog::train_loss(int64_t samples, double loss, double learning_rate) {
  if (log_) log_->train_loss(samples, loss, learning_rate);
}

void MlperfLog::evaluation_begins(int64_t samples) {
  if (!log_) return;
  log_->block_stop(samples);
  log_->eval_start(samples);
}

void MlperfLog::evaluation_done(int64_t samples, double auc, bool goes_on) {
  if (!log_) return;
  log_->eval_done(samples, auc);
  if (goes_on) log_->block_start(samples);
}

void MlperfLog::stop(int64_t samples, bool target_reached) {
  if (!log_) return;
  log_->stop(target_reached ? report::MllogStatus::kSuccess : report::MllogStatus::kAborted,
             samples);
}

std::string MlperfLog::state() {
  if (!log_) return "";
  log_->sync();
  return to_json(log_->state());
}

}  // namespace segue::train
