#include "sparse/table.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/hash.h"
#include "sparse/cached_dynamic_table.h"
#include "sparse/cached_table.h"
#include "sparse/dynamic_table.h"
#include "sparse/static_table.h"

namespace segue::sparse {

using base::fail_config;

void describe(base::ConfigVisitor& v, TableConfig& c) {
  v.field("name", c.name, "name that features refer to");
  v.choice("kind", c.kind, {"static", "dynamic"},
           "static: rows 0 .. rows - 1; dynamic: a row for every id that training has met");
  v.field("rows", c.rows, "static: number of rows; ids are 0 .. rows - 1");
  v.field("max_rows", c.max_rows, "dynamic: most rows; 0: by max_gib, or as many as `rows`");
  v.field("max_gib", c.max_gib, "dynamic: most memory, instead of max_rows");
  v.field("start_rows", c.start_rows, "dynamic: rows to begin with; 0: a sixteenth of the most");
  v.choice("evict", c.evict, {"lru", "lfu", "age", "score"},
           "dynamic, full: forget what was used longest ago, least often, came first, or has the "
           "lowest score");
  v.field("score", c.score,
          "evict = \"score\": integer columns with the scores of ids; those of an id come from the "
          "column that has a value beside each id, or else one for its sample");
  v.field("admit_after", c.admit_after, "dynamic: uses of an id before it gets a row");
  v.field("admit_share", c.admit_share, "dynamic: chance of a use to get its id a row");
  v.field("ttl_seconds", c.ttl_seconds,
          "dynamic: rows not used for longer, by event time, go; 0: none");
  v.choice("init", c.init, {"uniform", "normal", "truncated_normal", "constant"},
           "initial values: in +-init_bound, of that standard deviation, or that number");
  v.field("init_bound", c.init_bound, "scale of initial values; 0: by sparse.init_scale");
  v.choice("sharding", c.sharding, {"auto", "table", "row", "column", "table_row", "replicated"},
           "how ranks share it: as planned, whole on one, rows or columns split over all, rows "
           "within one machine, a copy each");
  v.choice(
      "placement", c.placement, {"auto", "device", "host", "cached", "file"},
      "where its rows lie: as planned, in device memory, in host memory with room on the device "
      "for batches in flight, the same behind a larger cache, or in a file behind a cache");
  v.field("cache_share", c.cache_share,
          "not on the device: share of its rows that the cache holds; 0: as planned");
  v.choice(
      "cache_policy", c.cache_policy, {"lru", "lfu"},
      "not on the device: the cache forgets what was used longest ago, or least often of late");
  v.field("dim", c.dim, "width of its rows; 0: sparse.dim");
  v.choice("optimizer", c.optimizer, {"default", "rowwise_adagrad", "adagrad", "sgd", "adam"},
           "how its rows are updated; default: sparse.optimizer");
}

int64_t TableConfig::id_limit() const {
  return dynamic() ? std::numeric_limits<int64_t>::max() : rows;
}

namespace {

void check_dynamic(const TableConfig& c) {
  const auto refuse = [&](const std::string& what) {
    fail_config(fmt::format("table `{}`: {}", c.name, what));
  };
  constexpr int64_t kMostRows = int64_t{1} << 30;  // row numbers have 32 bits, buckets round up
  if (c.max_rows < 0 || c.max_rows > kMostRows) {
    refuse(fmt::format("`max_rows` must be between 1 and {}, not {}", kMostRows, c.max_rows));
  }
  if (!(c.max_gib >= 0) || !std::isfinite(c.max_gib)) {
    refuse(fmt::format("`max_gib` must be more than 0, not {}", c.max_gib));
  }
  if (c.max_rows > 0 && c.max_gib > 0) refuse("has both `max_rows` and `max_gib`; give one");
  if (c.max_rows == 0 && c.max_gib == 0 && (c.rows <= 0 || c.rows > kMostRows)) {
    refuse("is dynamic and needs `max_rows` or `max_gib`");
  }
  if (c.start_rows < 0 || (c.max_rows > 0 && c.start_rows > c.max_rows)) {
    refuse(fmt::format("`start_rows` must be between 0 and max_rows, not {}", c.start_rows));
  }
  if (c.evict == Evict::kScore && c.score.empty()) {
    refuse(
        "`evict` is \"score\", but no column has the scores; name one or more in `score`, such as "
        "score = [\"action_timestamp\", \"item_query_time\"]");
  }
  if (c.evict != Evict::kScore && !c.score.empty()) {
    refuse("`score` is for evict = \"score\"; set that, or leave `score` out");
  }
  if (c.admit_after < 1) {
    refuse(fmt::format("`admit_after` must be 1 or more, not {}", c.admit_after));
  }
  if (!(c.admit_share > 0 && c.admit_share <= 1)) {
    refuse(fmt::format("`admit_share` must be in (0, 1], not {}", c.admit_share));
  }
  if (c.ttl_seconds < 0) {
    refuse(fmt::format("`ttl_seconds` must be 0 (for none) or more, not {}", c.ttl_seconds));
  }
  if (c.sharding == Sharding::kColumn || c.sharding == Sharding::kReplicated) {
    refuse(
        "is dynamic, and dynamic tables are shared by rows; set `sharding` to \"auto\", \"row\", "
        "\"table\" or \"table_row\"");
  }
}

void check_static(const TableConfig& c) {
  const TableConfig defaults;
  const auto only_dynamic = [&](const char* key, bool set) {
    if (!set) return;
    fail_config(fmt::format("table `{}`: `{}` is for tables of kind = \"dynamic\"", c.name, key));
  };
  only_dynamic("max_rows", c.max_rows != 0);
  only_dynamic("max_gib", c.max_gib != 0);
  only_dynamic("start_rows", c.start_rows != 0);
  only_dynamic("evict", c.evict != defaults.evict);
  only_dynamic("score", !c.score.empty());
  only_dynamic("admit_after", c.admit_after != defaults.admit_after);
  only_dynamic("admit_share", c.admit_share != defaults.admit_share);
  only_dynamic("ttl_seconds", c.ttl_seconds != 0);
}

}  // namespace

void TableConfig::validate(int64_t default_dim) const {
  if (dim < 0 || dim > kMostColumns) {
    fail_config(fmt::format("table `{}`: `dim` must be 0 (for sparse.dim) or up to {}, not {}",
                            name, kMostColumns, dim));
  }
  if (dynamic()) {
    check_dynamic(*this);
  } else {
    check_static(*this);
    constexpr int64_t kBytesPerValue = 8;
    const int64_t most_rows =
        std::numeric_limits<int64_t>::max() / kBytesPerValue / (dim > 0 ? dim : default_dim) / 2;
    if (rows <= 0 || rows > most_rows) {
      fail_config(fmt::format("table `{}`: `rows` must be between 1 and {}, not {}", name,
                              most_rows, rows));
    }
  }
  if (!(cache_share >= 0 && cache_share <= 1)) {
    fail_config(
        fmt::format("table `{}`: `cache_share` must be between 0 (for as planned) and 1, "
                    "not {}",
                    name, cache_share));
  }
  if (sharding == Sharding::kReplicated && placement != TierChoice::kAuto &&
      placement != TierChoice::kDevice) {
    fail_config(
        fmt::format("table `{}` asks for copies outside of device memory; replicated "
                    "tables lie on the device",
                    name));
  }
  if (!(init_bound >= 0) || !std::isfinite(init_bound)) {
    fail_config(
        fmt::format("table `{}`: `init_bound` must be 0 (by sparse.init_scale) or more, not {}",
                    name, init_bound));
  }
}

ops::RowInit TableSpec::init() const {
  constexpr ops::Init kKinds[] = {ops::Init::kUniform, ops::Init::kNormal,
                                  ops::Init::kTruncatedNormal, ops::Init::kConstant};
  return {kKinds[static_cast<size_t>(config.init)], init_bound, seed, base::xxh64(config.name)};
}

RowBytes rows_on_device(const TableSpec& spec) {
  if (spec.placement.tier != Tier::kDevice) return {};
  const LocalShard shard = local_shard(spec.placement, spec.rows, spec.dim, spec.rank);
  const int64_t rows = spec.config.dynamic() ? KeyTable::most_rows_of(spec) : shard.rows();
  const int64_t columns = spec.config.dynamic() ? spec.dim : shard.columns.width();
  const int64_t bytes = rows * size_of(spec.dtype);
  return {bytes * columns, bytes * ops::row_state_size(spec.optimizer, columns)};
}

Table::Table(TableSpec spec) : spec_(std::move(spec)) {}

bool Table::stage(std::span<const int64_t> /*slots*/, const Stream& /*copy_stream*/) {
  return false;
}

void Table::look_ahead(std::span<const int64_t> /*keys*/, HeldRows& /*held*/) {}

void Table::resolve(const Exec& /*exec*/, std::span<const LateBatch> /*batches*/) {}

void Table::release(std::span<const int64_t> /*slots*/, Mode /*mode*/, const Stream* /*last_use*/) {
}

std::unique_ptr<Table> make_table(TableSpec spec) {
  const bool on_device = spec.placement.tier == Tier::kDevice;
  if (spec.config.dynamic()) {
    if (!on_device) return std::make_unique<CachedDynamicTable>(std::move(spec));
    return std::make_unique<DynamicTable>(std::move(spec));
  }
  if (!on_device) return std::make_unique<CachedTable>(std::move(spec));
  return std::make_unique<StaticTable>(std::move(spec));
}

}  // namespace segue::sparse
