#include "train/checkpoint_model.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "ops/optimizer.h"

namespace segue::train {
namespace {

constexpr int64_t kExportChunk = 16 << 20;
constexpr std::string_view kDense = "dense", kTables = "tables";
constexpr std::string_view kParameter = "param/", kFirstMoment = "adam_m/",
                           kSecondMoment = "adam_v/", kWeight = "weight/", kState = "state/";

/// The reference's name of what is a weight; empty for all other arrays.
std::string exported_name(const Checkpoint::Array& array, bool tables) {
  const std::string_view name = array.name;
  if (array.file == kDense && name.starts_with(kParameter)) {
    return std::string(name.substr(kParameter.size()));
  }
  if (tables && array.file == kTables && name.starts_with(kWeight)) {
    return fmt::format("_embedding_collection.embeddings.{}.weight", name.substr(kWeight.size()));
  }
  return {};
}

constexpr const char* kBlocksHint =
    "sparse.per_block_state keeps an accumulator per block of columns, which only as many blocks "
    "can take over";

/// The ranges of `block` in each of `times` rows of width `dim` that lie one after the other.
std::vector<ColumnRange> ranges_of(const sparse::ColumnBlock& block, int64_t dim, int64_t times) {
  std::vector<ColumnRange> ranges;
  for (int64_t i = 0; i < times && block.width() > 0; ++i) {
    ranges.push_back({i * dim + block.begin, block.width()});
  }
  return ranges;
}

/// One table as this rank has it: which rows, which columns, who saves what several have.
class TableArrays {
 public:
  TableArrays(const sparse::Tables& tables, sparse::TableId id)
      : tables_(tables),
        config_(tables.config()),
        placement_(tables.plan().tables[static_cast<size_t>(id)]),
        shard_(tables.shard(id)),
        rows_(config_.tables[static_cast<size_t>(id)].rows) {}

  void describe_weights(CheckpointArray& array) const {
    set(array, config_.dim, ranges_of(shard_.columns, config_.dim, 1), false);
  }

  void describe_state(CheckpointArray& array) const {
    const auto blocks = static_cast<int64_t>(placement_.ranks.size());
    if (config_.optimizer != ops::RowOptimizer::kRowwiseAdagrad) {
      const int64_t times = ops::row_state_size(config_.optimizer, config_.dim) / config_.dim;
      set(array, times * config_.dim, ranges_of(shard_.columns, config_.dim, times), false);
    } else if (by_columns() && config_.per_block_state) {
      set(array, blocks, {{owner(), 1}}, false);
    } else {
      set(array, 1, {{0, 1}}, by_columns());
    }
    if (config_.optimizer == ops::RowOptimizer::kRowwiseAdagrad) array.hint = kBlocksHint;
  }

 private:
  bool by_columns() const { return placement_.sharding == sparse::Sharding::kColumn; }
  /// Place of this rank among the owners.
  int64_t owner() const {
    return std::ranges::find(placement_.ranks, tables_.rank()) - placement_.ranks.begin();
  }

  /// Where all owners have the same, the first one saves it.
  void set(CheckpointArray& array, int64_t columns, std::vector<ColumnRange> ranges,
           bool same_everywhere) const {
    if (tables_.plan().ranks == 1) return;
    same_everywhere |= placement_.sharding == sparse::Sharding::kReplicated;
    array.part = ArrayPart{{rows_, columns}, shard_.deal, shard_.part, std::move(ranges)};
    array.saved_here = shard_.part >= 0 && (!same_everywhere || owner() == 0);
  }

  const sparse::Tables& tables_;
  const sparse::TablesConfig& config_;
  const sparse::TablePlacement& placement_;
  sparse::LocalShard shard_;
  int64_t rows_;
};

/// Rows in order, whoever saved them.
void write_whole(const Checkpoint::Array& array, base::AtomicFile& file) {
  const ArrayPart whole = ArrayPart::whole(array.shape);
  const int64_t row_bytes = whole.width() * array.element_bytes;
  if (row_bytes == 0) return;
  const PartReader reader(array.parts, whole, array.element_bytes);
  const int64_t most = std::max<int64_t>(1, kExportChunk / row_bytes);
  std::vector<std::byte> rows(static_cast<size_t>(std::min(most, whole.rows()) * row_bytes));
  for (int64_t first = 0; first < whole.rows(); first += most) {
    const int64_t count = std::min(most, whole.rows() - first);
    reader.read(first, count, rows.data());
    file.write(rows.data(), static_cast<size_t>(count * row_bytes));
  }
}

}  // namespace

std::vector<CheckpointArray> model_arrays(const model::Parameters& parameters,
                                          const sparse::Tables& tables) {
  std::vector<CheckpointArray> arrays;
  const auto add = [&](std::string_view file, std::string_view kind, std::string_view name,
                       const Tensor& value) {
    arrays.push_back({std::string(file), fmt::format("{}{}", kind, name), value, {}, true, {}});
  };
  for (const model::Parameter& p : parameters.all()) add(kDense, kParameter, p.name, p.value);
  for (const model::Parameter& p : parameters.all()) add(kDense, kFirstMoment, p.name, p.m);
  for (const model::Parameter& p : parameters.all()) add(kDense, kSecondMoment, p.name, p.v);
  for (const sparse::TableConfig& table : tables.config().tables) {
    const sparse::TableId id = tables.id(table.name);
    const TableArrays describe(tables, id);
    add(kTables, kWeight, table.name, tables.weights(id));
    describe.describe_weights(arrays.back());
    add(kTables, kState, table.name, tables.state(id));
    describe.describe_state(arrays.back());
  }
  return arrays;
}

Exported export_weights(const Checkpoint& checkpoint, const std::string& path, bool tables) {
  std::vector<base::SafetensorsItem> items;
  std::vector<const Checkpoint::Array*> arrays;
  Exported exported;
  for (const Checkpoint::Array& array : checkpoint.arrays()) {
    std::string name = exported_name(array, tables);
    if (name.empty()) continue;
    items.push_back({std::move(name), array.dtype, array.shape, nullptr});
    arrays.push_back(&array);
  }
  if (items.empty()) {
    fail(ErrorCode::kNotFound, checkpoint.path() + ": holds no parameters to export");
  }
  exported.tensors = static_cast<int64_t>(items.size());

  const base::SafetensorsLayout layout =
      base::safetensors_layout(path, items,
                               {{"step", std::to_string(checkpoint.step())},
                                {"segue", checkpoint.manifest().segue_version}});
  base::AtomicFile file(path);
  file.write(layout.header);
  exported.bytes = static_cast<int64_t>(layout.header.size());
  for (const size_t i : layout.data_order) {
    write_whole(*arrays[i], file);
    exported.bytes += arrays[i]->bytes();
  }
  file.commit();
  return exported;
}

}  // namespace segue::train
