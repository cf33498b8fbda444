#include "train/step/store_checks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/progress.h"
#include "data/inspect/id_ranges.h"
#include "data/inspect/time_span.h"
#include "model/model.h"

namespace segue::train {
namespace {

constexpr int64_t kLookedAt = 3000;  // samples whose labels are counted
constexpr int64_t kFewHeldOut = 1000;

/// Of a column of samples; null: the store does not tell.
const data::IdRange* range_of(std::span<const data::IdRange> ranges, const std::string& column) {
  const auto range =
      std::ranges::find_if(ranges, [&](const data::IdRange& r) { return r.has(column); });
  return range == ranges.end() ? nullptr : &*range;
}

/// Samples from the beginning, the middle and the end of training, taken at even distances.
std::vector<int64_t> some_positions(const data::SampleStream& stream) {
  std::vector<int64_t> some;
  const int64_t first = stream.first_window(), end = stream.end_window();
  for (const int64_t window : {first, (first + end) / 2, end - 1}) {
    if (window < first || window >= end) continue;
    const std::vector<int64_t> all = stream.train_positions(window);
    const auto n = static_cast<int64_t>(all.size()), take = std::min(n, kLookedAt / 3);
    for (int64_t i = 0; i < take; ++i) some.push_back(all[static_cast<size_t>(i * n / take)]);
  }
  return some;
}

struct LabelShare {
  int64_t positive = 0, all = 0;
  bool one_class() const { return all > 0 && (positive == 0 || positive == all); }
};

/// Of every binary task, among the samples at `positions`.
std::vector<LabelShare> label_shares(const model::Model& model, const RunStore& store,
                                     std::span<const int64_t> positions) {
  std::vector<LabelShare> shares(model.tasks().size());
  std::vector<int64_t> numbers(positions.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  Batch batch;
  store.gatherer.fill(positions, numbers, batch);
  const std::vector<model::ColumnDemand> demands = model.demands();
  const auto label =
      std::ranges::find(demands, model::ColumnDemand::Role::kLabel, &model::ColumnDemand::role);
  if (label == demands.end()) return shares;
  for (size_t k = 0; k < shares.size(); ++k) {
    const model::TaskConfig& task = model.tasks()[k];
    if (task.kind != ops::TaskKind::kBinary) continue;
    for (const int64_t value : batch.column(label->column).values.span()) {
      shares[k].positive += (value & task.bit) != 0 ? 1 : 0;
      ++shares[k].all;
    }
  }
  return shares;
}

void doubt_labels(const std::vector<LabelShare>& shares, const model::Model& model,
                  std::vector<std::string>& doubts) {
  for (size_t k = 0; k < shares.size(); ++k) {
    if (!shares[k].one_class()) continue;
    const model::TaskConfig& task = model.tasks()[k];
    doubts.push_back(fmt::format(
        "task `{}`: {} of {} labels looked at have bit {}, so there is nothing to tell apart; see "
        "`bit` in model.tasks, and the pools that `segue inspect` lists with their shares",
        task.name, shares[k].positive == 0 ? "none" : "all", shares[k].all, task.bit));
  }
}

/// The AUC of labels that nothing predicts is spread about 0.5 by so much.
double auc_error(double samples, double positive_share) {
  const double positive = std::max(1.0, samples * positive_share);
  const double negative = std::max(1.0, samples - positive);
  return std::sqrt((samples + 1) / (12 * positive * negative));
}

void doubt_held_out(const data::SampleStream& stream, double positive_share,
                    std::vector<std::string>& doubts) {
  if (stream.config().eval != data::EvalMode::kFixed) return;
  const auto held_out = static_cast<int64_t>(stream.eval_positions().size());
  if (held_out >= kFewHeldOut) return;
  constexpr const char* kAdvice =
      "raise data.stream.eval_windows or data.stream.window_seconds, or see eval_window and "
      "train_share there";
  doubts.push_back(
      held_out == 0
          ? fmt::format("no sample is held out, so nothing will say how good the model is; {}",
                        kAdvice)
          : fmt::format("only {} samples are held out, whose AUC is known to about {:.2f}; {}",
                        held_out, auc_error(static_cast<double>(held_out), positive_share),
                        kAdvice));
}

void doubt_batches(const data::SampleStream& stream, std::vector<std::string>& doubts) {
  if (stream.config().sample_events > 1) return;  // a sample is a part of a window, not an event
  const int64_t size = stream.config().batch_size;
  int64_t samples = 0, batches = 0;
  for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
    samples += stream.windows().size(w);
    batches += (stream.windows().size(w) + size - 1) / size;
  }
  if (batches == 0 || 2 * samples >= size * batches) return;
  doubts.push_back(
      fmt::format("batches end with their window and have {} samples on average, not {}; lower "
                  "data.batch_size, or raise data.stream.window_seconds (now {})",
                  samples / batches, size, stream.config().window_seconds));
}

void doubt_histories(const RunConfig& config, std::vector<std::string>& doubts) {
  const int64_t asked = config.data.gather.history_length, fit = history_budget(config);
  if (asked <= fit) return;
  doubts.push_back(
      fmt::format("data.gather.history_length = {} asks for more events than the {} that a sample "
                  "has room for, so the newest are kept; raise model.max_seq_len to use more",
                  asked, fit));
}

/// Rows that ids of the store reach in a table; nothing where some have no range: hashes fill any
/// table.
std::optional<int64_t> rows_needed(const std::string& table,
                                   std::span<const model::ColumnDemand> demands,
                                   std::span<const data::IdRange> ranges) {
  int64_t rows = 0;
  for (const model::ColumnDemand& d : demands) {
    if (d.table != table) continue;
    const data::IdRange* range = range_of(ranges, d.column);
    if (range == nullptr) return std::nullopt;
    rows = std::max(rows, range->largest + 1);
  }
  return rows > 0 ? std::optional(rows) : std::nullopt;
}

void doubt_rows(const RunConfig& config, const model::Model& model, const data::EventStore& events,
                std::vector<std::string>& doubts) {
  constexpr int64_t kManyRows = 1'000'000, kTimes = 10;
  const std::vector<model::ColumnDemand> demands = model.demands();
  const std::vector<data::IdRange> ranges = data::id_ranges(events);
  for (size_t t = 0; t < config.sparse.tables.size(); ++t) {
    const sparse::TableConfig& table = config.sparse.tables[t];
    if (table.dynamic() || table.rows < kManyRows) continue;
    const std::optional<int64_t> needed = rows_needed(table.name, demands, ranges);
    if (!needed || table.rows / kTimes < *needed) continue;
    doubts.push_back(
        fmt::format("table `{}` takes memory for {} rows, and ids of the store need {}; set "
                    "sparse.tables.{}.rows, or kind = \"dynamic\", which grows with its ids",
                    table.name, table.rows, *needed, t));
  }
}

void doubt_tables(const RunConfig& config, const model::Model& model,
                  std::vector<std::string>& doubts) {
  const std::vector<model::ColumnDemand> demands = model.demands();
  for (const sparse::TableConfig& table : config.sparse.tables) {
    if (std::ranges::find(demands, table.name, &model::ColumnDemand::table) != demands.end()) {
      continue;
    }
    doubts.push_back(fmt::format(
        "table `{}` takes memory for {} rows, and no feature of the model looks it up; remove it "
        "from sparse.tables",
        table.name, base::format_count(static_cast<double>(config.sparse.rows_of(table)))));
  }
}

}  // namespace

std::vector<std::string> missing_rows(const RunConfig& config, const data::EventStore& events) {
  std::vector<std::string> missing;
  const std::vector<data::IdRange> ranges = data::id_ranges(events);
  for (const model::ColumnDemand& d : make_model(config)->demands()) {
    const data::IdRange* range = range_of(ranges, d.column);
    if (d.table.empty() || range == nullptr) continue;
    const auto id = static_cast<size_t>(config.sparse.id(d.table));
    const sparse::TableConfig& table = config.sparse.tables[id];
    if (table.dynamic() || range->largest < table.rows) continue;
    const std::string text = fmt::format(
        "\n  sparse.tables.{}.rows = {}  (table `{}` has {}; `{}` "
        "has ids up to {})",
        id, range->largest + 1, table.name, table.rows, range->column, range->largest);
    if (std::ranges::find(missing, text) == missing.end()) missing.push_back(text);
  }
  return missing;
}

void require_rows(const RunConfig& config, const data::EventStore& events) {
  if (config.sparse.out_of_range != sparse::OutOfRange::kError) return;
  const std::vector<std::string> missing = missing_rows(config, events);
  if (missing.empty()) return;
  fail(ErrorCode::kConfig,
       fmt::format(
           "{} has ids beyond the rows of {}; set{}\nor kind = \"dynamic\", which takes any "
           "id, or sparse.out_of_range = \"clamp\" or \"zero\". Tables of a run that has begun "
           "keep their rows; it goes on with kind = \"dynamic\" and twice as many max_rows: "
           "--set sparse.tables.N.kind=dynamic --set sparse.tables.N.max_rows=ROWS of each, "
           "and --allow-config-change sparse",
           events.folder(), missing.size() == 1 ? "a table" : "some tables",
           fmt::join(missing, "")));
}

std::vector<std::string> doubts_about(const RunConfig& config, const RunStore& store) {
  std::vector<std::string> doubts;
  const std::unique_ptr<model::Model> model = make_model(config);
  const std::vector<LabelShare> shares = label_shares(*model, store, some_positions(store.stream));
  doubt_labels(shares, *model, doubts);
  const double share =
      shares.empty() || shares[0].all == 0
          ? 0.5
          : static_cast<double>(shares[0].positive) / static_cast<double>(shares[0].all);
  if (!config.data.follow) doubt_held_out(store.stream, share, doubts);
  doubt_batches(store.stream, doubts);
  doubt_histories(config, doubts);
  const std::string times =
      data::doubt_times(store.stream.windows().t_min(), store.stream.windows().t_max());
  if (!times.empty()) doubts.push_back(store.events.folder() + ": " + times);
  doubt_tables(config, *model, doubts);
  doubt_rows(config, *model, store.events, doubts);
  return doubts;
}

}  // namespace segue::train
