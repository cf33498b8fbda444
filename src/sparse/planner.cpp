#include "sparse/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/progress.h"
#include "sparse/planner_loads.h"
#include "sparse/planner_words.h"

namespace segue::sparse {
namespace {

using base::format_bytes;
using ops::RowOptimizer;

/// A copy everywhere is cheap below this, in memory and in gradients that go to everyone.
constexpr double kTinyBytes = 1 << 20;
/// A rank may have this much more than the mean.
constexpr double kUneven = 1.25;
/// Below this share of its memory a rank has room to spare.
constexpr double kPlenty = 0.6;
/// One table may take this much of a rank's room for tables, or the mean of all ranks.
constexpr double kLargestShare = 0.25;
/// Column blocks are not cut narrower: 32 floats are one line of memory.
constexpr int64_t kNarrowestBlock = 32;

class Planner {
 public:
  explicit Planner(const PlannerInput& input) : in_(input) {
    check_input(in_);
    for (const PlannerInput::Fixed& f : in_.fixed) fixed_ += f.bytes;
    choices_.resize(in_.tables.size());
    for (size_t t = 0; t < choices_.size(); ++t) {
      choices_[t].tier = tier_of(in_.tables[t].placement);
    }
  }

  PlannedTables run() {
    settle();
    while (!out_.fits() && spill()) settle();
    share_caches();
    out_.plan.ranks = in_.ranks;
    for (size_t t = 0; t < choices_.size(); ++t) out_.plan.tables[t].reason = reason(t);
    if (!out_.fits()) advise();
    return std::move(out_);
  }

 private:
  /// Why a table does not lie whole on one rank.
  enum class Cause { kTraffic, kSize, kRoom };
  struct Choice {
    Sharding sharding = Sharding::kRow;
    Tier tier = Tier::kDevice;
    bool spilled = false;    // for want of device memory
    int64_t cache_rows = 0;  // of each owner; 0: as few as possible
    Cause cause = Cause::kTraffic;
  };

  // ---- what a table takes ----

  double bytes_of(size_t t) const { return table_bytes(in_, t); }
  double traffic_of(size_t t) const { return table_traffic(in_, t); }

  // ---- who owns it ----

  /// How loaded a rank is, in means of all ranks.
  double score(int rank) const {
    const RankLoad& r = out_.ranks[static_cast<size_t>(rank)];
    return (r.tables + r.optimizer) / mean_bytes_ + r.traffic() / mean_traffic_;
  }

  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<size_t>(in_.ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  std::vector<int> machine(int m) const {
    const int first = m * in_.ranks_per_machine;
    std::vector<int> ranks(static_cast<size_t>(std::min(in_.ranks_per_machine, in_.ranks - first)));
    std::iota(ranks.begin(), ranks.end(), first);
    return ranks;
  }
  int machines() const { return (in_.ranks + in_.ranks_per_machine - 1) / in_.ranks_per_machine; }

  std::vector<int> owners(size_t t, Sharding sharding) const {
    std::vector<int> ranks = all_ranks();
    const auto less_loaded = [this](int a, int b) { return score(a) < score(b); };
    switch (sharding) {
      case Sharding::kTable:
        return {*std::ranges::min_element(ranks, less_loaded)};
      case Sharding::kTableRow: {
        std::vector<int> best = machine(0);
        const auto fullest = [this](const std::vector<int>& m) {
          double most = 0;
          for (const int r : m) most = std::max(most, score(r));
          // Fewer ranks take more each.
          return most * in_.ranks_per_machine / static_cast<double>(m.size());
        };
        for (int m = 1; m < machines(); ++m) {
          if (fullest(machine(m)) < fullest(best)) best = machine(m);
        }
        return best;
      }
      case Sharding::kColumn: {
        const int64_t dim = in_.tables[t].dim;
        const int64_t blocks = std::clamp<int64_t>(dim / kNarrowestBlock, std::min<int64_t>(2, dim),
                                                   static_cast<int64_t>(in_.ranks));
        std::ranges::stable_sort(ranks, less_loaded);
        ranks.resize(static_cast<size_t>(std::min<int64_t>(blocks, in_.ranks)));
        std::ranges::sort(ranks);
        return ranks;
      }
      default:
        return ranks;
    }
  }

  /// Places all tables: first what leaves no choice of owners, then the rest, largest first.
  void place() {
    out_.plan.tables.assign(in_.tables.size(), {});
    out_.tables.assign(in_.tables.size(), {});
    out_.ranks.assign(static_cast<size_t>(in_.ranks), {});
    for (RankLoad& r : out_.ranks) r.fixed = fixed_;
    std::vector<size_t> order(in_.tables.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto free_choice = [this](size_t t) {
      const Sharding s = choices_[t].sharding;
      return s != Sharding::kRow && s != Sharding::kReplicated;
    };
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      if (free_choice(a) != free_choice(b)) return free_choice(b);
      return bytes_of(a) > bytes_of(b);
    });
    for (const size_t t : order) {
      TablePlacement& p = out_.plan.tables[t];
      p.sharding = choices_[t].sharding;
      p.tier = choices_[t].tier;
      p.ranks = owners(t, p.sharding);
      p.cache_rows = cache_rows(t, p);
      add_memory(in_, t, p, out_);
      add_exchange(in_, t, p, out_);
    }
    out_.missing_device = out_.missing_host = 0;
    for (const RankLoad& r : out_.ranks) {
      if (in_.device_bytes > 0) {
        out_.missing_device = std::max(out_.missing_device, r.device() - in_.device_bytes);
      }
      if (in_.host_bytes > 0) {
        out_.missing_host = std::max(out_.missing_host, r.host - in_.host_bytes);
      }
    }
  }

