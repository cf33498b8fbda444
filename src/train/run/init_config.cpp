#include "train/run/init_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/config_tree.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/time.h"
#include "data/inspect/feature_summary.h"
#include "data/inspect/id_ranges.h"
#include "data/inspect/inspect.h"
#include "data/numbers/user_counts.h"
#include "data/store/event_log.h"
#include "train/plan/memory_plan.h"
#include "train/run_config.h"

namespace segue::train {
namespace {

constexpr int64_t kHour = 3600, kDay = 24 * kHour;

/// How training cuts the log: windows of one length, of which the last ones are held out.
struct Windows {
  int64_t seconds = kDay;
  int64_t held_out = 1;          // windows
  int64_t held_out_samples = 0;  // in them
  int64_t train_windows = 0, train_samples = 0;
};

/// Windows of `seconds` over ascending times: as many of the newest are held out, at most a fifth,
/// as have `wanted` samples.
Windows cut(const std::vector<int64_t>& times, int64_t seconds, int64_t wanted) {
  const auto samples = static_cast<int64_t>(times.size());
  const int64_t windows = (times.back() - times.front()) / seconds + 1;
  Windows w{.seconds = seconds, .held_out = 0};
  while (w.held_out_samples < wanted && w.held_out < std::max<int64_t>(1, windows / 5)) {
    ++w.held_out;
    const int64_t from = times.front() + (windows - w.held_out) * seconds;
    w.train_samples = std::ranges::lower_bound(times, from) - times.begin();
    w.held_out_samples = samples - w.train_samples;
  }
  w.train_windows = windows - w.held_out;
  return w;
}

/// The shortest common length whose windows have samples for batches, and hold out enough to know
/// an AUC by; short logs are cut into hours.
Windows choose_windows(const data::EventStore& store, int64_t min_history) {
  constexpr int64_t kFewInAWindow = 1000;
  std::vector<int64_t> times;
  const data::EventLog log(store);
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::span<const int64_t> piece = log.piece(p).anchors(min_history).timestamps;
    times.insert(times.end(), piece.begin(), piece.end());
  }
  std::ranges::sort(times);
  const int64_t span = times.back() - times.front();
  if (span == 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{}: all events that may be predicted are of one second, {}, so none of them "
                     "can be held out as later ones; is the column of times right?",
                     store.folder(), times.front()));
  }
  const int64_t wanted =
      std::clamp<int64_t>(static_cast<int64_t>(times.size()) / 50, 2000, 200'000);
  Windows best = cut(times, span / 5 + 1, wanted);
  for (const int64_t seconds :
       {kHour, 6 * kHour, kDay, 7 * kDay, 30 * kDay, 90 * kDay, 365 * kDay}) {
    if ((seconds < kDay && span > 10 * kDay) || seconds > span / 5) continue;
    const Windows w = cut(times, seconds, wanted);
    if (w.held_out_samples > best.held_out_samples) best = w;
    if (w.held_out_samples >= wanted && w.train_samples >= kFewInAWindow * w.train_windows) {
      return w;
    }
  }
  return best;
}

/// Sizes that suit a number of samples; more than that is not better on little data.
struct Size {
  int64_t dim, heads, layers, tokens, batch;
};
Size choose_size(const Windows& windows) {
  const int64_t samples = windows.train_samples;
  Size size = samples < 3'000'000    ? Size{32, 2, 2, 64, 128}
              : samples < 50'000'000 ? Size{64, 2, 3, 128, 256}
                                     : Size{256, 4, 3, 512, 512};
  const int64_t mean = samples / std::max<int64_t>(1, windows.train_windows);
  while (size.batch > 16 && size.batch > mean / 4) size.batch /= 2;
  return size;
}

std::string share_text(double share) { return fmt::format("{:.1f} % of events", 100 * share); }

std::string count_text(int64_t count) { return base::with_separators(std::to_string(count)); }

