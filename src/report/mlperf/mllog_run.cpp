#include "report/mlperf/mllog_run.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "report/mlperf/mllog_reader.h"

namespace segue::report {
namespace {

using Json = nlohmann::ordered_json;
using Pairs = std::vector<std::pair<std::string_view, MllogValue>>;

/// All that stands between init_start and init_stop. Rules are judged in the order of the log: the
/// division sets the time limit of init, the batch size that of the rate, the rate the sparse rate.
Pairs opening(const MllogSubmission& s, const MllogHyperparameters& h) {
  Pairs pairs = {
      {"submission_benchmark", s.benchmark},
      {"submission_org", s.org},
      {"submission_division", s.division},
      {"submission_status", s.status},
      {"submission_platform", s.platform},
      {"global_batch_size", h.global_batch_size},
      {"gradient_accumulation_steps", h.gradient_accumulation_steps},
      {"seed", h.seed},
      {"opt_name", h.opt_name},
      {"opt_base_learning_rate", h.opt_base_learning_rate},
      {"opt_adam_beta_1", h.opt_adam_beta_1},
      {"opt_adam_beta_2", h.opt_adam_beta_2},
      {"opt_adam_epsilon", h.opt_adam_epsilon},
      {"opt_weight_decay", h.opt_weight_decay},
      {"opt_gradient_clip_norm", h.opt_gradient_clip_norm},
      {"opt_learning_rate_warmup_steps", h.opt_learning_rate_warmup_steps},
      {"opt_learning_rate_warmup_start_lr", h.opt_learning_rate_warmup_start_lr},
      {"opt_sparse_name", h.opt_sparse_name},
      {"opt_sparse_base_learning_rate", h.opt_sparse_base_learning_rate},
      {"max_sequence_length", h.max_sequence_length},
      {"eval_every_data_pct", h.eval_every_data_pct},
      {"lowest_numerical_precision_in_linear", h.lowest_numerical_precision_in_linear},
      {"lowest_numerical_precision_in_attn", h.lowest_numerical_precision_in_attn},
      {"lowest_numerical_precision_in_comm", h.lowest_numerical_precision_in_comm},
      {"tensor_parallelism", h.tensor_parallelism},
      {"pipeline_parallelism", h.pipeline_parallelism},
      {"context_parallelism", h.context_parallelism},
      {"expert_parallelism", h.expert_parallelism},
      {"micro_batch_size", h.micro_batch_size},
      {"config_filename", h.config_filename},
      {"train_samples", h.train_samples},
      {"eval_samples", h.eval_samples},
  };
  if (h.skip_eval_epoch_pct) pairs.emplace_back("skip_eval_epoch_pct", *h.skip_eval_epoch_pct);
  return pairs;
}

void check_filled(const Pairs& pairs) {
  for (const auto& [key, value] : pairs) {
    const std::string* text = std::get_if<std::string>(&value);
    const int64_t* count = std::get_if<int64_t>(&value);
    const bool may_be_zero = key == "seed" || key == "opt_learning_rate_warmup_steps";
    if (text && text->empty()) {
      fail(ErrorCode::kConfig, fmt::format("MLPerf log: `{}` must not be empty", key));
    }
    if (count && !may_be_zero && *count <= 0) {
      fail(ErrorCode::kConfig,
           fmt::format("MLPerf log: `{}` is {}, must be positive", key, *count));
    }
  }
}

int64_t samples_of(const MllogEvent& event) {
  const MllogValue* entry = event.find("samples_count");
  const std::optional<double> samples = entry ? as_number(*entry) : std::nullopt;
  constexpr double kMost = 1e18;  // and NaN: no number of samples
  return samples && *samples >= 0 && *samples <= kMost ? static_cast<int64_t>(*samples) : 0;
}

/// -2 for what is no whole number of 63 bits.
int64_t whole(const nlohmann::json& value) {
  const bool fits = value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>())
                                               : value.is_number_integer();
  return fits ? value.get<int64_t>() : -2;
}

}  // namespace

struct MllogRun::Seen {
  std::map<std::string, MllogValue, std::less<>> written;
  int64_t furthest_eval = -1;
  bool in_block = false;

  Seen(const std::string& path, MllogWriter::Mode mode) {
    if (mode == MllogWriter::Mode::kTruncate || !base::exists(path)) return;
    for (const MllogEvent& event : read_mllog(path).events) {
      written.emplace(event.key, event.value);
      if (event.key == "block_start") in_block = true;
      if (event.key == "block_stop") in_block = false;
      if (event.key == "eval_accuracy") furthest_eval = std::max(furthest_eval, samples_of(event));
    }
  }
};

std::string to_json(const MllogState& state) {
  return Json{{"run_opened", state.run_opened},
              {"sizes_logged", state.sizes_logged},
              {"run_stopped", state.run_stopped},
              {"in_block", state.in_block},
              {"samples", state.samples},
              {"last_eval_samples", state.last_eval_samples},
              {"last_eval_accuracy", state.last_eval_accuracy}}
      .dump();
}