  // ---- caches ----

  int64_t least_rows(size_t t, const TablePlacement& p) const {
    return least_cache_rows(in_, t, p.sharding, std::ssize(p.ranks));
  }
  /// Of each owner.
  int64_t cache_rows(size_t t, const TablePlacement& p) const {
    if (p.tier == Tier::kDevice) return 0;
    const int64_t least = least_rows(t, p);
    if (in_.tables[t].cache_share == 0) return std::max(least, choices_[t].cache_rows);
    const LocalShard shard = local_shard(p, in_.tables[t].rows, in_.tables[t].dim, p.ranks.front());
    return std::max<int64_t>(
        1, std::llround(in_.tables[t].cache_share * static_cast<double>(shard.rows())));
  }

  /// The memory that is left goes to the caches that may grow, to each what its traffic is of
  /// theirs, as far as host memory has room for their indices. Where nobody knows how much there
  /// is, they hold a tenth of their tables.
  void share_caches() {
    constexpr double kShareOfLeft = 0.8, kShareOfRows = 0.1, kIndexShareOfHost = 0.1;
    std::vector<size_t> caches;
    double traffic = 0;
    for (size_t t = 0; t < choices_.size(); ++t) {
      const bool grows = choices_[t].tier == Tier::kCached || choices_[t].tier == Tier::kFile;
      if (!grows || in_.tables[t].cache_share > 0) continue;
      caches.push_back(t);
      traffic += traffic_of(t);
    }
    if (caches.empty()) return;
    double left = 0;
    if (in_.device_bytes > 0) {
      left = kShareOfLeft *
             (in_.device_bytes - out_.ranks[static_cast<size_t>(out_.fullest())].device());
    }
    for (const size_t t : caches) {
      const TablePlacement& p = out_.plan.tables[t];
      const LocalShard shard =
          local_shard(p, in_.tables[t].rows, in_.tables[t].dim, p.ranks.front());
      const double owners = static_cast<double>(p.ranks.size());
      const auto rows = static_cast<double>(shard.rows());
      const double row_bytes = bytes_of(t) / owners / std::max(1.0, rows);
      const double share =
          traffic > 0 ? traffic_of(t) / traffic : 1 / static_cast<double>(caches.size());
      double more = in_.device_bytes > 0 ? left * share / row_bytes : kShareOfRows * rows;
      if (in_.host_bytes > 0) {
        more = std::min(more, kIndexShareOfHost * in_.host_bytes * share /
                                  static_cast<double>(kCacheIndexBytesPerRow));
      }
      choices_[t].cache_rows = std::llround(
          std::min(rows, static_cast<double>(least_rows(t, p)) + std::max(0.0, std::floor(more))));
    }
    place();
  }