/// Attributes by name, and how many values each has.
std::vector<std::pair<std::string, int64_t>> features_of(
    const std::vector<data::AttributeConfig>& attributes) {
  std::vector<std::pair<std::string, int64_t>> all;
  for (size_t a = 0, columns = 0; a < attributes.size(); a += columns) {
    columns = data::columns_of(attributes, a);
    all.emplace_back(columns == 1 ? attributes[a].name : attributes[a].bag, columns);
  }
  return all;
}

/// As many digits as keep it within a hundredth of a deviation.
std::string offset_text(double offset, double deviation) {
  constexpr int kDigits = 4, kOfFloat = 9;
  if (!(deviation > 0)) return fmt::format("{:.{}g}", offset, kOfFloat);
  const double more = std::floor(std::log10(std::max(1.0, std::abs(offset) / deviation)));
  return fmt::format("{:.{}g}", offset, kDigits + static_cast<int>(more));
}

/// Tables by the columns that read them: artist of artist_id, unless another is called so.
class TableNames {
 public:
  explicit TableNames(const data::SampleSchema& schema) {
    add("uid", "user");
    add("item_id", "item");
    for (const data::CrossConfig& cross : schema.crosses) add(cross.name, cross.name);
    for (const auto* of : {&schema.attributes, &schema.user_attributes}) {
      for (const auto& [name, values] : features_of(*of)) {
        add(name, data::AttributeConfig{.name = name}.stem());
      }
    }
  }
  const std::string& operator[](const std::string& column) const { return names_.at(column); }

 private:
  void add(const std::string& column, std::string name) {
    if (taken_.contains(name)) name = column;
    while (!taken_.insert(name).second) name += "_";
    names_[column] = std::move(name);
  }
  std::set<std::string> taken_;
  std::map<std::string, std::string> names_;
};

std::string values_text(int64_t values) {
  return values == 1 ? "" : fmt::format(", values = {}", values);
}

class Writer {
 public:
  Writer(const std::string& path, const data::EventStore& store, const data::StoreSummary& summary)
      : path_(path),
        store_(store),
        summary_(summary),
        tables_(store.schema()),
        min_history_(summary.windows.front().min_history),
        windows_(choose_windows(store, min_history_)),
        size_(choose_size(windows_)) {}

  std::string text() {
    head();
    model();
    tables();
    rest();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }

  void head() {
    line("# A ranker for {}: {} events of {} users on {} items, {} to {}.", path_,
         count_text(summary_.events), count_text(summary_.users), count_text(summary_.items_seen),
         base::iso_time(summary_.first_time), base::iso_time(summary_.last_time));
    line("#");
    line("#   segue train THIS_FILE --run runs/first     # again: resumes");
    line("#   segue eval runs/first --baselines          # against simple rules");
    line("#   segue report runs/first");
    line("#");
    line(
        "# A sample is an event with at least {} earlier ones of its user, and the history before "
        "it:",
        min_history_);
    line(
        "# {} to train on, {} held out, the newest ones. `segue config THIS_FILE` prints all "
        "keys.",
        count_text(windows_.train_samples), count_text(windows_.held_out_samples));
  }

