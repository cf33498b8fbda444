#include "cli/inspect_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "sparse/hash_index_rules.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/run/run_state.h"
#include "train/run_config.h"
#include "train/step/trainer.h"

namespace segue::cli {
namespace {

constexpr int64_t kShown = 10;
constexpr int64_t kChunkRows = 1 << 14;

struct TableEntry {
  int64_t id = 0, step = 0, score = 0;
  double heat = 0;
};

/// Sum of the magnitudes in every row; empty: it has no columns.
template <class T>
std::vector<double> row_sums(const sparse::SavedArrays& saved, const std::string& name) {
  const std::vector<int64_t> shape = saved.shape(name).value_or(std::vector<int64_t>{0, 0});
  const int64_t rows = shape.front(), columns = shape.size() == 2 ? shape[1] : 0;
  std::vector<double> sums;
  if (columns == 0) return sums;
  std::vector<T> chunk(static_cast<size_t>(std::min(kChunkRows, rows) * columns));
  for (int64_t first = 0; first < rows; first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, rows - first);
    saved.read(name, kDTypeOf<T>, first, count, chunk.data());
    for (int64_t r = 0; r < count; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < columns; ++c) {
        sum += std::abs(static_cast<double>(chunk[static_cast<size_t>(r * columns + c)]));
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

Fact mean_of(const std::vector<TableEntry>& entries, int64_t TableEntry::*field) {
  double sum = 0;
  for (const TableEntry& e : entries) sum += static_cast<double>(e.*field);
  return Fact::real(entries.empty() ? 0 : sum / static_cast<double>(entries.size()), 1);
}

std::vector<TableEntry> rows_of(const sparse::SavedArrays& saved, DType dtype, bool dynamic) {
  constexpr int64_t kStamps = 3;
  std::vector<TableEntry> rows;
  const std::vector<double> heat =
      dtype == DType::kF64 ? row_sums<double>(saved, "state") : row_sums<float>(saved, "state");
  const auto heat_of = [&](size_t r) { return r < heat.size() ? heat[r] : 0; };
  if (!dynamic && !saved.shape("row")) {
    const int64_t count = saved.shape("weight").value_or(std::vector<int64_t>{0}).front();
    for (int64_t r = 0; r < count; ++r) {
      rows.push_back({.id = r, .heat = heat_of(static_cast<size_t>(r))});
    }
    return rows;
  }
  const std::vector<int64_t> ids = sparse::saved_integers(saved, dynamic ? "key" : "row", 1);
  std::vector<int64_t> stamps = sparse::saved_integers(saved, "stamp", kStamps);
  if (!dynamic) stamps.assign(ids.size() * kStamps, 0);
  if (std::ssize(stamps) != std::ssize(ids) * kStamps) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{} keys of a table have {} stamps", ids.size(), stamps.size() / kStamps));
  }
  for (size_t r = 0; r < ids.size(); ++r) {
    const int64_t* of = &stamps[kStamps * r];
    rows.push_back({dynamic ? sparse::id_of_key(ids[r]) : ids[r], of[0], of[1], heat_of(r)});
  }
  return rows;
}

/// How many slots of each bucket are taken: a key is looked for in one bucket, all of whose slots
/// are compared at once.
void add_buckets(const sparse::SavedArrays& saved, const sparse::HashIndexConfig& config,
                 FactTable& facts) {
  const sparse::detail::IndexRules rules = sparse::detail::rules_of(config);
  const std::vector<int64_t> sizes = sparse::saved_integers(saved, "buckets", 1);
  const auto possible = [&](int64_t size) { return size >= 1 && size <= rules.max_buckets; };
  if (std::ssize(sizes) != rules.shards() || !std::ranges::all_of(sizes, possible)) return;
  std::vector<int64_t> first{0};
  for (const int64_t size : sizes) first.push_back(first.back() + size);
  std::vector<int64_t> taken(static_cast<size_t>(first.back()), 0);
  const auto add = [&](int64_t key) {
    const auto shard = static_cast<size_t>(rules.shard_of(key));
    const auto bucket = rules.bucket_of(key, static_cast<uint32_t>(sizes[shard]));
    ++taken[static_cast<size_t>(first[shard] + bucket)];
  };
  constexpr int64_t kCandidate = 4;
  const std::vector<int64_t> candidates = sparse::saved_integers(saved, "candidate", kCandidate);
  for (const int64_t key : sparse::saved_integers(saved, "key", 1)) add(key);
  for (size_t c = 0; c < candidates.size(); c += kCandidate) add(candidates[c]);
  const auto most = std::ranges::max_element(taken);
  double sum = 0;
  for (const int64_t n : taken) sum += static_cast<double>(n);
  facts.rows.push_back({"shards", {rules.shards()}});
  facts.rows.push_back({"buckets", {std::ssize(taken)}});
  facts.rows.push_back({"slots of a bucket", {int64_t{sparse::detail::kBucketSlots}}});
  facts.rows.push_back(
      {"taken, mean",
       {Fact::real(taken.empty() ? 0 : sum / static_cast<double>(taken.size()), 1)}});
  facts.rows.push_back({"taken, most", {most == taken.end() ? 0 : *most}});
}

void add_table(const train::Checkpoint& checkpoint, const train::RunConfig& config,
               const sparse::TableConfig& table, FactSheet& sheet) {
  const std::unique_ptr<sparse::SavedArrays> saved = train::table_arrays(checkpoint, table.name);
  const bool dynamic = saved->shape("key").has_value();
  std::vector<TableEntry> rows =
      rows_of(*saved, train::parameter_dtype(config.train.precision), dynamic);
  FactTable& facts = sheet.table("table " + table.name);
  facts.rows.push_back({"kind", {dynamic ? "dynamic" : "static"}});
  facts.rows.push_back({"rows", {std::ssize(rows)}});
  if (dynamic) {
    const sparse::HashIndexConfig index{.max_rows = config.sparse.rows_of(table),
                                        .evict = table.evict,
                                        .admit_after = table.admit_after,
                                        .admit_share = table.admit_share};
    const sparse::detail::IndexRules rules = sparse::detail::rules_of(index);
    const int64_t most = rules.shards() * rules.max_buckets * rules.rows_per_bucket;
    facts.rows.push_back({"rows at most", {most}});
    facts.rows.push_back(
        {"load factor",
         {Fact::share(static_cast<double>(rows.size()) / static_cast<double>(most))}});
    facts.rows.push_back(
        {"candidates", {saved->shape("candidate").value_or(std::vector<int64_t>{0}).front()}});
    const char* const names[] = {"inserted", "evicted", "expired", "refused", "growths"};
    const std::vector<int64_t> totals = sparse::saved_integers(*saved, "totals", std::ssize(names));
    for (size_t n = 0; n < std::size(names); ++n) {
      int64_t sum = 0;
      for (size_t i = n; i < totals.size(); i += std::size(names)) sum += totals[i];
      facts.rows.push_back({names[n], {sum}});
    }
    add_buckets(*saved, index, facts);
    const std::vector<int64_t> clock = sparse::saved_integers(*saved, "clock", 1);
    const int64_t now = clock.empty() ? 0 : clock.front();
    int64_t oldest = now;
    for (TableEntry& e : rows) {
      oldest = std::min(oldest, e.step);
      e.step = now - e.step;
    }
    facts.rows.push_back({"steps since last use, mean", {mean_of(rows, &TableEntry::step)}});
    facts.rows.push_back({"steps since last use, most", {now - oldest}});
    if (table.evict != sparse::Evict::kLru) {
      const char* const of[] = {"", "uses", "time of adding", "score"};
      const auto [least, greatest] = std::ranges::minmax_element(rows, {}, &TableEntry::score);
      const std::string what = of[static_cast<size_t>(table.evict)];
      facts.rows.push_back({what + ", mean", {mean_of(rows, &TableEntry::score)}});
      if (!rows.empty()) {
        facts.rows.push_back({what + ", least", {least->score}});
        facts.rows.push_back({what + ", most", {greatest->score}});
      }
    }
  }
  const bool by_uses = dynamic && table.evict == sparse::Evict::kLfu;
  if (by_uses) {
    for (TableEntry& e : rows) e.heat = static_cast<double>(e.score);
  }
  const auto shown = std::min(kShown, std::ssize(rows));
  std::ranges::partial_sort(rows, rows.begin() + shown,
                            [](const TableEntry& a, const TableEntry& b) {
                              return a.heat != b.heat ? a.heat > b.heat : a.id < b.id;
                            });
  std::vector<std::string> columns = {by_uses ? "uses" : "optimizer state"};
  if (dynamic) columns.emplace_back("steps since last use");
  FactTable& hottest = sheet.table("hottest rows of " + table.name, std::move(columns));
  for (int64_t i = 0; i < shown; ++i) {
    const TableEntry& e = rows[static_cast<size_t>(i)];
    hottest.rows.push_back({fmt::format("id {}", e.id), {Fact::real(e.heat, by_uses ? 0 : 4)}});
    if (dynamic) hottest.rows.back().facts.emplace_back(e.step);
  }
}

}  // namespace

bool is_checkpoint_folder(const std::string& path) {
  const std::string name =
      std::filesystem::path(path + "/.").lexically_normal().parent_path().filename().string();
  return name.starts_with("step-") || base::exists(path + "/checkpoints") ||
         !train::list_checkpoints(path).empty();
}

void inspect_tables(const std::string& path, const std::string& table, bool json) {
  const train::Checkpoint checkpoint = train::open_checkpoint(path);
  base::ConfigSources sources;
  sources.file = checkpoint.path();
  sources.text = train::run_state_of(checkpoint).config;
  const train::RunConfig config = train::load_run_config(sources);
  if (!table.empty()) (void)config.sparse.id(table);
  FactSheet sheet;
  FactTable& from = sheet.table("checkpoint");
  from.rows.push_back({"folder", {checkpoint.path()}});
  from.rows.push_back({"step", {checkpoint.step()}});
  for (const sparse::TableConfig& t : config.sparse.tables) {
    if (table.empty() || t.name == table) add_table(checkpoint, config, t, sheet);
  }
  print(json ? sheet.json() : sheet.text());
}

}  // namespace segue::cli
