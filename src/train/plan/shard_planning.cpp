#include "train/plan/shard_planning.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/memory.h"
#include "sparse/key_table.h"
#include "sparse/row_mover.h"
#include "train/plan/memory_plan.h"
#include "train/step/random_schema.h"
#include "train/step/trainer.h"

namespace segue::train {
namespace {

int64_t wire_bytes(sparse::Wire wire, int64_t value_bytes) {
  constexpr int64_t kHalf = 2;
  return wire == sparse::Wire::kF32 ? value_bytes : kHalf;
}

double history_exponent(const RunConfig& c) {
  if (!c.data.is_random()) return kHistoryIdExponent;
  const data::Distribution& ids = c.data.random.ids;
  const bool zipf =
      ids.kind == data::DistributionKind::kZipf || ids.kind == data::DistributionKind::kZipfBounded;
  return zipf ? ids.alpha : 0;
}

/// Who names the memory of a device means a GPU, whatever this machine has.
Device device_of(const RunConfig& config, const Cluster& cluster) {
  const bool gpu = config.train.device == "auto" && cluster.device_bytes > 0;
  return gpu ? Device::cuda() : planned_device(config);
}

/// Everything of one rank's device that is no table, from the plan of one rank.
std::vector<sparse::PlannerInput::Fixed> fixed_parts(const RunConfig& config,
                                                     const Cluster& cluster) {
  const RunConfig one = share_of(config, cluster.ranks);
  const Device device = device_of(config, cluster);
  std::vector<sparse::PlannerInput::Fixed> fixed;
  for (const MemoryPlan::Part& p : memory_plan(one, device, cluster.ranks).parts) {
    if (p.of_tables) continue;
    const bool activations = p.purpose == Purpose::kActivation;
    fixed.push_back({p.purpose, p.bytes,
                     activations ? "lower train.arena_gib and train.micro_batch_tokens, or turn "
                                   "on model.recompute"
                                 : ""});
  }
  return fixed;
}

}  // namespace

Cluster cluster_of(const RunConfig& config, int ranks, int ranks_per_machine) {
  return {ranks, ranks_per_machine, config.parallel.device_gib * base::kGib,
          config.parallel.host_gib * base::kGib};
}

MachineMemory machine_memory(Device device, int ranks) {
  // Drivers and libraries take some of a GPU; of the host, batches and others that run there.
  constexpr double kDeviceShare = 0.95, kHostShare = 0.8;
  MachineMemory memory;
  if (device.is_cuda()) {
    const int gpus = std::max(1, cuda_device_count());
    const int sharing = (std::max(1, ranks) + gpus - 1) / gpus;
    memory.device_bytes = kDeviceShare * available_bytes(device) / sharing;
  }
  const auto host = static_cast<double>(base::available_memory().value_or(0));
  memory.host_bytes = std::floor(kHostShare * host / std::max(1, ranks));
  if (device.is_cpu()) memory.device_bytes = memory.host_bytes;
  return memory;
}

Cluster cluster_of(const RunConfig& config, int ranks, int ranks_per_machine,
                   const MachineMemory& memory) {
  Cluster cluster = cluster_of(config, ranks, ranks_per_machine);
  cluster.device_limit = memory.device_bytes;
  if (cluster.host_bytes == 0) cluster.host_bytes = memory.host_bytes;
  cluster.files = true;
  return cluster;
}

int64_t samples_per_rank(const RunConfig& config, int ranks) {
  return (config.data.batch_size + ranks - 1) / std::max(1, ranks);
}

RunConfig share_of(const RunConfig& config, int ranks) {
  RunConfig share = config;
  share.data.batch_size = samples_per_rank(config, ranks);
  return share;
}

int64_t longest_history(const RunConfig& config) {
  if (config.data.has_interactions()) return 0;
  return config.data.is_random() ? longest_history(config.data.random.lengths)
                                 : history_budget(config);
}

void set_demands(const RunConfig& c, double events, sparse::PlannerInput& in) {
  using Of = model::ColumnDemand::Of;
  const auto samples = static_cast<double>(samples_per_rank(c, in.ranks));
  const int64_t candidates = c.data.is_random() ? c.data.random.candidates : kStoreCandidates;
  struct Ids {
    double of_items = 0, of_samples = 0;
  };
  std::map<std::string, Ids> lookups;
  for (const model::ColumnDemand& d : make_model(c)->demands()) {
    if (d.role != model::ColumnDemand::Role::kId) continue;
    Ids& ids = lookups[d.table];
    if (d.of == Of::kSample) {
      ids.of_samples += samples * static_cast<double>(d.length);
    } else {
      ids.of_items += samples * (d.of == Of::kEvent ? events : static_cast<double>(candidates));
    }
  }
  const double exponent = history_exponent(c);
  for (sparse::TableDemand& d : in.tables) {
    const Ids ids = lookups[d.name];
    d.lookups = ids.of_items + ids.of_samples;
    d.distinct = std::min(static_cast<double>(d.rows),
                          sparse::expected_distinct(ids.of_items, d.rows, exponent) +
                              sparse::expected_distinct(ids.of_samples, d.rows, 0));
  }
}

namespace {

/// Dynamic tables have whole buckets.
int64_t most_rows(const sparse::TablesConfig& tables, const sparse::TableConfig& table) {
  const int64_t rows = tables.rows_of(table);
  return table.dynamic() ? sparse::KeyTable::most_rows_of({.config = table, .rows = rows}) : rows;
}

}  // namespace

sparse::PlannerInput planner_input(const RunConfig& c, const Cluster& cluster) {
  sparse::PlannerInput in;
  in.value_bytes = static_cast<int64_t>(size_of(parameter_dtype(c.train.precision)));
  in.forward_wire_bytes = wire_bytes(c.sparse.forward_wire, in.value_bytes);
  in.backward_wire_bytes = wire_bytes(c.sparse.backward_wire, in.value_bytes);
  in.ranks = cluster.ranks;
  in.ranks_per_machine = cluster.ranks_per_machine;
  in.device_bytes = cluster.device_bytes;
  in.host_bytes = cluster.host_bytes;
  in.files = cluster.files;
  in.tickets = device_of(c, cluster).is_cuda() ? kBatchesInFlight : 0;
  in.fixed = fixed_parts(c, cluster);
  for (const sparse::TableConfig& t : c.sparse.tables) {
    in.tables.push_back({.name = t.name,
                         .rows = most_rows(c.sparse, t),
                         .dim = c.sparse.dim_of(t),
                         .optimizer = c.sparse.optimizer_of(t),
                         .sharding = t.sharding,
                         .placement = t.placement,
                         .cache_share = t.cache_share,
                         .dynamic = t.dynamic()});
  }
  set_demands(c, static_cast<double>(longest_history(c)), in);
  return in;
}

namespace {

/// But for the tables.
RunPlan plan_share(const RunConfig& share, int ranks, Device device) {
  const auto model = make_model(share);
  RunPlan plan;
  plan.memory = memory_plan(share, device, ranks);
  plan.micro_batch_tokens = share.train.micro_batch();
  plan.arena_bytes = static_cast<int64_t>(plan.memory.of(Purpose::kActivation));
  plan.batch_bytes = model->batch_memory(step_bounds(share, *model));
  plan.prepare_bytes = model->prepare_memory(step_bounds(share, *model));
  return plan;
}

}  // namespace

RunPlan plan_run(const RunConfig& config, Device device) {
  return plan_run(config, device, machine_memory(device, 1));
}

RunPlan plan_run(const RunConfig& config, Device device, const MachineMemory& memory) {
  const Cluster cluster = cluster_of(config, 1, 1, memory);
  RunPlan plan = plan_run(config, cluster, 0, device);
  // There is nobody to share with, whatever the config asks for.
  for (sparse::TablePlacement& p : plan.tables.plan.tables) p.sharding = sparse::Sharding::kTable;
  const bool all_on_device = std::ranges::all_of(
      plan.tables.plan.tables, [](const auto& p) { return p.tier == sparse::Tier::kDevice; });
  // By table.
  if (all_on_device) plan.memory = memory_plan(config, device);
  return plan;
}

RunPlan plan_run(const RunConfig& config, const Cluster& cluster, int rank, Device device) {
  const RunConfig share = share_of(config, cluster.ranks);
  RunPlan plan = plan_share(share, cluster.ranks, device);
  plan.tables = plan_shards(config, cluster);
  const sparse::RankLoad& load = plan.tables.ranks[static_cast<size_t>(rank)];
  plan.request_bytes = static_cast<int64_t>(load.requests) / kBatchesInFlight;
  std::vector<MemoryPlan::Part>& parts = plan.memory.parts;
  std::erase_if(parts, [](const MemoryPlan::Part& p) { return p.of_tables; });
  parts.insert(parts.begin(), {{Purpose::kTable, "of this rank", load.tables, true},
                               {Purpose::kOptimizer, "of these tables", load.optimizer, true}});
  if (load.requests > 0) parts.push_back({Purpose::kBatch, "rows asked for", load.requests});
  const auto staged = std::ranges::count_if(
      plan.tables.plan.tables, [](const auto& p) { return p.tier != sparse::Tier::kDevice; });
  if (staged > 0 && device.is_cuda()) {
    parts.push_back({Purpose::kScratch, "rows that come and go",
                     static_cast<double>(staged * sparse::RowMover::kStagingBytes)});
  }
  if (cluster.ranks == 1) return plan;
  if (config.train.arena_gib > 0) return plan;  // a given arena has to hold rows on their way, too
  parts.push_back({Purpose::kActivation, "rows on their way", load.exchange});
  // Address space on the CPU is free, so there the worst case is allowed for.
  plan.arena_bytes += device.is_cpu() ? 4 * cluster.ranks * step_memory(share, device).rows
                                      : static_cast<int64_t>(load.exchange);
  return plan;
}

MemoryPlan rank_memory(const RunConfig& config, const Cluster& cluster, int rank) {
  return plan_run(config, cluster, rank, device_of(config, cluster)).memory;
}

sparse::PlannedTables plan_shards(const RunConfig& config, const Cluster& cluster) {
  sparse::PlannerInput input = planner_input(config, cluster);
  sparse::PlannedTables planned = sparse::plan_tables(input);
  if (input.device_bytes > 0 || cluster.device_limit <= 0) return planned;
  // Of the rest the CPU takes what steps touch, which nobody knows before.
  const sparse::RankLoad& fullest = planned.ranks[static_cast<size_t>(planned.fullest())];
  const bool cpu = device_of(config, cluster).is_cpu();
  const double most = cpu ? fullest.tables + fullest.optimizer : fullest.device();
  const bool all_on_device = std::ranges::all_of(
      planned.plan.tables, [](const auto& p) { return p.tier == sparse::Tier::kDevice; });
  if (all_on_device && most <= cluster.device_limit) return planned;
  // There both sides of a cache are one memory.
  const double share = cpu ? 0.5 : 1;
  input.device_bytes = share * cluster.device_limit + fullest.device() - most;
  input.host_bytes *= share;
  return sparse::plan_tables(input);
}

}  // namespace segue::train
