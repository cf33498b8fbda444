#include "cli/plan_ranks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/time.h"
#include "base/version_generated.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "train/plan/scaling_model.h"
#include "train/plan/shard_planning.h"

namespace segue::cli {
namespace {

constexpr double kMega = 1e6;
constexpr int kMostRanks = 65536;

int parse_rank_count(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostRanks) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--ranks wants a number from 1 to {}, or with --simulate also a range 1..1024 "
                     "or a list 1,2,4; not `{}`",
                     kMostRanks, text));
  }
  return value;
}

/// "8", "1,2,4", or "1..1024": doubling, ends included.
std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    const int last = parse_rank_count(std::string_view(text).substr(dots + 2));
    for (int r = parse_rank_count(std::string_view(text).substr(0, dots)); r < last; r *= 2) {
      ranks.push_back(r);
    }
    ranks.push_back(last);
    return ranks;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    ranks.push_back(parse_rank_count(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return ranks;
}

train::Cluster cluster_of(const train::RunConfig& config, const PlanRanks& a, int ranks) {
  train::Cluster c = train::cluster_of(config, ranks, a.ranks_per_machine);
  if (a.hbm > 0) c.device_bytes = static_cast<double>(a.hbm);
  if (a.host > 0) c.host_bytes = static_cast<double>(a.host);
  return c;
}

Fact gib(double bytes) { return Fact::real(bytes / base::kGib, 2); }

/// Neighbours with the same numbers share a line.
void add_ranks(FactSheet& sheet, const sparse::PlannerInput& in,
               const sparse::PlannedTables& planned) {
  double activations = 0;
  for (const sparse::PlannerInput::Fixed& f : in.fixed) {
    if (f.purpose == Purpose::kActivation) activations += f.bytes;
  }
  FactTable& table = sheet.table("ranks", {"tables GiB", "their optimizer", "exchange", "dense",
                                           "activations", "device total", "host", "sent MB/step"});
  const auto facts = [&](const sparse::RankLoad& r) {
    return std::vector<Fact>{gib(r.tables),
                             gib(r.optimizer),
                             gib(r.exchange + r.requests),
                             gib(r.fixed - activations),
                             gib(activations),
                             gib(r.device()),
                             gib(r.host),
                             Fact::real(r.sent / kMega, 1)};
  };
  const auto same = [](const std::vector<Fact>& a, const std::vector<Fact>& b) {
    return std::ranges::equal(a, b, {}, &Fact::text, &Fact::text);
  };
  for (size_t first = 0; first < planned.ranks.size();) {
    const std::vector<Fact> row = facts(planned.ranks[first]);
    size_t last = first;
    while (last + 1 < planned.ranks.size() && same(facts(planned.ranks[last + 1]), row)) ++last;
    table.rows.push_back(
        {last > first ? fmt::format("{} to {}", first, last) : std::to_string(first), row});
    first = last + 1;
  }
}

void add_tables(FactSheet& sheet, const sparse::PlannerInput& in,
                const sparse::PlannedTables& planned) {
  FactTable& table = sheet.table(
      "tables", {"GiB", "ids/step and rank", "different", "sent MB/step", "sharding", "memory"});
  for (size_t t = 0; t < in.tables.size(); ++t) {
    const sparse::TablePlacement& p = planned.plan.tables[t];
    const sparse::TableDemand& d = in.tables[t];
    table.rows.push_back(
        {d.name,
         {gib(planned.tables[t].bytes), Fact(int64_t{std::llround(d.lookups)}),
          Fact(int64_t{std::llround(d.distinct)}), Fact::real(planned.tables[t].sent / kMega, 1),
          std::string(sparse::to_string(p.sharding)), std::string(sparse::to_string(p.tier))}});
  }
  FactTable& reasons = sheet.table("why");
  for (size_t t = 0; t < in.tables.size(); ++t) {
    reasons.rows.push_back({in.tables[t].name, {planned.plan.tables[t].reason}});
  }
}

void print_plan(const train::RunConfig& config, const PlanRanks& a, bool json) {
  const std::vector<int> ranks = parse_ranks(a.ranks);
  if (ranks.size() != 1) {
    fail(ErrorCode::kInvalidArgument,
         "a plan is for one number of ranks; several are for --simulate");
  }
  const train::Cluster cluster = cluster_of(config, a, ranks.front());
  const sparse::PlannerInput in = train::planner_input(config, cluster);
  const sparse::PlannedTables planned = sparse::plan_tables(in);  // as train::plan_shards does
  FactSheet sheet;
  add_ranks(sheet, in, planned);
  add_tables(sheet, in, planned);
  FactTable& verdict = sheet.table("verdict");
  verdict.rows.push_back({"fits", {planned.fits() ? "yes" : "no"}});
  verdict.rows.push_back({"missing GiB", {gib(std::max(0.0, planned.missing_device))}});
  verdict.rows.push_back({"missing host GiB", {gib(std::max(0.0, planned.missing_host))}});
  print(json ? sheet.json() : sheet.text());
  if (planned.fits()) return;
  std::string what =
      fmt::format("the plan does not fit: rank {} lacks {:.2f} GiB of device memory",
                  planned.fullest(), std::max(0.0, planned.missing_device) / base::kGib);
  if (planned.missing_host > 0) {
    what += fmt::format(" and {:.2f} GiB of host memory", planned.missing_host / base::kGib);
  }
  for (const std::string& line : planned.advice) what += "\n  " + line;
  flush_output();
  fail(ErrorCode::kOutOfMemory, what);
}

void print_simulation(const train::RunConfig& config, const train::SimulationConfig& rates,
                      const PlanRanks& a, bool json) {
  const std::vector<int> ranks = parse_ranks(a.ranks.empty() ? "1..1024" : a.ranks);
  FactSheet sheet;
  FactTable& table = sheet.table(
      "ranks", {"samples", "compute ms", "exchange ms", "dense ms", "sent MB", "uneven",
                "step ms as they come", "efficiency", "uneven balanced", "step ms balanced",
                "samples/s balanced", "efficiency balanced", "missing GiB"});
  for (const int r : ranks) {
    const train::ScalingPoint p = train::simulate(config, cluster_of(config, a, r), rates);
    table.rows.push_back(
        {std::to_string(r),
         {Fact(p.samples), Fact::real(p.compute_ms, 2), Fact::real(p.exchange_ms, 2),
          Fact::real(p.dense_ms, 2), Fact::real(p.exchange_mb, 1),
          Fact::real(p.as_they_come.imbalance, 3), Fact::real(p.as_they_come.step_ms, 2),
          Fact::share(p.as_they_come.efficiency), Fact::real(p.balanced.imbalance, 3),
          Fact::real(p.balanced.step_ms, 2), Fact::real(p.balanced.samples_per_s, 0),
          Fact::share(p.balanced.efficiency), Fact::real(p.missing_gib, 1)}});
  }
  FactTable& lines = sheet.table("assumptions");
  int number = 0;
  for (const std::string& line :
       train::assumptions(config, cluster_of(config, a, ranks.back()), rates)) {
    lines.rows.push_back({std::to_string(++number), {line}});
  }
  if (json) {  // what a row of a bench has, too
    FactTable& made = sheet.table("made");
    made.rows = {{"command", {shell_command()}},
                 {"version", {SEGUE_VERSION}},
                 {"commit", {SEGUE_GIT_COMMIT}},
                 {"time", {base::iso_time_now()}}};
  }
  print(json ? sheet.json() : sheet.text());
}

/// `--set simulate.KEY=VALUE` is for the simulation, the rest for the run.
struct Simulated {
  train::SimulationConfig simulate;
};
void describe(base::ConfigVisitor& v, Simulated& s) { v.section("simulate", s.simulate); }

}  // namespace

