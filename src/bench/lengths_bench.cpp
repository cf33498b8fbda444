#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "balance/cost.h"
#include "balance/partition.h"
#include "bench/attention_case.h"
#include "bench/bench.h"
#include "bench/length_kinds.h"

namespace segue::bench {
namespace {

constexpr int64_t kGpuLongest = 8192;  // 4,096 interleaved items, as the published suites have
constexpr int64_t kGpuSequences = 32;

/// Sequences of one rank, and the longest that there can be.
struct RankLengths {
  int64_t sequences = 0, longest = 0;
};

std::vector<int64_t> draw(const data::Distribution& lengths, int64_t count, uint64_t key) {
  const data::Sampler sampler(lengths);
  std::vector<int64_t> drawn(static_cast<size_t>(count));
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = sampler(key, i);
  return drawn;
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

class LengthsBench {
 public:
  LengthsBench(const Settings& settings, Report& report)
      : settings_(settings), report_(report), w_(report.device()) {
    const LayerShape& s = settings.layer;
    const bool asked = s.lengths != Lengths::kJagged40;  // which is what nobody asked for, on a GPU
    batch_ = asked ? RankLengths{s.sequences, s.length} : RankLengths{kGpuSequences, kGpuLongest};
  }

  void run() {
    calibrate();
    for (const std::string& name : length_names()) {
      const data::Distribution lengths = length_distribution(name, batch_.longest);
      attention(name, draw(lengths, batch_.sequences, 1));
      for (const int64_t ranks : {2, 4, 16, 64, 256, 1024}) balancing(name, lengths, ranks);
    }
    report_.note(fmt::format(
        "  balancing is reckoned, not run: attention of a rank takes {:.4g} ps a token and {:.4g} "
        "ps "
        "a pair, as timed above on equal lengths, and a step as long as its heaviest rank",
        weights_.token_ps, weights_.pair_ps));
  }

 private:
  /// Both directions, reported and added up.
  double attention(const std::string& name, const std::vector<int64_t>& lengths) {
    const LayerShape& s = settings_.layer;
    const AttentionCase c(w_, {offsets_of(lengths), s.heads, s.head_dim});
    double seconds = 0;
    const auto add = [&](Result r, const auto& work) {
      r.labels = {{"lengths", name}};
      r.shape.insert(r.shape.begin() + 1,
                     {"longest", *std::max_element(lengths.begin(), lengths.end())});
      r.timing = measure(c.exec(), settings_.repeats, work);
      seconds += r.timing.median();
      report_.add(r);
    };
    add(c.forward_result(), [&] { c.forward(); });
    add(c.backward_result(), [&] { c.backward(); });
    return seconds;
  }

  /// Equal lengths: what the kernel does at its best, and what a token and a pair of them cost.
  void calibrate() {
    std::vector<balance::Timing> timings;
    for (int64_t divisor = 8; divisor >= 1; divisor /= 2) {
      const int64_t length = std::max<int64_t>(1, batch_.longest / divisor);
      const double seconds =
          attention(fmt::format("equal, {}", length),
                    std::vector<int64_t>(static_cast<size_t>(batch_.sequences), length));
      const auto count = static_cast<double>(batch_.sequences);
      timings.push_back({count * static_cast<double>(length), count * pairs(length), seconds});
    }
    weights_ = balance::calibrate(timings);
  }

  static double pairs(int64_t length) {
    return static_cast<double>(attention::HstuMask{}.pairs(length, 1));
  }

  /// Samples of a step as they come, and partitioned: heaviest over mean rank, over a few steps.
  void balancing(const std::string& name, const data::Distribution& lengths, int64_t ranks) {
    double before = 0, after = 0, mean = 0;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const std::vector<int64_t> drawn = draw(lengths, ranks * batch_.sequences, 1 + step);
      std::vector<int64_t> costs(drawn.size());
      std::vector<int32_t> origins(drawn.size());
      std::vector<int64_t> own(static_cast<size_t>(ranks)), balanced(own);
      for (size_t i = 0; i < drawn.size(); ++i) {
        costs[i] = static_cast<int64_t>(weights_.token_ps * static_cast<double>(drawn[i]) +
                                        weights_.pair_ps * pairs(drawn[i]));
        origins[i] = static_cast<int32_t>(i / static_cast<size_t>(batch_.sequences));
        own[static_cast<size_t>(origins[i])] += costs[i];
      }
      const auto parts = balance::partition(costs, origins, ranks);
      for (size_t r = 0; r < parts.size(); ++r) {
        for (const int64_t i : parts[r]) balanced[r] += costs[static_cast<size_t>(i)];
      }
      before += balance::imbalance(own).over_mean / kSteps;
      after += balance::imbalance(balanced).over_mean / kSteps;
      mean += static_cast<double>(std::accumulate(own.begin(), own.end(), int64_t{0})) /
              static_cast<double>(ranks) / kSteps;
    }
    constexpr double kMsPerPs = 1e-9;
    Result r;
    r.name = "balancing, reckoned";
    r.labels = {{"lengths", name}};
    r.shape = {{"ranks", ranks}, {"sequences", batch_.sequences * ranks}};
    r.figures = {{"uneven_before", before},
                 {"uneven_after", after},
                 {"ms_before", before * mean * kMsPerPs},
                 {"ms_after", after * mean * kMsPerPs},
                 {"speed_up", before / after}};
    report_.add(r);
  }

  static constexpr int kSteps = 4;
  const Settings& settings_;
  Report& report_;
  Workspace w_;
  RankLengths batch_;
  balance::CostWeights weights_;
};

}  // namespace

void bench_lengths(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  LengthsBench(settings, report).run();
}

}  // namespace segue::bench
