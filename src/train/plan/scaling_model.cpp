#include "train/plan/scaling_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "balance/partition.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/step/random_schema.h"
#include "train/step/trainer.h"

namespace segue::train {
namespace {

constexpr double kGiga = 1e9;
constexpr double kWidth = 512;  // that other_ns was measured at

data::Distribution lengths_of(const RunConfig& config, const SimulationConfig& rates) {
  if (rates.lengths.high > 0) return rates.lengths;
  if (config.data.is_random()) return config.data.random.lengths;
  data::Distribution d;
  d.low = 1;
  d.high = longest_history(config) * 4 / 5;
  return d;
}

/// Bytes to ranks of the own machine and to others, when peers get equal parts.
struct Volume {
  double near_bytes = 0, far_bytes = 0;
};
Volume split(double bytes, const Cluster& c) {
  if (c.ranks == 1) return {};
  const double near_peers = std::min(c.ranks, c.ranks_per_machine) - 1;
  const double share = near_peers / (c.ranks - 1);
  return {bytes * share, bytes * (1 - share)};
}
/// Both kinds of links work at the same time.
double seconds(const Volume& v, const SimulationConfig& r) {
  return std::max(v.near_bytes / r.nvlink_gb_s, v.far_bytes / r.network_gb_s) / kGiga;
}

struct Loads {
  double mean = 0, worst = 0, worst_balanced = 0;  // picoseconds
  double events = 0;                               // of a sample
};

/// One step's samples, drawn, priced and dealt out.
Loads draw(const RunConfig& config, const Cluster& cluster, const SimulationConfig& rates,
           int64_t samples, int64_t number) {
  const data::Sampler sampler(lengths_of(config, rates));
  const model::SampleWork work = make_model(config)->work();
  const balance::CostWeights weights = cost_weights(work, rates);
  const int64_t most = longest_history(config);
  const int64_t targets = work.shape.candidate.empty() ? 0 : kStoreCandidates;
  std::vector<int64_t> costs;
  std::vector<int32_t> origins;
  std::vector<int64_t> loads(static_cast<size_t>(cluster.ranks), 0);
  Loads result;
  const auto key = static_cast<uint64_t>(rates.seed * 1000 + number);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t drawn = sampler(key, static_cast<uint64_t>(i));
    const int64_t events = most > 0 ? std::min(drawn, most) : drawn;
    costs.push_back(balance::sample_cost(work.shape, events, targets, weights).cost);
    origins.push_back(static_cast<int32_t>(i * cluster.ranks / samples));
    loads[static_cast<size_t>(origins.back())] += costs.back();
    result.events += static_cast<double>(events) / static_cast<double>(samples);
  }
  result.mean = std::accumulate(loads.begin(), loads.end(), 0.0) / cluster.ranks;
  result.worst = static_cast<double>(std::ranges::max(loads));
  for (const std::vector<int64_t>& rank : balance::partition(costs, origins, cluster.ranks)) {
    double load = 0;
    for (const int64_t i : rank) load += static_cast<double>(costs[static_cast<size_t>(i)]);
    result.worst_balanced = std::max(result.worst_balanced, load);
  }
  return result;
}

double dense_gradient_bytes(const RunConfig& config) {
  return static_cast<double>(make_model(config)->parameters().count()) *
         static_cast<double>(size_of(parameter_dtype(config.train.precision)));
}

[[noreturn]] void bad_rates(const std::string& path, const std::string& why) {
  fail(ErrorCode::kCorrupt,
       fmt::format("`{}` {}; write it by `segue bench stack --json`", path, why));
}

/// A row of `segue bench --json`.
struct Row {
  std::string name;
  double seconds = 0, flop = 0, tokens = 0, layers = 1, dim = 0;
  double heads_width = 0;  // of attention
  std::string mask = {};
};

std::vector<Row> read_rows(const std::string& path) {
  std::vector<Row> rows;
  std::string text = base::read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("name") || !json.contains("median_s")) {
      bad_rates(path, "has a line that is no result of a bench");
    }
    try {
      const nlohmann::json shape = json.value("shape", nlohmann::json::object());
      rows.push_back({json.at("name").get<std::string>(), json.at("median_s").get<double>(),
                      json.value("gflop", 0.0) * kGiga, shape.value("tokens", 0.0),
                      shape.value("layers", 1.0), shape.value("dim", 0.0),
                      shape.value("heads", 0.0) * shape.value("head_dim", 0.0),
                      json.value("mask", "")});
    } catch (const nlohmann::json::exception&) {
      bad_rates(path, "has a line that is no result of a bench");
    }
  }
  return rows;
}

}  // namespace