  // ---- how it is shared ----

  void choose_first() {
    double bytes = 0, traffic = 0;
    for (size_t t = 0; t < in_.tables.size(); ++t) {
      if (choices_[t].tier == Tier::kDevice) bytes += bytes_of(t);
      traffic += 2 * traffic_of(t);
    }
    mean_bytes_ = std::max(1.0, bytes / in_.ranks);
    mean_traffic_ = std::max(1.0, traffic);  // every rank asks and serves once
    const double room = std::max(mean_bytes_, kLargestShare * (in_.device_bytes - fixed_));
    for (size_t t = 0; t < in_.tables.size(); ++t) {
      Choice& c = choices_[t];
      c.cause = bytes_of(t) > room ? Cause::kSize : Cause::kTraffic;
      c.sharding = in_.tables[t].sharding;
      if (c.sharding != Sharding::kAuto) continue;
      const double others = in_.ranks - 1;
      const bool tiny = bytes_of(t) <= kTinyBytes && others * traffic_of(t) <= kTinyBytes;
      const bool light = others * traffic_of(t) <= mean_traffic_;
      if (in_.ranks == 1) {
        c.sharding = Sharding::kTable;
      } else if (tiny && c.tier == Tier::kDevice && !in_.tables[t].dynamic) {
        c.sharding = Sharding::kReplicated;
      } else if (c.tier != Tier::kDevice || bytes_of(t) > room * in_.ranks_per_machine) {
        c.sharding = Sharding::kRow;
      } else {
        const bool whole = light && c.cause != Cause::kSize;
        c.sharding = whole ? Sharding::kTable : wider(Sharding::kTable);
      }
    }
  }

  Sharding wider(Sharding s) const {
    const bool within = s == Sharding::kTable && machines() > 1 && in_.ranks_per_machine > 1;
    return within ? Sharding::kTableRow : Sharding::kRow;
  }

  /// Splits the table that loads a rank most and was not asked to be where it is; false: there
  /// is none.
  template <class Load>
  bool spread_from(int rank, Cause cause, Load load) {
    size_t worst = in_.tables.size();
    for (size_t t = 0; t < in_.tables.size(); ++t) {
      const TablePlacement& p = out_.plan.tables[t];
      const bool movable = in_.tables[t].sharding == Sharding::kAuto &&
                           (p.sharding == Sharding::kTable || p.sharding == Sharding::kTableRow);
      if (!movable || std::ranges::find(p.ranks, rank) == p.ranks.end()) continue;
      if (worst == in_.tables.size() || load(t) > load(worst)) worst = t;
    }
    if (worst == in_.tables.size()) return false;
    Choice& c = choices_[worst];
    c.sharding = wider(c.sharding);
    if (c.cause != Cause::kSize) c.cause = cause;
    return true;
  }

  /// From whole tables towards rows everywhere, until no rank has too much.
  void settle() {
    choose_first();
    do {
      place();
    } while (in_.ranks > 1 && spread());
  }

  /// One table less on a rank that has too much of something; false: all is well, or nothing helps.
  bool spread() {
    const int full = out_.fullest();
    const auto bytes = [this](size_t t) { return bytes_of(t); };
    if (out_.missing_device > 0) {
      return spread_from(full, Cause::kRoom, bytes) || spread_copy();
    }
    if (uneven_memory(full) && spread_from(full, Cause::kRoom, bytes)) return true;
    const auto busiest = std::ranges::max_element(out_.ranks, {}, &RankLoad::traffic);
    double traffic = 0;
    for (const RankLoad& r : out_.ranks) traffic += r.traffic();
    const bool uneven = busiest->traffic() > kUneven * traffic / in_.ranks;
    return uneven && spread_from(static_cast<int>(busiest - out_.ranks.begin()), Cause::kTraffic,
                                 [this](size_t t) { return traffic_of(t); });
  }

  /// Uneven memory does not matter as long as there is plenty of it.
  bool uneven_memory(int full) const {
    const RankLoad& r = out_.ranks[static_cast<size_t>(full)];
    const bool plenty = in_.device_bytes > 0 && r.device() < kPlenty * in_.device_bytes;
    return !plenty && r.tables + r.optimizer > kUneven * mean_bytes_;
  }