void add_plan_ranks(CLI::App& command, PlanRanks& a) {
  command.add_option("--ranks", a.ranks,
                     "place tables on N ranks; with --simulate also 1..1024 or 1,2,4");
  command.add_option("--ranks-per-machine", a.ranks_per_machine, "ranks that share a machine")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  command
      .add_option("--hbm", a.hbm,
                  "device memory of a rank, such as 80GiB; default: parallel.device_gib")
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--host", a.host,
                  "host memory of a rank that tables may take; default: parallel.host_gib")
      ->transform(CLI::AsSizeValue(false));
  command.add_flag("--simulate", a.simulate,
                   "predict step time and efficiency; --set simulate.network_gb_s=50 and so on");
  command.add_option("--rates", a.rates, "rows of `segue bench attention|stack|step --json`");
}

void PlanRanks::validate() const {
  if (!wanted() && (hbm > 0 || host > 0)) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} is what tables of a rank may take; give --ranks N as well (1 for one)",
                     hbm > 0 ? "--hbm" : "--host"));
  }
  if (!simulate && !rates.empty()) {
    fail(ErrorCode::kInvalidArgument, "--rates is for --simulate; give that as well");
  }
}

void plan_ranks(const base::ConfigSources& sources, const PlanRanks& a, bool json) {
  base::ConfigSources run = sources, simulation;
  const auto is_simulation = [](const std::string& s) { return s.starts_with("simulate."); };
  std::ranges::copy_if(sources.sets, std::back_inserter(simulation.sets), is_simulation);
  std::erase_if(run.sets, is_simulation);
  const train::RunConfig config = train::load_run_config(run);
  if (!a.simulate) return print_plan(config, a, json);
  Simulated s;
  if (!a.rates.empty()) train::read_rates(a.rates, train::make_model(config)->work(), s.simulate);
  simulation.use_environment = false;
  base::load_config(s, simulation);
  print_simulation(config, s.simulate, a, json);
}

}  // namespace segue::cli