void describe(base::ConfigVisitor& v, SimulationConfig& c) {
  v.field("linear_tflops", c.linear_tflops,
          "products of a layer and all around them but attention");
  v.field("attention_tflops", c.attention_tflops, "attention, forward and backward");
  v.field("other_ns", c.other_ns, "rest of a step per token of width 512, identities on");
  v.field("other_plain_ns", c.other_plain_ns, "the same with identities off");
  v.field("step_ms", c.step_ms, "of any step, whatever its size");
  v.field("nvlink_gb_s", c.nvlink_gb_s, "GB/s of one GPU in each direction within a machine");
  v.field("network_gb_s", c.network_gb_s, "GB/s of one GPU in each direction to other machines");
  v.field("message_us", c.message_us, "per peer of an exchange");
  v.field("backward_share", c.backward_share, "of a pass, in which dense gradients travel unseen");
  v.section("lengths", c.lengths, "of histories; high = 0: as the config says");
  v.field("samples_per_rank", c.samples_per_rank, "0: data.batch_size is kept for any number");
  v.field("draws", c.draws, "steps that are drawn");
  v.field("seed", c.seed, "of the lengths");
}

void SimulationConfig::validate() const {
  for (const auto& [name, value] :
       {std::pair("linear_tflops", linear_tflops), std::pair("attention_tflops", attention_tflops),
        std::pair("nvlink_gb_s", nvlink_gb_s), std::pair("network_gb_s", network_gb_s)}) {
    if (!(value > 0) || !std::isfinite(value)) {
      fail(ErrorCode::kConfig, fmt::format("simulate.{} must be above 0, not {}", name, value));
    }
  }
  for (const auto& [name, value] :
       {std::pair("other_ns", other_ns), std::pair("other_plain_ns", other_plain_ns),
        std::pair("step_ms", step_ms), std::pair("message_us", message_us),
        std::pair("backward_share", backward_share)}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail(ErrorCode::kConfig, fmt::format("simulate.{} must be 0 or more, not {}", name, value));
    }
  }
  if (draws < 1 || samples_per_rank < 0) {
    fail(ErrorCode::kConfig,
         "simulate.draws must be at least 1, simulate.samples_per_rank 0 or more");
  }
  if (lengths.high > 0) lengths.validate("simulate.lengths");
}

void read_rates(const std::string& path, const model::SampleWork& w, SimulationConfig& rates) {
  const std::vector<Row> rows = read_rows(path);
  bool used = false;
  double flop = 0, time = 0;
  for (const Row& r : rows) {
    if (r.name != "attention forward" && r.name != "attention backward") continue;
    if (r.heads_width != static_cast<double>(w.width) || r.mask != "causal") continue;
    flop += r.flop;
    time += r.seconds;
  }
  if (time > 0 && flop > 0) {
    rates.attention_tflops = flop / time / 1e12;
    used = true;
  }
  // The others take attention at its rate and learn from what is left.
  const auto left = [&](const Row& r, double full_layers) {
    const double linear = w.token_flop * r.tokens;
    const double attention = (r.flop - r.layers * linear) / r.layers;
    return r.seconds - full_layers * attention / (rates.attention_tflops * 1e12);
  };
  const auto fits = [&](const Row& r) {
    return r.dim == static_cast<double>(w.width) && r.tokens > 0;
  };
  for (const Row& r : rows) {
    if (r.name != "stack" || !fits(r)) continue;
    const double rest = left(r, r.layers);
    if (rest <= 0) continue;
    rates.linear_tflops = r.layers * w.token_flop * r.tokens / rest / 1e12;
    used = true;
  }
  for (const Row& r : rows) {
    const bool on = r.name == "step, identities on";
    if ((!on && r.name != "step, identities off") || !fits(r)) continue;
    if (r.layers != static_cast<double>(w.layers)) continue;
    const double full = r.layers - (on ? 1 : 0);
    const double rest =
        left(r, full) - full * w.token_flop * r.tokens / (rates.linear_tflops * 1e12);
    (on ? rates.other_ns : rates.other_plain_ns) =
        std::max(0.0, rest / r.tokens * kGiga * kWidth / static_cast<double>(w.width));
    used = true;
  }
  if (!used) {
    fail(ErrorCode::kConfig,
         fmt::format("`{}` has no rates for this model: it wants rows of `segue bench attention`, "
                     "`stack` or `step` with dim {} and, for `step`, {} layers",
                     path, w.width, w.layers));
  }
}

SimulationConfig balancing_rates() {
  SimulationConfig rates;
  rates.linear_tflops = 427;
  rates.attention_tflops = 548;
  rates.other_ns = 22;
  rates.other_plain_ns = 38;
  return rates;
}

balance::CostWeights cost_weights(const model::SampleWork& w, const SimulationConfig& rates) {
  // The last layer at targets alone is part of the rest.
  const auto layers = static_cast<double>(w.layers - (w.last_at_targets ? 1 : 0));
  const double other = w.last_at_targets ? rates.other_ns : rates.other_plain_ns;
  constexpr double kPsPerNs = 1000;
  // FLOP / (TFLOP/s) are picoseconds.
  return {layers * w.token_flop / rates.linear_tflops +
              other * kPsPerNs * static_cast<double>(w.width) / kWidth,
          layers * w.pair_flop / rates.attention_tflops};
}