  void model() {
    const data::SampleSchema& schema = store_.schema();
    line("\n[model]");
    line("dim = {}                  # width of a token", size_.dim);
    line("heads = {}", size_.heads);
    line("qk_dim = {}               # query and key width of a head", size_.dim / size_.heads);
    line("v_dim = {}                # value and gate width of a head", size_.dim / size_.heads);
    line("layers = {}", size_.layers);
    line("hidden = {0}\nitem_hidden = {0}\nhead_hidden = {0}", size_.dim);
    line(
        "max_seq_len = {}          # tokens of a sample: contextual + history + candidate; "
        "histories have {:.0f} events on average",
        size_.tokens, summary_.history.lengths.mean);
    line("position_buckets = {}", 2 * size_.tokens);
    line("time_buckets = 256");
    line("input_dropout = 0.0\ndropout = 0.0\n");
    line("item = {{ history = \"item_id\", candidate = \"item_candidate_id\", table = \"item\" }}");
    if (!schema.attributes.empty()) {
      line("additional = [           # functions of the item");
      for (const auto& [name, values] : features_of(schema.attributes)) {
        line(
            "  {{ history = \"{0}\", candidate = \"item_candidate_{0}\", table = \"{1}\"{2} }},{3}",
            name, tables_[name], values_text(values), values == 1 ? "" : "  # a sum of rows");
      }
      line("]");
    }
    line("contextual = [           # each becomes a token in front of the history");
    line("  {{ name = \"uid\", table = \"{}\" }},", tables_["uid"]);
    for (const auto& [name, values] : features_of(schema.user_attributes)) {
      line("  {{ name = \"{}\", table = \"{}\"{} }},  # of the user", name, tables_[name],
           values_text(values));
    }
    for (const data::CrossConfig& cross : schema.crosses) {
      line("  {{ name = \"{}\", table = \"{}\" }},  # hash of {}", cross.name, tables_[cross.name],
           fmt::join(cross.keys, ", "));
    }
    line("]");
    tasks();
  }

  /// The bit that is predicted, the others as comments.
  void tasks() {
    const data::SampleSchema& schema = store_.schema();
    std::string weights;
    line("\n# What is predicted: a bit of the candidate's label.");
    line("tasks = [");
    for (size_t p = 0; p < schema.pools.size(); ++p) {
      const data::PoolConfig& pool = schema.pools[p];
      const bool predicted = schema.label_pool.empty() ? p == 0 : pool.name == schema.label_pool;
      line("  {}{{ name = \"{}\", bit = {} }},  # {}", predicted ? "" : "# ", pool.name, pool.bit,
           share_text(summary_.pools[p].share));
      if (pool.known_after_seconds > 0) continue;  // no part of histories
      weights += fmt::format("{}{}", weights.empty() ? "" : ", ", pool.bit);
    }
    line("]");
    line("\n[model.action]           # what the user did with an event of the history");
    line("history = \"action_weight\"\nweights = [{}]\ndim = 8", weights);
    numbers();
  }

  void numbers() {
    const data::SampleSchema& schema = store_.schema();
    // Of several values the first one is counted: they say much the same.
    data::SampleSchema counted = schema;
    std::erase_if(counted.attributes, [](const data::AttributeConfig& a) {
      return !a.bag.empty() && a.name != a.bag + "_1";
    });
    // An attribute called user or session has rates that are called like those of users.
    std::vector<std::string> columns, outcomes;
    for (const std::string& name : data::count_names(counted)) {
      if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
    }
    for (const data::NumberConfig& number : schema.numbers) {
      (number.outcome ? outcomes : columns).push_back(number.name);
    }
    line(
        "\n[model.numeric]          # counts of what happened before a candidate "
        "(docs/features.md){}",
        schema.numbers.empty() ? "" : ", and the log's own numbers");
    line("columns = [\"{}\"]", fmt::join(columns, "\", \""));
    line("hidden = 64");
    if (!outcomes.empty()) {
      line("tokens = true            # of the history: they alone may know outcomes");
      line("outcomes = [\"{}\"]", fmt::join(outcomes, "\", \""));
    }
    if (schema.numbers.empty()) return;
    line("forms = [                # to a mean of 0 and a deviation of 1; or shape = \"buckets\"");
    for (const data::NumberSummary& n : data::summarize_numbers(store_)) {
      // What spreads over powers of ten is told apart by its logarithm.
      const bool log = n.min >= 0 && n.max > 10 * (n.mean + n.deviation);
      const double offset = log ? n.log_mean : n.mean;
      const double deviation = log ? n.log_deviation : n.deviation;
      line(
          "  {{ column = \"{}\", shape = \"{}\", offset = {}, scale = {:.4g} }},  "
          "# from {:g} to {:g}, {:.1f} % missing",
          n.name, log ? "log" : "identity", offset_text(offset, deviation),
          deviation > 0 ? 1 / deviation : 1.0, n.min, n.max,
          100 * static_cast<double>(n.missing) / static_cast<double>(n.events));
    }
    line("]");
  }