MllogState mllog_state_from_json(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    MllogState state;
    state.run_opened = json.at("run_opened").get<bool>();
    state.sizes_logged = json.at("sizes_logged").get<bool>();
    state.run_stopped = json.at("run_stopped").get<bool>();
    state.in_block = json.at("in_block").get<bool>();
    state.samples = whole(json.at("samples"));
    state.last_eval_samples = whole(json.at("last_eval_samples"));
    state.last_eval_accuracy = json.at("last_eval_accuracy").get<double>();
    if (state.samples >= 0 && state.last_eval_samples >= -1 && state.last_eval_accuracy >= 0 &&
        state.last_eval_accuracy <= 1) {
      return state;
    }
    fail(ErrorCode::kCorrupt, "the checkpoint's record of the MLPerf log has impossible numbers");
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt,
         fmt::format("the checkpoint's record of the MLPerf log cannot be read: {}", error.what()));
  }
}

MllogRun::MllogRun(const std::string& path, MllogWriter::Mode mode, const MllogState& state,
                   base::WhenFull when_full)
    : MllogRun(path, mode, state, when_full, Seen(path, mode)) {}

MllogRun::MllogRun(const std::string& path, MllogWriter::Mode mode, const MllogState& state,
                   base::WhenFull when_full, Seen seen)
    : writer_(path, mode, when_full), state_(state), written_(std::move(seen.written)) {
  const bool opened = written_.contains("run_start");
  if ((state.run_opened && !opened) || state.last_eval_samples > seen.furthest_eval) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: the MLPerf log lacks events that the checkpoint knows of. Put the run's "
                     "own log back, or resume with an earlier checkpoint or without this log.",
                     path));
  }
  state_.run_opened = opened;
  state_.sizes_logged = written_.contains("train_samples") && written_.contains("eval_samples");
  state_.run_stopped = written_.contains("run_stop");
  state_.in_block = seen.in_block;
}

/// True the first time in the life of the log.
bool MllogRun::once(std::string_view key) {
  return written_.emplace(std::string(key), MllogValue{}).second;
}

void MllogRun::init_start() {
  if (state_.run_stopped) return;
  if (once("cache_clear")) writer_.event("cache_clear", true);
  if (once("init_start")) writer_.start("init_start");
}

void MllogRun::open(const MllogSubmission& submission,
                    const MllogHyperparameters& hyperparameters) {
  const Pairs pairs = opening(submission, hyperparameters);
  check_filled(pairs);
  for (const auto& [key, value] : pairs) {
    const auto found = written_.find(key);
    if (found == written_.end() || same_value(found->second, value)) continue;
    fail(
        ErrorCode::kConfig,
        fmt::format("the MLPerf log of this run was started with {} = {}, but now it is {}. Resume "
                    "with the old settings, or start a new run.",
                    key, mllog_text(found->second), mllog_text(value)));
  }
  train_samples_ = static_cast<double>(hyperparameters.train_samples);
  if (state_.run_stopped) return;
  init_start();
  for (const auto& [key, value] : pairs) {
    if (written_.emplace(std::string(key), value).second) writer_.event(key, value);
  }
  state_.sizes_logged = true;
  if (once("init_stop")) writer_.end("init_stop");
  if (once("run_start")) writer_.start("run_start");
  state_.run_opened = true;
}

/// Whether events of training are to be written; notes how far it is.
bool MllogRun::running(int64_t samples) {
  SEGUE_ASSERT(train_samples_ > 0, "MllogRun::open comes before the events of training");
  if (state_.run_stopped) return false;
  state_.samples = samples;
  return true;
}

MllogMetadata MllogRun::progress(int64_t samples) const {
  return {{"samples_count", samples}, {"epoch_num", static_cast<double>(samples) / train_samples_}};
}

void MllogRun::block_start(int64_t samples) {
  if (!running(samples)) return;
  in_eval_ = false;
  if (state_.in_block) return;
  writer_.start("block_start", {}, progress(samples));
  state_.in_block = true;
}

void MllogRun::block_stop(int64_t samples) {
  if (!running(samples) || !state_.in_block) return;
  writer_.end("block_stop", {}, progress(samples));
  state_.in_block = false;
}

void MllogRun::train_loss(int64_t samples, double loss, double learning_rate) {
  if (!running(samples)) return;
  writer_.event("train_loss", loss, {{"samples_count", samples}, {"lr", learning_rate}});
}

void MllogRun::eval_start(int64_t samples) {
  if (!running(samples) || in_eval_) return;
  writer_.start("eval_start", {}, progress(samples));
  in_eval_ = true;
}

void MllogRun::eval_done(int64_t samples, double accuracy) {
  if (!(accuracy >= 0 && accuracy <= 1)) {
    fail(ErrorCode::kNumeric, fmt::format("the evaluation after {} samples gave {}; the MLPerf log "
                                          "needs a value in 0 .. 1",
                                          samples, accuracy));
  }
  if (!running(samples)) return;
  eval_start(samples);
  writer_.event("eval_accuracy", accuracy, progress(samples));
  state_.last_eval_samples = samples;
  state_.last_eval_accuracy = accuracy;
  writer_.end("eval_stop", {}, progress(samples));
  in_eval_ = false;
}

void MllogRun::stop(MllogStatus status, int64_t samples) {
  if (!running(samples)) return;
  block_stop(samples);
  MllogMetadata metadata = progress(samples);
  const char* word = status == MllogStatus::kSuccess ? "success" : "aborted";
  metadata.insert(metadata.begin(), {"status", std::string(word)});
  writer_.end("run_stop", {}, metadata);
  state_.run_stopped = true;
}

}  // namespace segue::report
