// Samples, windows, shuffles and the user split of a stored event cache.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"
#include "data/store/event_store.h"
#include "data/store/windows.h"
#include "runner/cases.h"

namespace segue::golden {
namespace {

namespace fs = std::filesystem;
using Integers = std::vector<int64_t>;

/// Where files derived from a golden store go: never beside it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count = 0;
    path_ = fs::temp_directory_path() / fmt::format("segue-golden-{}-{}", ::getpid(), ++count);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::vector<data::CrossConfig> read_crosses(const Settings& settings) {
  std::vector<data::CrossConfig> crosses;
  try {
    for (const nlohmann::json& spec : nlohmann::json::parse(settings.json("cross_specs"))) {
      crosses.push_back({spec.at(0).get<std::string>(), spec.at(1).get<std::vector<std::string>>(),
                         spec.at(2).get<int64_t>(), spec.at(3).get<int64_t>()});
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt, fmt::format("setting `cross_specs`: {}", error.what()));
  }
  return crosses;
}

/// The event cache that a case refers to, with its anchors.
struct GoldenStore {
  explicit GoldenStore(const CaseContext& context)
      : settings(context.golden.settings()), store(path(context), schema(settings), index.path()) {}

  static std::string path(const CaseContext& context) {
    return (fs::path(context.folder) / context.golden.settings().text("cache")).string();
  }
  static data::SampleSchema schema(const Settings& settings) {
    data::SampleSchema schema = data::SampleSchema::yambda();
    if (settings.has("cross_specs")) schema.crosses = read_crosses(settings);
    return schema;
  }
  data::Anchors anchors() const { return store.anchors(settings.count("min_history", 0)); }
  data::StreamConfig stream_config() const {
    data::StreamConfig config;
    config.min_history = settings.count("min_history", 0);
    config.window_seconds = settings.positive("window_seconds");
    config.eval_windows = 0;
    return config;
  }

  const Settings& settings;
  TemporaryFolder index;
  data::EventStore store;
};

Integers anchor_numbers(const data::Anchors& anchors, const Integers& positions) {
  Integers numbers;
  for (const int64_t position : positions) {
    const auto found = std::ranges::lower_bound(anchors.positions, position);
    if (found == anchors.positions.end() || *found != position) {
      fail(ErrorCode::kCorrupt, fmt::format("event {} is no anchor", position));
    }
    numbers.push_back(found - anchors.positions.begin());
  }
  return numbers;
}

Shape flat(const Integers& values) { return {static_cast<int64_t>(values.size())}; }

/// Lists one after the other, as they are stored.
struct Concatenated {
  Integers offsets = {0};
  Integers values;