  void tables() {
    line("\n[sparse]");
    line("dim = {}", size_.dim);
    line("tables = [               # rows: the largest id, and one more");
    for (const data::IdRange& range : data::id_ranges(store_)) {
      line("  {{ name = \"{}\", rows = {} }},", tables_[range.column], range.largest + 1);
    }
    // Combinations that occur are fewer than events, most often by far; those that share a row
    // learn together.
    const int64_t enough = std::max<int64_t>(1000, summary_.events / 2);
    for (const data::CrossConfig& cross : store_.schema().crosses) {
      line(
          "  {{ name = \"{}\", rows = {} }},  # or kind = \"dynamic\": a row for every "
          "combination that occurs",
          tables_[cross.name], std::min(cross.rows, enough));
    }
    line("]");
  }

  void rest() {
    line("\n[optimizer]");
    line("lr = 2e-3                # Adam, for everything that is not a table");
    line("sparse_lr = 0.03         # row-wise Adagrad, for the tables");
    line("clip_norm = 1.0");
    const int64_t steps = windows_.train_samples / size_.batch;
    line("warmup_steps = {}        # of about {}", std::clamp<int64_t>(steps / 20, 1, 300),
         count_text(steps));
    line("\n[data]\nstore = {}\nbatch_size = {}", base::detail::quote_toml(path_), size_.batch);
    if (summary_.has_lists()) {
      line("\n[data.gather]");
      line(
          "same_time = false        # {} events stand behind another of their user in one second: "
          "items of one list?",
          count_text(summary_.same_time));
    }
    line("\n[data.stream]\nmin_history = {}", min_history_);
    line("window_seconds = {}    # {:g} days: {} windows to train on, in the order of time",
         windows_.seconds, static_cast<double>(windows_.seconds) / kDay, windows_.train_windows);
    line("eval_windows = {}         # the newest, {} samples", windows_.held_out,
         count_text(windows_.held_out_samples));
    line("shuffle_fraction = 1.0   # inside a window");
    line("\n[train]\nseed = 1\nlog_every = 50");
    line("\n[eval]\nevery_windows = {}", std::max<int64_t>(1, windows_.train_windows / 6));
    line("\n[checkpoint]\nevery_seconds = 60");
  }

  std::string path_;
  const data::EventStore& store_;
  const data::StoreSummary& summary_;
  TableNames tables_;
  int64_t min_history_ = 0;
  Windows windows_;
  Size size_;
  std::string out_;
};

}  // namespace

std::string config_for_store(const std::string& path) {
  const data::LogSchema schema = data::schema_for(path);
  const data::EventStore store(path, schema.samples());
  const data::StoreSummary summary = data::summarize(store, schema);
  if (summary.windows.empty() || summary.windows.front().anchors == 0) {
    fail(ErrorCode::kConfig,
         fmt::format("{}: no event has enough earlier ones of its user, so there is nothing to "
                     "train on; prepare the log with a smaller --min-history",
                     path));
  }
  std::string text = Writer(path, store, summary).text();
  base::ConfigSources sources;
  sources.file = "the proposed config";
  sources.text = text;
  sources.use_environment = false;
  const RunConfig config = load_run_config(sources);
  const Device device = planned_device(config);
  return text + fmt::format("\n# Memory on {}: {} (`segue plan THIS_FILE` has the parts).\n",
                            to_string(device),
                            base::format_bytes(memory_plan(config, device).total()));
}

}  // namespace segue::train