  /// Copies are split last: they are tiny.
  bool spread_copy() {
    for (size_t t = 0; t < choices_.size(); ++t) {
      const bool copied = in_.tables[t].sharding == Sharding::kAuto &&
                          choices_[t].sharding == Sharding::kReplicated;
      if (!copied) continue;
      choices_[t].sharding = Sharding::kRow;
      choices_[t].cause = Cause::kRoom;
      return true;
    }
    return false;
  }

  /// Sends the table whose rows are needed least per byte to host memory, if it has room, or into
  /// a file.
  bool spill() {
    if (out_.missing_device <= 0) return false;
    double host = 0;
    for (const RankLoad& r : out_.ranks) host = std::max(host, r.host);
    const auto fits_host = [&](size_t t) {
      return host + bytes_of(t) / in_.ranks <= in_.host_bytes;
    };
    size_t coldest = in_.tables.size();
    const auto heat = [this](size_t t) { return traffic_of(t) / bytes_of(t); };
    for (size_t t = 0; t < in_.tables.size(); ++t) {
      const TableDemand& d = in_.tables[t];
      if (d.placement != TierChoice::kAuto || choices_[t].tier != Tier::kDevice) continue;
      if (d.sharding == Sharding::kReplicated) continue;
      if (!fits_host(t) && !in_.files) continue;
      // Of a table that batches use all the time nothing would be saved.
      if (least_cache_rows(in_, t, Sharding::kRow, in_.ranks) >= d.rows / in_.ranks) continue;
      if (coldest == in_.tables.size() || heat(t) < heat(coldest)) coldest = t;
    }
    if (coldest == in_.tables.size()) return false;
    choices_[coldest].tier = fits_host(coldest) ? Tier::kCached : Tier::kFile;
    choices_[coldest].spilled = true;
    return true;
  }

  // ---- words ----

  std::string why(size_t t) const {
    const TableDemand& d = in_.tables[t];
    const Choice& c = choices_[t];
    if (d.sharding != Sharding::kAuto) return "as the config asks";
    if (in_.ranks == 1) return "there is only one";
    const std::string ids = fmt::format("{:.0f} different ids a step and rank", d.distinct);
    switch (c.sharding) {
      case Sharding::kReplicated:
        return fmt::format("{} are too little to fetch from elsewhere", format_bytes(bytes_of(t)));
      case Sharding::kTable:
        return fmt::format("{} fit there, and {} load it no more than others",
                           format_bytes(bytes_of(t)), ids);
      case Sharding::kTableRow:
        return c.cause == Cause::kTraffic
                   ? fmt::format("{} would load one rank more than others, not a machine", ids)
                   : fmt::format("{} are too much for one rank, {} not too much for a machine",
                                 format_bytes(bytes_of(t)), ids);
      default:
        if (c.cause == Cause::kTraffic) {
          return fmt::format("{} would load one owner more than others", ids);
        }
        return c.cause == Cause::kSize
                   ? fmt::format("{} are more than a rank's share", format_bytes(bytes_of(t)))
                   : fmt::format("whole, its {} would make one rank much fuller than others",
                                 format_bytes(bytes_of(t)));
    }
  }

  std::string reason(size_t t) const {
    const TablePlacement& p = out_.plan.tables[t];
    std::string text = how_shared(p) + ": " + why(t);
    if (p.tier != Tier::kDevice) {
      const bool file = p.tier == Tier::kFile;
      text += fmt::format("; in {} behind a cache of {} rows per owner, {}",
                          file ? "a file" : "host memory", p.cache_rows,
                          !choices_[t].spilled
                              ? "as the config asks"
                              : fmt::format("because {} memory does not hold all tables and this "
                                            "one's rows are needed least",
                                            file ? "device and host" : "device"));
    }
    if (in_.tables[t].dynamic) {
      text += fmt::format("; {}grows to {} rows at most, which is what is planned for",
                          p.tier == Tier::kDevice ? "" : "its index is in host memory; it ",
                          in_.tables[t].rows);
    }
    return text;
  }

