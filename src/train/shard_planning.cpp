#include "train/shard_planning.h"

#include <algorithm>
#include <map>
#include <string>

#include "train/memory_plan.h"
#include "train/random_schema.h"
#include "train/trainer.h"

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

bool is_of_tables(const MemoryPlan::Part& p) {
  return p.purpose == "tables" || p.what == "of the tables";
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
    if (is_of_tables(p)) continue;
    const bool activations = p.purpose == "activations";
    fixed.push_back({activations ? p.purpose : p.purpose + ", " + p.what, p.bytes,
                     activations ? "lower train.arena_gib and train.micro_batch_tokens, or turn "
                                   "on model.recompute"
                                 : ""});
  }
  return fixed;
}

}  // namespace

Cluster cluster_of(const RunConfig& config, int ranks, int ranks_per_machine) {
  constexpr double kGib = 1 << 30;
  return {ranks, ranks_per_machine, config.parallel.device_gib * kGib, 0};
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
  return config.data.is_random() ? longest_history(config.data.random.lengths)
                                 : history_budget(config);
}

void set_demands(const RunConfig& c, double events, sparse::PlannerInput& in) {
  const auto samples = static_cast<double>(samples_per_rank(c, in.ranks));
  if (c.model.labels == model::LabelKind::kCandidates) {
    events += static_cast<double>(c.data.is_random() ? kRandomCandidates : kStoreCandidates);
  }
  struct Ids {
    double history = 0, contextual = 0;
  };
  std::map<std::string, Ids> lookups;
  lookups[c.model.item.table].history += samples * events;
  for (const model::SequenceFeature& f : c.model.additional) {
    lookups[f.table].history += samples * events;
  }
  for (const model::ContextualFeature& f : c.model.contextual) {
    lookups[f.table].contextual += samples * static_cast<double>(f.max_length);
  }
  const double exponent = history_exponent(c);
  for (sparse::TableDemand& d : in.tables) {
    const Ids ids = lookups[d.name];
    d.lookups = ids.history + ids.contextual;
    d.distinct = std::min(static_cast<double>(d.rows),
                          sparse::expected_distinct(ids.history, d.rows, exponent) +
                              sparse::expected_distinct(ids.contextual, d.rows, 0));
  }
}

sparse::PlannerInput planner_input(const RunConfig& c, const Cluster& cluster) {
  sparse::PlannerInput in;
  in.value_bytes = static_cast<int64_t>(size_of(parameter_dtype(c.train.precision)));
  in.forward_wire_bytes = wire_bytes(c.sparse.forward_wire, in.value_bytes);
  in.backward_wire_bytes = wire_bytes(c.sparse.backward_wire, in.value_bytes);
  in.ranks = cluster.ranks;
  in.ranks_per_machine = cluster.ranks_per_machine;
  in.device_bytes = cluster.device_bytes;
  in.host_bytes = cluster.host_bytes;
  in.tickets = device_of(c, cluster).is_cuda() ? kBatchesInFlight : 0;
  in.fixed = fixed_parts(c, cluster);
  for (const sparse::TableConfig& t : c.sparse.tables) {
    in.tables.push_back({.name = t.name,
                         .rows = t.rows,
                         .dim = c.sparse.dim_of(t),
                         .optimizer = c.sparse.optimizer_of(t),
                         .sharding = t.sharding,
                         .placement = t.placement});
  }
  set_demands(c, static_cast<double>(longest_history(c)), in);
  return in;
}

MemoryPlan rank_memory(const RunConfig& config, const Cluster& cluster, int rank) {
  const sparse::PlannedTables planned = plan_shards(config, cluster);
  const sparse::RankLoad& load = planned.ranks[static_cast<size_t>(rank)];
  MemoryPlan plan =
      memory_plan(share_of(config, cluster.ranks), device_of(config, cluster), cluster.ranks);
  std::erase_if(plan.parts, is_of_tables);
  plan.parts.insert(plan.parts.begin(), {{"tables", "of this rank", load.tables},
                                         {"optimizer", "of these tables", load.optimizer}});
  if (load.requests > 0) plan.parts.push_back({"batches", "rows asked for", load.requests});
  // A given arena has to hold them, too.
  if (config.train.arena_gib == 0) {
    plan.parts.push_back({"activations", "rows on their way", load.exchange});
  }
  return plan;
}

sparse::PlannedTables plan_shards(const RunConfig& config, const Cluster& cluster) {
  return sparse::plan_tables(planner_input(config, cluster));
}

}  // namespace segue::train
