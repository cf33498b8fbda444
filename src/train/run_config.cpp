#include "train/run_config.h"

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "train/random_schema.h"

namespace segue::train {
namespace {

[[noreturn]] void bad(const std::string& message) { fail(ErrorCode::kConfig, message); }

void require_at_least(const char* key, int64_t value, int64_t least) {
  if (value < least) bad(fmt::format("{} must be at least {}, not {}", key, least, value));
}

/// `feature` names the config item that asks for the table.
void require_table(const RunConfig& c, const std::string& feature, const std::string& table) {
  std::vector<std::string> names;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    if (t.name == table) return;
    names.push_back(t.name);
  }
  const std::string nearest = base::nearest_name(table, names);
  bad(fmt::format("{} looks up table `{}`, which sparse.tables does not have; {}", feature, table,
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
}

/// A history that does not fit would stop the run at some later step; the config can tell now.
void check_lengths(const RunConfig& c) {
  const int64_t events = longest_history(c.data.lengths);
  if (events < 0) {
    bad(
        fmt::format("data.lengths has no upper bound, but a sample may have {} tokens "
                    "(model.max_seq_len); set data.lengths.high",
                    c.model.max_seq_len));
  }
  const bool candidates = c.model.labels == model::LabelKind::kCandidates;
  const int64_t around = c.model.contextual_tokens() + (candidates ? kRandomCandidates : 0);
  const int64_t tokens = around + events * c.model.tokens_per_event();
  if (tokens <= c.model.max_seq_len) return;
  bad(
      fmt::format("the longest sample of the data has {} tokens ({} events of {} token(s), {} "
                  "contextual and candidate tokens), more than model.max_seq_len = {}; lower "
                  "data.lengths.high, or raise model.max_seq_len to {}",
                  tokens, events, c.model.tokens_per_event(), around, c.model.max_seq_len, tokens));
}

void check_task_bits(const RunConfig& c) {
  int64_t known = 0;
  for (const int64_t weight : c.model.action.weights) known |= weight;
  for (const model::TaskConfig& task : c.model.tasks) {
    if (task.kind != ops::TaskKind::kBinary) continue;
    // With labels at every item the label is the action, and only its bits can ever be set.
    if (c.model.labels == model::LabelKind::kEveryItem && (task.bit & known) == 0) {
      bad(
          fmt::format("task `{}` asks for bit {}, which no action has (model.action.weights = "
                      "[{}]): its label would always be 0",
                      task.name, task.bit, fmt::join(c.model.action.weights, ", ")));
    }
    constexpr int64_t kMostBits = 32;
    if (std::bit_width(static_cast<uint64_t>(task.bit)) > kMostBits) {
      bad(fmt::format("task `{}`: bit {} does not fit the {} bits of a label", task.name, task.bit,
                      kMostBits));
    }
  }
}

}  // namespace

void describe(base::ConfigVisitor& v, TrainConfig& c) {
  v.field("steps", c.steps, "optimizer steps");
  v.field("seed", c.seed, "of initial values, dropout and random data");
  v.field("threads", c.threads, "CPU threads; 0: OMP_NUM_THREADS, else all cores");
  v.field("device", c.device, "auto, cpu, cuda or cuda:N");
  v.choice("precision", c.precision, {"f32", "f64", "bf16"},
           "of activations; f64 is for checks, bf16 on the CPU rounds where a GPU would");
  v.field("micro_batch_tokens", c.micro_batch_tokens,
          "tokens that are in memory at a time; results do not depend on it beyond rounding");
  v.field("arena_gib", c.arena_gib, "largest memory for activations");
  v.field("log_every", c.log_every, "steps between two lines of metrics.jsonl");
  v.field("eval_batches", c.eval_batches, "held-out batches evaluated at the end; 0: none");
}

void describe(base::ConfigVisitor& v, RunConfig& c) {
  v.field("preset", c.preset, "a published configuration to start from; empty: none");
  v.section("model", c.model, "the HSTU ranker");
  v.section("sparse", c.sparse, "embedding tables and their optimizer");
  v.section("optimizer", c.optimizer, "of the dense parameters, and both learning rates");
  v.section("data", c.data, "random samples whose labels depend on their ids");
  v.section("train", c.train, "how the run goes");
}

void TrainConfig::validate() const {
  require_at_least("train.steps", steps, 1);
  require_at_least("train.seed", seed, 0);
  constexpr int64_t kMostThreads = 1024;
  if (threads < 0 || threads > kMostThreads) {
    bad(fmt::format("train.threads must be between 0 and {}, not {}", kMostThreads, threads));
  }
  require_at_least("train.micro_batch_tokens", micro_batch_tokens, 1);
  require_at_least("train.log_every", log_every, 1);
  require_at_least("train.eval_batches", eval_batches, 0);
  constexpr double kMostGib = 1 << 20;
  if (!(arena_gib > 0 && arena_gib <= kMostGib)) {
    bad(fmt::format("train.arena_gib must be between 0 and {}, not {}", kMostGib, arena_gib));
  }
}

void RunConfig::validate() const {
  model.validate();
  sparse.validate();
  optimizer.validate();
  data.validate();
  train.validate();
  check_tables(*this);
  check_task_bits(*this);
  check_lengths(*this);
  random_schema(model, sparse);  // columns are named once
}

RunConfig load_run_config(const base::ConfigSources& sources) {
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
