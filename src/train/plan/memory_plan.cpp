#include "train/plan/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/progress.h"
#include "ops/optimizer.h"
#include "train/step/random_schema.h"
#include "train/step/trainer.h"

namespace segue::train {
namespace {

using base::format_bytes;

/// Values of the largest bucket of gradients that ranks add up together.
double largest_bucket(const model::Model& model) {
  double largest = 0;
  for (const model::Model::Bucket& b : model.buckets()) {
    largest = std::max(largest, static_cast<double>(model.parameters().count(b.first, b.end)));
  }
  return largest;
}

void add_activations(const RunConfig& c, const model::Model& model, Device device, int ranks,
                     MemoryPlan& plan) {
  model::StepBounds bounds = step_bounds(c, model);
  if (ranks > 1) bounds.head_ranks = c.parallel.tensor_parallel;
  const auto add = [&](const char* what, double bytes) {
    plan.parts.push_back({Purpose::kActivation, what, bytes});
  };
  if (c.train.arena_gib > 0) {
    add("train.arena_gib", c.train.arena_gib * base::kGib);
  } else {
    const model::StepMemory step = model.step_memory(bounds, c.train.precision, device);
    add("rows of a batch", static_cast<double>(step.rows));
    add("tokens, kept for backward", static_cast<double>(step.kept));
    add("working space", static_cast<double>(step.working));
    add("margin", static_cast<double>(step.margin));
  }
  plan.switches = model.memory_switches(bounds, c.train.precision, device);
  if (device.is_cpu()) return;
  constexpr double kProducts = 64 * base::kMib;
  plan.parts.push_back({Purpose::kBatch, "2 to train on, 2 to evaluate",
                        kBatchesInFlight * static_cast<double>(model.batch_memory(bounds))});
  plan.parts.push_back(
      {Purpose::kBatch, "to find distinct ids", static_cast<double>(model.prepare_memory(bounds))});
  plan.parts.push_back({Purpose::kScratch, "of matrix products", kProducts});
}

}  // namespace

Device planned_device(const RunConfig& config) {
  if (config.train.device == "auto") return choose_device("auto");
  return parse_device(config.train.device);
}

model::StepBounds step_bounds(const RunConfig& config, const model::Model& model) {
  const int64_t candidates =
      config.data.is_random() ? config.data.random.candidates : kStoreCandidates;
  int64_t events = model.most_events(candidates);
  if (config.data.is_random()) {
    const int64_t longest = longest_history(config.data.random.lengths);
    if (longest >= 0) events = std::min(events, longest);
  }
  return {.samples = config.data.batch_size,
          .events = events,
          .candidates = candidates,
          .micro_batch_tokens = config.train.micro_batch(),
          .distinct_share = config.train.distinct_share};
}

model::StepMemory step_memory(const RunConfig& c, Device device) {
  const auto model = make_model(c);
  return model->step_memory(step_bounds(c, *model), c.train.precision, device);
}

double MemoryPlan::of(Purpose purpose) const {
  double sum = 0;
  for (const Part& p : parts) sum += p.purpose == purpose ? p.bytes : 0;
  return sum;
}

double MemoryPlan::total() const {
  double sum = 0;
  for (const Part& p : parts) sum += p.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string lines;
  for (const Part& p : parts) {
    lines += fmt::format("  {:<12} {:<28} {:>12}\n", to_string(p.purpose), p.what,
                         format_bytes(p.bytes));
  }
  return lines + fmt::format("  {:<12} {:<28} {:>12}\n", "total", "", format_bytes(total()));
}

std::string MemoryPlan::switches_text() const {
  std::string lines;
  for (const model::MemorySwitch& s : switches) {
    lines += fmt::format("  {:<30} {:<4} {} {:>12}\n", s.key, s.on ? "on" : "off",
                         s.on ? "saves      " : "would save ",
                         format_bytes(static_cast<double>(s.bytes)));
  }
  return lines;
}

MemoryPlan memory_plan(const RunConfig& c, Device device, int ranks) {
  const auto model = make_model(c);
  const auto value_bytes = static_cast<double>(size_of(parameter_dtype(c.train.precision)));
  MemoryPlan plan;
  double state_bytes = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const auto rows = static_cast<double>(c.sparse.rows_of(t));
    const int64_t dim = c.sparse.dim_of(t);
    const int64_t state = ops::row_state_size(c.sparse.optimizer_of(t), dim);
    const double index = t.dynamic() ? rows * sparse::kIndexBytesPerRow : 0;
    plan.parts.push_back(
        {Purpose::kTable, t.name, rows * static_cast<double>(dim) * value_bytes + index, true});
    state_bytes += rows * static_cast<double>(state) * value_bytes;
  }
  plan.parts.push_back({Purpose::kOptimizer, "of the tables", state_bytes, true});
  const double dense = static_cast<double>(model->parameters().count()) * value_bytes;
  plan.parts.push_back({Purpose::kParameter, "dense, and their gradients", 2 * dense});
  const auto states = static_cast<double>(ops::dense_states(c.optimizer.kind).size());
  plan.parts.push_back({Purpose::kOptimizer, "of the dense ones", states * dense});
  if (ranks > 1) {
    // Parts of all ranks, one per rank and each as long as the longest.
    const double part = std::ceil(largest_bucket(*model) / ranks);
    plan.parts.push_back({Purpose::kComm, "sums of gradients", ranks * part * value_bytes});
  }
  add_activations(c, *model, device, ranks, plan);
  return plan;
}

double available_bytes(Device device) {
  if (device.is_cuda()) return static_cast<double>(cuda_facts(device.index).free_bytes);
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void require_memory(const MemoryPlan& plan, Device device, double available, bool full_batches) {
  const double needed = plan.total();
  if (needed <= available) return;
  const std::string where = device.is_cpu() ? "this machine" : to_string(device);
  std::string why = fmt::format(
      "the run needs {}, but {} has {}:\n{}Lower `rows` in sparse.tables or sparse.dim, or "
      "data.batch_size or train.micro_batch_tokens",
      format_bytes(needed), where, format_bytes(available), plan.text());
  if (device.is_cpu() && !full_batches && needed - plan.of(Purpose::kActivation) <= available) {
    base::log_warning(why + "; steps of smaller batches may still fit");
    return;
  }
  if (!plan.switches.empty()) why += ", or turn on:\n" + plan.switches_text();
  fail(ErrorCode::kOutOfMemory, why);
}

}  // namespace segue::train