  /// The same tables with something changed; true if that fits.
  template <class Change>
  bool would_fit(Change change) const {
    PlannerInput other = in_;
    change(other);
    return Planner(other).run_quietly().fits();
  }
  PlannedTables run_quietly() {
    settle();
    while (!out_.fits() && spill()) settle();
    return std::move(out_);
  }

  void advise() {
    std::vector<std::string>& advice = out_.advice;
    double all = 0, state = 0;
    size_t largest = 0;
    for (size_t t = 0; t < in_.tables.size(); ++t) {
      all += bytes_of(t);
      if (bytes_of(t) > bytes_of(largest)) largest = t;
      const TableDemand& d = in_.tables[t];
      const int64_t surplus =
          std::max<int64_t>(0, ops::row_state_size(d.optimizer, d.dim) -
                                   ops::row_state_size(RowOptimizer::kRowwiseAdagrad, d.dim));
      state += static_cast<double>(d.rows * in_.value_bytes) * static_cast<double>(surplus);
    }
    const bool asked = std::ranges::any_of(
        in_.tables, [](const TableDemand& d) { return d.sharding != Sharding::kAuto; });
    if (asked && would_fit([](PlannerInput& i) {
          for (TableDemand& d : i.tables) d.sharding = Sharding::kAuto;
        })) {
      advice.push_back("it fits with sharding = \"auto\" for every table");
    }
    if (const int ranks = ranks_that_fit(); ranks > 0) {
      advice.push_back(fmt::format("it fits on {} ranks of this size", ranks));
    } else if (fixed_ >= in_.device_bytes) {
      advice.push_back(
          fmt::format("{} of every rank go to other things than tables, more than it has",
                      format_bytes(fixed_)));
    }
    if (in_.host_bytes <= 0) {
      const double host = std::ceil(all / in_.ranks / base::kGib) * base::kGib;
      if (would_fit([&](PlannerInput& i) { i.host_bytes = host; })) {
        advice.push_back(
            fmt::format("with up to {} of host memory per rank (--host) some tables "
                        "could lie there",
                        format_bytes(host)));
      }
    }
    if (state > 0) {
      advice.push_back(fmt::format("sparse.optimizer = \"rowwise_adagrad\" saves {} per rank",
                                   format_bytes(state / in_.ranks)));
    }
    for (const PlannerInput::Fixed& f : in_.fixed) {
      if (f.knob.empty() || f.bytes < out_.missing_device / 8) continue;
      advice.push_back(fmt::format("{} take {} per rank: {}", to_string(f.purpose),
                                   format_bytes(f.bytes), f.knob));
    }
    advice.push_back(fmt::format("fewer rows: table `{}` is {:.0f} % of all tables",
                                 in_.tables[largest].name, 100 * bytes_of(largest) / all));
  }

  /// 0: none up to a large number.
  int ranks_that_fit() const {
    constexpr int kMost = 1 << 16;
    double all = 0;
    for (size_t t = 0; t < in_.tables.size(); ++t) all += bytes_of(t);
    const double room = in_.device_bytes - fixed_;
    if (room <= 0 || in_.ranks >= kMost) return 0;
    const double least = std::max(in_.ranks + 1.0, std::ceil(all / room));
    // Exchange buffers come on top of the bound: a few steps of 5 %.
    for (double ranks = least; ranks <= kMost && ranks < 2 * least + 2;
         ranks = std::max(ranks + 1, std::ceil(ranks * 1.05))) {
      const int n = static_cast<int>(ranks);
      if (would_fit([n](PlannerInput& i) { i.ranks = n; })) return n;
    }
    return 0;
  }

  PlannerInput in_;
  double fixed_ = 0;
  double mean_bytes_ = 1, mean_traffic_ = 1;
  std::vector<Choice> choices_;
  PlannedTables out_;
};

}  // namespace

int PlannedTables::fullest() const {
  const auto at = std::ranges::max_element(ranks, {}, &RankLoad::device);
  return static_cast<int>(at - ranks.begin());
}

PlannedTables plan_tables(const PlannerInput& input) { return Planner(input).run(); }

}  // namespace segue::sparse
