#include "train/plan/micro_batch.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/memory.h"
#include "base/progress.h"

namespace segue::train {
namespace {

using base::format_bytes;

bool all_on_device(const sparse::PlannedTables& tables) {
  return std::ranges::all_of(tables.plan.tables,
                             [](const auto& p) { return p.tier == sparse::Tier::kDevice; });
}

/// What the config gives to a rank, or what a device has; 0: not known.
double memory_of(const Cluster& cluster) {
  return cluster.device_bytes > 0 ? cluster.device_bytes : cluster.device_limit;
}

/// What a step may take: of an arena that the config gives, or beside everything else that lies on
/// the fullest rank's device; 0 where tables take what they get.
double room_for_steps(const RunConfig& usual, Device device, const Cluster& cluster,
                      double usual_step) {
  if (usual.train.arena_gib > 0) return usual.train.arena_gib * base::kGib;
  const sparse::PlannedTables tables = plan_shards(usual, cluster);
  if (!all_on_device(tables)) return 0;
  const MemoryPlan plan = plan_run(usual, cluster, tables.fullest(), device).memory;
  return memory_of(cluster) - (plan.total() - usual_step);
}

}  // namespace

MicroBatchChoice choose_micro_batch(const RunConfig& config, Device device,
                                    const Cluster& cluster) {
  constexpr int64_t kUsual = TrainConfig::kUsualMicroBatch;
  if (config.train.micro_batch_tokens > 0) {
    return {config.train.micro_batch_tokens, "as the config says"};
  }
  if (device.is_cpu()) return {kUsual, "as always on a CPU"};
  RunConfig share = share_of(config, cluster.ranks);
  const auto model = make_model(share);
  const model::StepBounds bounds = step_bounds(share, *model);
  const int64_t longest =
      std::max<int64_t>(1, model->sample_tokens(bounds.events, bounds.candidates));
  if (bounds.samples * longest <= kUsual) return {kUsual, "a batch never has more"};
  if (memory_of(cluster) <= 0) return {kUsual, "the memory of the device is not known"};

  const auto step_bytes = [&](int64_t tokens) {
    share.train.micro_batch_tokens = tokens;
    return static_cast<double>(step_memory(share, device).total());
  };
  RunConfig usual = config;
  usual.train.micro_batch_tokens = kUsual;
  const double room = room_for_steps(usual, device, cluster, step_bytes(kUsual));
  for (int64_t parts = 1;; ++parts) {
    const int64_t tokens = (bounds.samples + parts - 1) / parts * longest;
    if (tokens <= kUsual) break;
    const double bytes = step_bytes(tokens);
    if (bytes > room) continue;
    return {tokens, fmt::format("{}; a step takes {} of {} that tables leave",
                                parts == 1 ? "a whole batch" : fmt::format("a batch in {}", parts),
                                format_bytes(bytes), format_bytes(room))};
  }
  return {kUsual, room > 0 ? fmt::format("more do not fit into {}", format_bytes(room))
                           : "tables take all memory of the device"};
}

double device_memory_share(Device device, int ranks) {
  // Tables are planned into 0.95 of what is free when a run begins: a choice that only just fits
  // must not drive them out.
  constexpr double kShare = 0.92;
  const int gpus = cuda_device_count();
  if (!device.is_cuda() || device.index >= gpus) return 0;
  const int sharing = (std::max(1, ranks) + gpus - 1) / gpus;
  return kShare * static_cast<double>(cuda_facts(device.index).memory_bytes) / sharing;
}

}  // namespace segue::train