ScalingPoint simulate(const RunConfig& config, const Cluster& cluster,
                      const SimulationConfig& rates) {
  rates.validate();
  if (config.parallel.tensor_parallel > 1) {
    fail(ErrorCode::kUnsupported, fmt::format("the prediction knows no shared attention: it needs "
                                              "parallel.tensor_parallel = 1, not {}",
                                              config.parallel.tensor_parallel));
  }
  RunConfig run = config;
  if (rates.samples_per_rank > 0) run.data.batch_size = rates.samples_per_rank * cluster.ranks;
  ScalingPoint point;
  point.ranks = cluster.ranks;
  point.samples = run.data.batch_size;

  Loads all;
  for (int64_t d = 0; d < rates.draws; ++d) {
    const Loads one = draw(run, cluster, rates, point.samples, d);
    const auto share = 1 / static_cast<double>(rates.draws);
    all.mean += one.mean * share;
    all.worst += one.worst * share;
    all.worst_balanced += one.worst_balanced * share;
    all.events += one.events * share;
  }
  sparse::PlannerInput in = planner_input(run, cluster);
  point.missing_gib = std::max(0.0, sparse::plan_tables(in).missing_device) / base::kGib;
  set_demands(run, all.events, in);
  const sparse::PlannedTables typical = sparse::plan_tables(in);
  double busiest = 0;
  for (const sparse::RankLoad& r : typical.ranks) {
    busiest = std::max({busiest, r.sent, r.received});
  }
  constexpr double kMs = 1e3, kPsToMs = 1e-9;
  const double latency_ms = 2 * rates.message_us * (cluster.ranks - 1) / kMs;  // there and back
  point.compute_ms = all.mean * kPsToMs;
  point.exchange_mb = busiest / 1e6;
  point.exchange_ms = seconds(split(busiest, cluster), rates) * kMs + latency_ms;
  // Parts to their adders and sums to everyone.
  const double ranks = cluster.ranks;
  const double dense = 2 * dense_gradient_bytes(run) * (ranks - 1) / ranks;
  const double dense_ms = seconds(split(dense, cluster), rates) * kMs + latency_ms;
  point.dense_ms = std::max(0.0, dense_ms - rates.backward_share * point.compute_ms);
  if (cluster.ranks == 1) point.exchange_ms = point.dense_ms = 0;

  const auto dealt = [&](double worst) {
    ScalingPoint::Dealt d;
    d.imbalance = worst / all.mean;
    d.step_ms = worst * kPsToMs + rates.step_ms + point.exchange_ms + point.dense_ms;
    d.samples_per_s = static_cast<double>(point.samples) / d.step_ms * kMs;
    d.efficiency = point.compute_ms / d.step_ms;
    return d;
  };
  point.as_they_come = dealt(all.worst);
  point.balanced = dealt(all.worst_balanced);
  return point;
}

std::vector<std::string> assumptions(const RunConfig& config, const Cluster& cluster,
                                     const SimulationConfig& r) {
  const balance::CostWeights w = cost_weights(make_model(config)->work(), r);
  const data::Distribution lengths = lengths_of(config, r);
  constexpr const char* kKinds[] = {"uniform", "normal", "Zipf", "lognormal", "bounded Zipf"};
  return {
      fmt::format(
          "a token costs {:.1f} ns and a pair of tokens {:.2f} ps, whatever the size of the "
          "batch ({:.0f} TFLOP/s in layers, {:.0f} in attention)",
          w.token_ps / 1e3, w.pair_ps, r.linear_tflops, r.attention_tflops),
      fmt::format("histories have {} lengths from {} to {}; {} steps are drawn",
                  kKinds[static_cast<int>(lengths.kind)], lengths.low, lengths.high, r.draws),
      fmt::format("ids of histories repeat by Zipf's law ({}), rows travel once per rank and step",
                  config.data.is_random() ? config.data.random.ids.alpha : kHistoryIdExponent),
      fmt::format(
          "each GPU moves {:.0f} GB/s within a machine of {} and {:.0f} GB/s beyond, in both "
          "directions, undisturbed by others; a message costs {} us per peer",
          r.nvlink_gb_s, cluster.ranks_per_machine, r.network_gb_s, r.message_us),
      ("rows and their gradients travel while nothing else happens; ids, samples and host work are "
       "hidden behind the step before"),
      fmt::format("dense gradients are hidden behind {:.0f} % of the pass; {} ms of a step do not "
                  "depend on its size",
                  100 * r.backward_share, r.step_ms),
  };
}

}  // namespace segue::train