  void add(const Integers& list) {
    values.insert(values.end(), list.begin(), list.end());
    offsets.push_back(static_cast<int64_t>(values.size()));
  }
};

void check_fact(const CaseContext& context, std::string_view key, int64_t computed) {
  const Settings& settings = context.golden.settings();
  if (settings.has(key) && settings.integer(key) != computed) {
    context.checker.fail(
        fmt::format("setting `{}` is {}, but Segue has {}", key, settings.integer(key), computed));
  }
}

}  // namespace

void run_samples(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  const GoldenStore s(context);
  const data::Anchors anchors = s.anchors();
  check_fact(context, "num_items", s.store.num_items());

  Integers positions;
  for (const int64_t number : golden.ints("anchor_index")) {
    if (number < 0 || number >= static_cast<int64_t>(anchors.positions.size())) {
      fail(ErrorCode::kCorrupt, fmt::format("`anchor_index` has {}, but there are {} anchors",
                                            number, anchors.positions.size()));
    }
    positions.push_back(anchors.positions[static_cast<size_t>(number)]);
  }
  context.checker.check_ints("anchors", "anchor_pos", positions, flat(positions));

  data::GatherConfig config;
  config.history_length = settings.positive("history_length");
  config.scan_window = settings.positive("scan_window");
  config.max_history = settings.count("uih_budget", 0);
  const std::string strategy = settings.text("history_strategy");
  if (strategy == "last_n") {
    config.strategy = data::HistoryStrategy::kLastN;
  } else if (strategy != "interleaved") {
    fail(ErrorCode::kUnsupported, fmt::format("history strategy `{}` is not known", strategy));
  }
  const data::Gatherer gatherer(s.store, config);
  Integers sample_index(positions.size());
  std::iota(sample_index.begin(), sample_index.end(), 0);
  Batch batch;
  gatherer.fill(positions, sample_index, batch);
  batch.validate();

  Integers lengths;
  const std::span<const int64_t> offsets = batch.group("history").offsets.span();
  for (size_t i = 1; i < offsets.size(); ++i) lengths.push_back(offsets[i] - offsets[i - 1]);
  context.checker.check_ints("history", "uih_lengths", lengths, flat(lengths));
  for (const Batch::Column& column : batch.columns) {
    const std::string& group = batch.groups[static_cast<size_t>(column.group)].name;
    context.checker.check_ints(group, column.name, column.values.span(), {column.values.size()});
  }
  HostArray<int64_t> memory;
  for (const Batch::Attribute& attribute : batch.attributes) {
    const std::span<const int64_t> values = batch.values(attribute.name, memory);
    context.checker.check_ints("history", attribute.name, values,
                               {static_cast<int64_t>(values.size())});
  }
  Integers labels;
  for (const int64_t action : batch.column("item_action_weight").values.span()) {
    labels.push_back((action & 1) > 0 ? 1 : 0);
  }
  context.checker.check_ints("candidates", "label", labels, flat(labels));
}

void run_windows(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  Checker& checker = context.checker;
  const GoldenStore s(context);
  const data::Anchors anchors = s.anchors();
  const auto read = [&](const data::SampleStream& stream) {
    Concatenated windows;
    for (int64_t w = 0; w < stream.windows().num_windows(); ++w) {
      windows.add(anchor_numbers(anchors, stream.train_positions(w)));
    }
    return windows;
  };
  const Integers ranges = golden.ints("ranges");
  const auto check_totals = [&](const data::SampleStream& stream, const std::string& name) {
    Integers totals;
    for (size_t r = 0; r + 1 < ranges.size(); r += 2) {
      totals.push_back(stream.total_train_samples(ranges[r], ranges[r + 1]));
    }
    checker.check_ints("totals", name, totals, flat(totals));
  };
  const auto check_holdout = [&](data::StreamConfig config, const std::string& name) {
    config.eval_window = settings.count("eval_holdout_start", 0);
    config.eval_windows = settings.positive("eval_holdout_num");
    const data::SampleStream stream(s.store, config);
    const Integers held_out = anchor_numbers(anchors, stream.eval_positions());
    checker.check_ints("holdout", name, held_out, flat(held_out));
  };

  const data::StreamConfig config = s.stream_config();
  {
    const data::SampleStream stream(s.store, config);
    check_fact(context, "num_windows", stream.windows().num_windows());
    check_fact(context, "num_anchors", stream.windows().num_anchors());
    check_fact(context, "t_min", stream.windows().t_min());
    check_fact(context, "t_max", stream.windows().t_max());
    const Concatenated windows = read(stream);
    checker.check_ints("windows", "window_offsets", windows.offsets, flat(windows.offsets));
    checker.check_ints("windows", "window_indices", windows.values, flat(windows.values));
    check_totals(stream, "total_train_anchors");
    check_holdout(config, "eval_holdout");
  }
  {
    data::StreamConfig by_time = config;
    by_time.sort_by_time = true;
    const Concatenated windows = read(data::SampleStream(s.store, by_time));
    checker.check_ints("by time", "window_indices_by_time", windows.values, flat(windows.values));
  }
  for (const int64_t salt : settings.integers("salts")) {
    data::StreamConfig split = config;
    split.train_share = settings.number("train_split_percentage");
    split.split_salt = salt;
    const std::string ending = fmt::format("_salt{}", salt);
    const data::UserSplit users{split.train_share, static_cast<uint64_t>(salt)};
    Integers mask;
    for (const int64_t position : anchors.positions) {
      mask.push_back(users.is_eval(s.store.users()[static_cast<size_t>(position)]) ? 1 : 0);
    }
    checker.check_ints("users", "eval_anchor_mask" + ending, mask, flat(mask));
    const data::SampleStream stream(s.store, split);
    const Concatenated windows = read(stream);
    checker.check_ints("users", "train_window_offsets" + ending, windows.offsets,
                       flat(windows.offsets));
    checker.check_ints("users", "train_window_indices" + ending, windows.values,
                       flat(windows.values));
    check_totals(stream, "total_train_anchors" + ending);
    check_holdout(split, "eval_holdout" + ending);
  }
}

/// The stored orders come from a generator that Segue does not have: what both must share is that
/// anchors stay inside their segments.
void run_window_shuffle(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  const GoldenStore s(context);
  const data::Anchors anchors = s.anchors();
  const data::SampleStream plain(s.store, s.stream_config());
  for (const double fraction : settings.numbers("fractions")) {
    data::StreamConfig config = s.stream_config();
    config.shuffle_fraction = fraction;
    config.shuffle_seed = settings.integer("shuffle_seed", 0);
    const data::SampleStream shuffled(s.store, config);
    for (const int64_t window : settings.integers("windows")) {
      if (window < 0 || window >= plain.windows().num_windows()) {
        fail(ErrorCode::kCorrupt, fmt::format("there is no window {}", window));
      }
      const std::string name = fmt::format("frac{}_window{}", std::lround(100 * fraction), window);
      const Integers before = anchor_numbers(anchors, plain.train_positions(window));
      const int64_t segment = data::shuffle_segment(static_cast<int64_t>(before.size()), fraction);
      // With every segment sorted, both orders must be the window's own.
      const auto sorted = [&](Integers order) {
        for (size_t at = 0; at < order.size(); at += static_cast<size_t>(segment)) {
          const size_t end = std::min(order.size(), at + static_cast<size_t>(segment));
          std::sort(order.begin() + static_cast<int64_t>(at),
                    order.begin() + static_cast<int64_t>(end));
        }
        return order;
      };
      const Integers own = anchor_numbers(anchors, shuffled.train_positions(window));
      const Integers stored = golden.ints(name, flat(before));
      const auto compare = [&](std::string_view group, const Integers& order) {
        const Integers in_segments = sorted(order);
        const std::vector<double> computed(in_segments.begin(), in_segments.end());
        const Values expected{{before.begin(), before.end()}, flat(before)};
        context.checker.check_against(group, name, computed, expected, Level::kExact);
      };
      compare("stored order", stored);
      compare("own order", own);
      if (own == before && before.size() > 20 && segment > 10) {
        context.checker.fail(fmt::format("{}: the shuffle moved nothing", name));
      }
    }
  }
}

void run_user_split(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  const Integers users = golden.ints("uid");
  for (const int64_t salt : settings.integers("salts")) {
    std::vector<double> hashes;
    for (const int64_t uid : users) {
      hashes.push_back(data::UserSplit::hash(uid, static_cast<uint64_t>(salt)));
    }
    context.checker.check("hash", fmt::format("hash_salt{}", salt), hashes, flat(users),
                          Level::kExact);
    for (const double share : settings.numbers("train_split_percentages")) {
      const data::UserSplit split{share, static_cast<uint64_t>(salt)};
      Integers held_out;
      for (const int64_t uid : users) held_out.push_back(split.is_eval(uid) ? 1 : 0);
      context.checker.check_ints(
          "held out", fmt::format("eval_user_salt{}_t{}", salt, std::lround(100 * share)), held_out,
          flat(users));
    }
  }
}

}  // namespace segue::golden
