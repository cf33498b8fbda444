#include "train/run_config.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/file.h"
#include "train/random_schema.h"

namespace segue::train {
namespace {

using base::fail_config;

/// `feature` names the config item that asks for the table.
void require_table(const RunConfig& c, const std::string& feature, const std::string& table) {
  std::vector<std::string> names;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    if (t.name == table) return;
    names.push_back(t.name);
  }
  const std::string nearest = base::nearest_name(table, names);
  fail_config(fmt::format("{} looks up table `{}`, which sparse.tables does not have; {}", feature,
                          table,
                          nearest.empty() ? fmt::format("there is: {}", fmt::join(names, ", "))
                                          : fmt::format("did you mean `{}`?", nearest)));
}

void check_tables(const RunConfig& c) {
  require_table(c, "model.item", c.model.item.table);
  for (const model::SequenceFeature& f : c.model.additional) {
    require_table(c, fmt::format("model.additional `{}`", f.history), f.table);
  }
  for (const model::ContextualFeature& f : c.model.contextual) {
    require_table(c, fmt::format("model.contextual `{}`", f.name), f.table);
  }
  embedding_dim(c.model, c.sparse);  // one width
}

/// Random samples have no windows. A history that does not fit would stop the run at
/// some later step; the config can tell now.
void check_random(const RunConfig& c) {
  if (c.eval.every_windows > 0 || c.eval.every_share > 0) {
    fail_config("random samples have neither windows nor an end: use eval.every_steps");
  }
  const int64_t events = longest_history(c.data.random.lengths);
  if (events < 0) {
    fail_config(
        fmt::format("data.random.lengths has no upper bound, but a sample may have {} tokens "
                    "(model.max_seq_len); set data.random.lengths.high",
                    c.model.max_seq_len));
  }
  const bool candidates = c.model.labels == model::LabelKind::kCandidates;
  const int64_t around = c.model.contextual_tokens() + (candidates ? kRandomCandidates : 0);
  const int64_t tokens = around + events * c.model.tokens_per_event();
  if (tokens <= c.model.max_seq_len) return;
  fail_config(
      fmt::format("the longest sample of the data has {} tokens ({} events of {} token(s), {} "
                  "contextual and candidate tokens), more than model.max_seq_len = {}; lower "
                  "data.random.lengths.high, or raise model.max_seq_len to {}",
                  tokens, events, c.model.tokens_per_event(), around, c.model.max_seq_len, tokens));
}

void check_task_bits(const RunConfig& c) {
  int64_t known = 0;
  for (const int64_t weight : c.model.action.weights) known |= weight;
  for (const model::TaskConfig& task : c.model.tasks) {
    if (task.kind != ops::TaskKind::kBinary) continue;
    // With labels at every item the label is the action, and only its bits can ever be set.
    if (c.model.labels == model::LabelKind::kEveryItem && (task.bit & known) == 0) {
      fail_config(
          fmt::format("task `{}` asks for bit {}, which no action has (model.action.weights = "
                      "[{}]): its label would always be 0",
                      task.name, task.bit, fmt::join(c.model.action.weights, ", ")));
    }
    constexpr int64_t kMostBits = 32;
    if (std::bit_width(static_cast<uint64_t>(task.bit)) > kMostBits) {
      fail_config(fmt::format("task `{}`: bit {} does not fit the {} bits of a label", task.name,
                              task.bit, kMostBits));
    }
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
  v.section("mlperf", c.mlperf, "the MLPerf log");
  v.section("trace", c.trace, "traces of named stages");
  v.section("comm", c.comm, "how ranks find and reach each other");
  v.section("parallel", c.parallel, "how ranks share the work");
  v.section("balance", c.balance, "how samples are dealt to ranks");
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
  check_tables(*this);
  check_task_bits(*this);
  random_schema(model, sparse);  // columns are named once
  if (data.is_random()) {
    check_random(*this);
  } else {
    history_budget(*this);
  }
}

int64_t history_budget(const RunConfig& config) {
  const model::ModelConfig& m = config.model;
  if (m.labels != model::LabelKind::kCandidates) {
    fail_config(
        "samples of a store have one labelled candidate: set model.labels = \"candidates\"");
  }
  const int64_t events =
      (m.max_seq_len - m.contextual_tokens() - kStoreCandidates) / m.tokens_per_event();
  if (events < 1) {
    fail_config(fmt::format(
        "model.max_seq_len = {} leaves no token for a history beside {} contextual and {} "
        "candidate tokens",
        m.max_seq_len, m.contextual_tokens(), kStoreCandidates));
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
  RunConfig config;
  if (const auto name = base::peek_string(sources, "preset"); name && !name->empty()) {
    model::Preset preset = model::preset(*name);
    config.model = std::move(preset.model);
    config.sparse = std::move(preset.tables);
    config.optimizer = preset.optimizer;
  }
  base::load_config(config, sources);
  config.validate();
  return config;
}

Device choose_device(const std::string& name) {
  if (name == "auto") return cuda_device_count() > 0 ? Device::cuda() : Device::cpu();
  const Device device = parse_device(name);
  require_available(device);
  return device;
}

}  // namespace segue::train
