#include "train/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/progress.h"
#include "model/ranker.h"
#include "model/step_memory.h"
#include "ops/optimizer.h"
#include "train/random_schema.h"
#include "train/trainer.h"

namespace segue::train {
namespace {

using base::format_bytes;

constexpr double kMib = 1 << 20, kGib = 1 << 30;

struct DenseCounts {
  double all = 0;
  double largest_bucket = 0;  // of gradients that ranks add up together
};

/// The registry knows every dense parameter before any memory is taken.
DenseCounts dense_parameters(const RunConfig& c) {
  RunConfig small = c;  // the tables' rows do not matter here
  for (sparse::TableConfig& t : small.sparse.tables) t.rows = 1;
  sparse::Tables tables(small.sparse, Device::cpu(), DType::kF32, 1);
  const model::Ranker ranker(small.model, tables, Device::cpu(), DType::kF32, 1);
  DenseCounts counts{static_cast<double>(ranker.parameters().count())};
  for (const Tensor& bucket : ranker.gradient_buckets()) {
    counts.largest_bucket = std::max(counts.largest_bucket, static_cast<double>(bucket.elements()));
  }
  return counts;
}

void add_activations(const RunConfig& c, Device device, bool shares_heads, MemoryPlan& plan) {
  if (c.train.arena_gib > 0) {
    plan.parts.push_back({"activations", "train.arena_gib", c.train.arena_gib * kGib});
  } else {
    const model::StepMemory step = step_memory(c, device);
    const auto add = [&](const char* what, int64_t bytes) {
      plan.parts.push_back({"activations", what, static_cast<double>(bytes)});
    };
    add("rows of a batch", step.rows);
    add("tokens, kept for backward", step.kept);
    add("working space", step.working);
    add("margin", step.margin);
    if (shares_heads) add("heads of other ranks", head_exchange_bytes(c, device));
  }
  constexpr double kProducts = 64 * kMib;
  if (device.is_cpu()) return;
  plan.parts.push_back(
      {"batches", "trained, next, evaluated",
       kBatchesInFlight * static_cast<double>(model::batch_memory(c.model, step_bounds(c)))});
  plan.parts.push_back({"scratch", "of matrix products", kProducts});
}

void add_recompute(const RunConfig& c, Device device, MemoryPlan& plan) {
  for (const auto& [name, member] :
       {std::pair("normed_input", &model::RecomputeConfig::normed_input),
        std::pair("uvqk", &model::RecomputeConfig::uvqk),
        std::pair("gate", &model::RecomputeConfig::gate)}) {
    RunConfig on = c, off = c;
    on.model.recompute.*member = true;
    off.model.recompute.*member = false;
    plan.recompute.push_back(
        {c.model.recompute.*member ? "on" : "off", name,
         static_cast<double>(step_memory(off, device).total() - step_memory(on, device).total())});
  }
}

}  // namespace

Device planned_device(const RunConfig& config) {
  if (config.train.device == "auto") return choose_device("auto");
  return parse_device(config.train.device);
}

model::StepBounds step_bounds(const RunConfig& config) {
  const model::ModelConfig& m = config.model;
  const int64_t candidates = config.data.is_random() ? kRandomCandidates : kStoreCandidates;
  const int64_t labelled = m.labels == model::LabelKind::kCandidates ? candidates : 0;
  int64_t events = std::max<int64_t>(
      0, (m.max_seq_len - m.contextual_tokens() - labelled) / m.tokens_per_event());
  if (config.data.is_random()) {
    const int64_t longest = longest_history(config.data.random.lengths);
    if (longest >= 0) events = std::min(events, longest);
  }
  return {.samples = config.data.batch_size,
          .events = events,
          .candidates = candidates,
          .micro_batch_tokens = config.train.micro_batch_tokens,
          .distinct_share = config.train.distinct_share};
}

model::StepMemory step_memory(const RunConfig& c, Device device) {
  return model::step_memory(c.model, c.sparse, step_bounds(c), c.train.precision, device);
}

int64_t head_exchange_bytes(const RunConfig& config, Device device) {
  const model::StepMemory step = step_memory(config, device);
  return step.kept + step.working;
}

int64_t arena_bytes(const RunConfig& config, Device device) {
  if (config.train.arena_gib > 0) return static_cast<int64_t>(config.train.arena_gib * kGib);
  return step_memory(config, device).total();
}

double MemoryPlan::total() const {
  double sum = 0;
  for (const Part& p : parts) sum += p.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string lines;
  for (const Part& p : parts) {
    lines += fmt::format("  {:<12} {:<28} {:>12}\n", p.purpose, p.what, format_bytes(p.bytes));
  }
  return lines + fmt::format("  {:<12} {:<28} {:>12}\n", "total", "", format_bytes(total()));
}

std::string MemoryPlan::recompute_text() const {
  std::string lines;
  for (const Part& p : recompute) {
    lines += fmt::format("  model.recompute.{:<14} {:<4} {} {:>12}\n", p.what, p.purpose,
                         p.purpose == "on" ? "saves      " : "would save ", format_bytes(p.bytes));
  }
  return lines;
}

MemoryPlan memory_plan(const RunConfig& c, Device device, int ranks) {
  const double value_bytes = static_cast<double>(size_of(parameter_dtype(c.train.precision)));
  MemoryPlan plan;
  double state_bytes = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const double rows = static_cast<double>(t.rows);
    const int64_t dim = c.sparse.dim_of(t);
    const int64_t state = ops::row_state_size(c.sparse.optimizer_of(t), dim);
    plan.parts.push_back({"tables", t.name, rows * static_cast<double>(dim) * value_bytes});
    state_bytes += rows * static_cast<double>(state) * value_bytes;
  }
  plan.parts.push_back({"optimizer", "of the tables", state_bytes});
  const DenseCounts counts = dense_parameters(c);
  const double dense = counts.all * value_bytes;
  plan.parts.push_back({"parameters", "dense, and their gradients", 2 * dense});
  plan.parts.push_back({"optimizer", "two moments of the dense ones", 2 * dense});
  if (ranks > 1) {
    // Parts of all ranks, one per rank and each as long as the longest.
    const double part = std::ceil(counts.largest_bucket / ranks);
    plan.parts.push_back({"communication", "sums of gradients", ranks * part * value_bytes});
  }
  add_activations(c, device, ranks > 1 && c.parallel.tensor_parallel > 1, plan);
  add_recompute(c, device, plan);
  return plan;
}

void require_memory(const RunConfig& config, Device device, double available) {
  const MemoryPlan plan = memory_plan(config, device);
  const double arena = device.is_cpu() ? static_cast<double>(arena_bytes(config, device)) : 0;
  const double needed = plan.total() - arena;
  if (needed <= available) return;
  fail(ErrorCode::kOutOfMemory,
       fmt::format("the run needs {}, but {} has {}:\n{}Lower `rows` in sparse.tables or "
                   "sparse.dim{}",
                   format_bytes(needed), device.is_cpu() ? "this machine" : to_string(device),
                   format_bytes(available), plan.text(),
                   device.is_cpu() ? ", or use a larger machine"
                                   : ", or data.batch_size or train.micro_batch_tokens, or turn "
                                     "model.recompute on:\n" +
                                         plan.recompute_text()));
}

}  // namespace segue::train
