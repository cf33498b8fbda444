#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_line.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/plan_ranks.h"
#include "train/plan/memory_plan.h"
#include "train/plan/micro_batch.h"
#include "train/plan/shard_planning.h"
#include "train/run_config.h"

namespace segue::cli {
namespace {

/// What `gpu_memory_bytes` of a run has beside the plan, as measured on an H200.
constexpr const char* kContextNote =
    "  beside it    CUDA's own context, code and libraries: about 0.6 GB\n";

}  // namespace

void add_plan(CLI::App& app) {
  struct Arguments {
    base::ConfigSources sources;
    bool json = false;
    PlanRanks ranks;
  };
  CLI::App* command = app.add_subcommand("plan", "Memory of a run by purpose, before it starts.");
  const auto arguments = std::make_shared<Arguments>();
  add_config_sources(*command, arguments->sources);
  command->add_flag("--json", arguments->json, "the same as one JSON object");
  add_plan_ranks(*command, arguments->ranks);
  command->callback([arguments] {
    arguments->ranks.validate();
    if (arguments->ranks.wanted()) {
      return plan_ranks(arguments->sources, arguments->ranks, arguments->json);
    }
    train::RunConfig config = train::load_run_config(arguments->sources);
    const Device device = train::planned_device(config);
    const train::MicroBatchChoice choice = train::choose_micro_batch(
        config, device, train::cluster_of(config, 1, 1, {train::device_memory_share(device, 1)}));
    config.train.micro_batch_tokens = choice.tokens;
    const train::MemoryPlan plan = train::plan_run(config, device, {}).memory;
    if (!arguments->json) {
      const auto model = train::make_model(config);
      const model::StepBounds bounds = train::step_bounds(config, *model);
      print(fmt::format(
          "Memory of a run on {}, batches of at most {} samples of {} tokens, micro-batches of at "
          "most {} ({}):\n{}{}\n{}",
          to_string(device), bounds.samples, model->sample_tokens(bounds.events, bounds.candidates),
          choice.tokens, choice.why, plan.text(), device.is_cpu() ? "" : kContextNote,
          plan.switches_text()));
      return;
    }
    nlohmann::ordered_json line;
    for (const train::MemoryPlan::Part& p : plan.parts) {
      line[fmt::format("{}/{}", to_string(p.purpose), p.what)] = p.bytes;
    }
    for (const model::MemorySwitch& s : plan.switches) {
      line["recompute_saves/" + s.key.substr(s.key.rfind('.') + 1)] = static_cast<double>(s.bytes);
    }
    line["total"] = plan.total();
    print(base::json_line(line) + "\n");
  });
}

}  // namespace segue::cli
