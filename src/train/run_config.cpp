#include "train/run_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/file.h"
#include "train/presets.h"
#include "train/step/random_schema.h"

namespace segue::train {
namespace {

using base::fail_config;

/// Random samples have no windows. A history that does not fit would stop the run at
/// some later step; the config can tell now.
void check_random(const RunConfig& c, const model::Model& model) {
  if (c.eval.every_windows > 0 || c.eval.every_share > 0) {
    fail_config("random samples have neither windows nor an end: use eval.every_steps");
  }
  if (c.mlperf.log) {
    fail_config(
        "mlperf.log = true counts the samples of a run, and random ones have no end: name a "
        "data.store (`segue synth` makes one), or leave the log off");
  }
  const int64_t events = longest_history(c.data.random.lengths);
  if (events < 0) {
    fail_config(
        fmt::format("data.random.lengths has no upper bound, but a sample may have {} tokens "
                    "(model.max_seq_len); set data.random.lengths.high",
                    model.most_tokens()));
  }
  const int64_t candidates = c.data.random.candidates;
  const int64_t most = model.most_events(candidates);
  if (events <= most) return;
  fail_config(fmt::format(
      "the longest sample of the data has {} tokens ({} events and what is around them), more than "
      "model.max_seq_len = {}; lower data.random.lengths.high, or raise model.max_seq_len to {}",
      model.sample_tokens(events, candidates), events, model.most_tokens(),
      model.sample_tokens(events, candidates)));
}

/// Samples that are made up have the columns that the model reads; stores may have more.
void check_score_columns(const RunConfig& c, const model::Model& model) {
  std::vector<std::string> names;
  for (const model::ColumnDemand& d : model.demands()) names.push_back(d.column);
  for (const sparse::TableConfig& table : c.sparse.tables) {
    for (const std::string& name : table.score) {
      if (std::ranges::find(names, name) != names.end()) continue;
      fail_config(
          fmt::format("table `{}`: `score` names column `{}`, which samples without a "
                      "store do not have; they have: {}",
                      table.name, name, fmt::join(names, ", ")));
    }
  }
}

/// Nothing that is predicted may depend on what came later.
void check_labelled_events(const RunConfig& c) {
  if (c.model.attention.contextual_mask && !c.model.contextual.empty()) {
    fail_config(
        "model.labels = \"every_item\" from a store predicts events that contextual tokens would "
        "have seen, and tell of: set model.attention.contextual_mask = false");
  }
  if (c.model.attention.score_scale == model::ScoreScale::kBatchMax) {
    fail_config(
        "model.labels = \"every_item\" from a store predicts events of samples whose length tells "
        "how many events follow, and scores are divided by the longest: set "
        "model.attention.score_scale = \"max_seq_len\"");
  }
  for (const model::ContextualFeature& f : c.model.contextual) {
    if (f.min_sequence == 0) continue;
    fail_config(fmt::format(
        "model.contextual `{}` has min_sequence = {}: whether it is seen tells how many events "
        "follow those that model.labels = \"every_item\" predicts; set it to 0",
        f.name, f.min_sequence));
  }
  if (!c.data.gather.same_time) {
    fail_config(
        "data.gather.same_time = false leaves events of one second out of each other's history, "
        "but model.labels = \"every_item\" predicts them in one: set it to true, or predict a "
        "candidate "
        "at a time (model.labels = \"candidates\")");
  }
  if (c.data.stream.sort_by_time) {
    fail_config(
        "data.stream.sort_by_time takes a user's events apart, which model.labels = \"every_item\" "
        "predicts together: leave it off");
  }
}

void check_epochs(const RunConfig& c) {
  if (c.train.epochs == 1) return;
  if (c.data.store.empty()) {
    fail_config(fmt::format(
        "train.epochs = {} goes through a data.store so many times, and there is none{}",
        c.train.epochs, c.data.has_interactions() ? "; use data.interactions.passes" : ""));
  }
  if (c.data.stream.eval != data::EvalMode::kFixed) {
    fail_config(
        "train.epochs above 1 trains all windows before the first of them comes again: hold the "
        "last ones out with data.stream.eval = \"fixed\"");
  }
}

}  // namespace

void describe(base::ConfigVisitor& v, RunConfig& c) {
  v.field("preset", c.preset, "a published configuration to start from; empty: none");
  v.section("model", c.model, "the HSTU ranker");
  v.section("sparse", c.sparse, "embedding tables and their optimizer");
  v.section("optimizer", c.optimizer, "of the dense parameters, and both learning rates");
  v.section("data", c.data, "where samples come from");
  v.section("train", c.train, "how the run goes");
  v.section("eval", c.eval, "when and on what to evaluate");
  v.section("checkpoint", c.checkpoint, "when to save, and how much is kept");
  v.section("publish", c.publish, "versions for serving, made of checkpoints");
  v.section("mlperf", c.mlperf, "the MLPerf log");
  v.section("trace", c.trace, "traces of what threads and GPUs do, step by step");
  v.section("comm", c.comm, "how ranks find and reach each other");
  v.section("parallel", c.parallel, "how ranks share the work");
  v.section("balance", c.balance, "how samples are partitioned among ranks");
}

void RunConfig::validate() const {
  model.validate();
  sparse.validate();
  optimizer.validate();
  data.validate();
  train.validate();
  eval.validate();
  checkpoint.validate();
  mlperf.validate();
  trace.validate();
  comm.validate();
  parallel.validate();
  balance.validate();
  if (data.follow && (eval.every_windows != 1 || eval.skip_share > 0 ||
                      eval.first == FirstEval::kMlperf || mlperf.log)) {
    fail_config(
        "data.follow = true evaluates each window before it is trained: set eval.every_windows = "
        "1, "
        "leave eval.skip_share and eval.first alone, and mlperf.log off");
  }
  const auto made = make_model(*this);
  if (parallel.tensor_parallel > 1 && made->heads_to_share() == 0) {
    fail_config(fmt::format(
        "parallel.tensor_parallel = {} shares attention heads, of which this model has none; use 1",
        parallel.tensor_parallel));
  }
  if (data.store.empty()) check_score_columns(*this, *made);
  if (data.is_random()) {
    check_random(*this, *made);
  } else if (!data.store.empty()) {
    history_budget(*this);
  }
  if (has_labelled_events(*this)) check_labelled_events(*this);
  check_epochs(*this);
}

bool has_labelled_events(const RunConfig& config) {
  return config.model.family == model::Family::kHstu && !config.data.store.empty() &&
         config.model.labels == model::LabelKind::kEveryItem;
}

std::unique_ptr<model::Model> make_model(const RunConfig& config) {
  if (!has_labelled_events(config)) return model::make_model(config.model, config.sparse);
  model::ModelConfig model = config.model;
  model.event_label = "event_label";
  return model::make_model(model, config.sparse);
}

int64_t history_budget(const RunConfig& config) {
  const auto model = make_model(config);
  const int64_t events = model->most_events(kStoreCandidates);
  if (events < 1) {
    fail_config(
        fmt::format("model.max_seq_len = {} leaves no token for a history beside {} "
                    "contextual and candidate tokens",
                    model->most_tokens(), model->sample_tokens(0, kStoreCandidates)));
  }
  const int64_t asked = config.data.gather.max_history;
  return asked > 0 ? std::min(asked, events) : events;
}

RunConfig load_run_config(const base::ConfigSources& given) {
  // Two passes look at the file, and a pipe (`segue train <(...)`) can be read once.
  base::ConfigSources sources = given;
  if (sources.text.empty() && base::exists(sources.file)) {
    sources.text = base::read_file(sources.file) + "\n";
  }
  if (base::has_key(sources, "events") && base::has_key(sources, "user")) {
    fail(ErrorCode::kConfig,
         fmt::format("{} is the schema of a log, which `segue prep --schema` takes; this takes the "
                     "config of a run: see configs/, or print one with `segue config`",
                     sources.file));
  }
  RunConfig config;
  if (const auto name = base::peek_string(sources, "preset"); name && !name->empty()) {
    config = preset_config(*name);
  }
  base::load_config(config, sources);
  config.validate();
  return config;
}

RunConfig recorded_config(const std::string& toml) {
  RunConfig config;
  base::ConfigSources recorded;
  recorded.file = "config of the run";
  recorded.text = toml;
  recorded.use_environment = false;
  base::load_config(config, recorded);
  return config;
}

Device choose_device(const std::string& name) {
  if (name == "auto") return cuda_device_count() > 0 ? Device::cuda() : Device::cpu();
  const Device device = parse_device(name);
  require_available(device);
  return device;
}

}  // namespace segue::train
