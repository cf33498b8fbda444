#include "train/memory_plan.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/ranker.h"
#include "ops/optimizer.h"
#include "train/trainer.h"

namespace segue::train {
namespace {

constexpr double kMib = 1 << 20, kGib = 1 << 30;

std::string format_bytes(double bytes) {
  return bytes < kGib ? fmt::format("{:.1f} MiB", bytes / kMib)
                      : fmt::format("{:.1f} GiB", bytes / kGib);
}

/// The registry knows every dense parameter before any memory is taken.
double dense_parameters(const RunConfig& c) {
  RunConfig small = c;  // the tables' rows do not matter here
  for (sparse::TableConfig& t : small.sparse.tables) t.rows = 1;
  sparse::Tables tables(small.sparse, Device::cpu(), DType::kF32, 1);
  const model::Ranker ranker(small.model, tables, Device::cpu(), DType::kF32, 1);
  return static_cast<double>(ranker.parameters().count());
}

}  // namespace

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

MemoryPlan memory_plan(const RunConfig& c) {
  const double value_bytes = static_cast<double>(size_of(parameter_dtype(c.train.precision)));
  const int64_t state = ops::row_state_size(c.sparse.optimizer, c.sparse.dim);
  MemoryPlan plan;
  double state_bytes = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const double rows = static_cast<double>(t.rows);
    plan.parts.push_back(
        {"tables", t.name, rows * static_cast<double>(c.sparse.dim) * value_bytes});
    state_bytes += rows * static_cast<double>(state) * value_bytes;
  }
  plan.parts.push_back({"optimizer", "of the tables", state_bytes});
  const double dense = dense_parameters(c) * value_bytes;
  plan.parts.push_back({"parameters", "dense, and their gradients", 2 * dense});
  plan.parts.push_back({"optimizer", "two moments of the dense ones", 2 * dense});
  plan.parts.push_back({"activations", "arena (train.arena_gib)", c.train.arena_gib * kGib});
  return plan;
}

void require_memory(const RunConfig& config, Device device, double available) {
  const MemoryPlan plan = memory_plan(config);
  const double arena = device.is_cpu() ? config.train.arena_gib * kGib : 0;
  const double needed = plan.total() - arena;
  if (needed <= available) return;
  fail(ErrorCode::kOutOfMemory,
       fmt::format("the run needs {}, but {} has {}:\n{}Lower `rows` in sparse.tables or "
                   "sparse.dim{}",
                   format_bytes(needed), device.is_cpu() ? "this machine" : to_string(device),
                   format_bytes(available), plan.text(),
                   device.is_cpu() ? ", or use a larger machine"
                                   : ", or train.arena_gib with train.micro_batch_tokens"));
}

}  // namespace segue::train
