#include "train/checkpoint/checkpoint_model.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint/checkpoint_replay.h"

namespace segue::train {
namespace {

constexpr int64_t kExportChunk = 16 << 20;
constexpr std::string_view kDense = "dense", kTables = "tables";
constexpr std::string_view kParameter = "param/", kWeight = "weight/", kRow = "row/";
constexpr const char* kState = "state";  // of a table

/// The reference's name of what is a weight; empty for all other arrays.
std::string exported_name(const Checkpoint::Array& array, bool tables) {
  const std::string_view name = array.name;
  if (array.file == kDense && name.starts_with(kParameter)) {
    return std::string(name.substr(kParameter.size()));
  }
  if (tables && array.file == kTables && name.starts_with(kWeight)) {
    return fmt::format("_embedding_collection.embeddings.{}.weight", name.substr(kWeight.size()));
  }
  // Of tables that were saved as far as they were touched: which rows those are.
  if (tables && array.file == kTables && name.starts_with(kRow)) {
    return fmt::format("_embedding_collection.embeddings.{}.row", name.substr(kRow.size()));
  }
  return {};
}

/// Bytes of so many rows from `first` on.
using ReadRows = std::function<void(int64_t first, int64_t count, std::byte* to)>;

/// Rows in order, whoever saved them.
void write_rows(int64_t count, int64_t row_bytes, const ReadRows& read, base::AtomicFile& file) {
  if (row_bytes == 0) return;
  const int64_t most = std::max<int64_t>(1, kExportChunk / row_bytes);
  std::vector<std::byte> rows(static_cast<size_t>(std::min(most, count) * row_bytes));
  for (int64_t first = 0; first < count; first += most) {
    const int64_t some = std::min(most, count - first);
    read(first, some, rows.data());
    file.write(rows.data(), static_cast<size_t>(some * row_bytes));
  }
}

/// What a checkpoint has of one table.
class TableArrays final : public sparse::SavedArrays {
 public:
  TableArrays(const Checkpoint& checkpoint, const std::string& table) {
    for (const Checkpoint::Array& array : checkpoint.arrays()) {
      const size_t slash = array.name.find('/');
      if (array.file != kTables || slash == std::string::npos) continue;
      if (array.name.substr(slash + 1) != table) continue;
      arrays_.emplace(array.name.substr(0, slash),
                      Known{&array, {array.parts, array.shape, array.element_bytes}});
    }
  }

  std::optional<std::vector<int64_t>> shape(const std::string& name) const override {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) return std::nullopt;
    return found->second.array->shape;
  }

  void read(const std::string& name, DType dtype, int64_t first, int64_t count,
            void* to) const override {
    const Known& known = arrays_.at(name);
    if (known.array->dtype != safetensors_dtype(dtype)) {
      fail(ErrorCode::kConfig,
           fmt::format("{} `{}` was saved as {}, here it is {}", kTables, known.array->name,
                       known.array->dtype, safetensors_dtype(dtype)));
    }
    known.reader.read(first, count, static_cast<std::byte*>(to));
  }

 private:
  struct Known {
    const Checkpoint::Array* array;
    WholeReader reader;
  };
  std::map<std::string, Known> arrays_;
};

}  // namespace

std::unique_ptr<sparse::SavedArrays> table_arrays(const Checkpoint& checkpoint,
                                                  const std::string& table) {
  if (checkpoint.before() == nullptr) return std::make_unique<TableArrays>(checkpoint, table);
  std::vector<std::unique_ptr<sparse::SavedArrays>> all;
  for (const Checkpoint* at = &checkpoint; at != nullptr; at = at->before()) {
    all.push_back(std::make_unique<TableArrays>(*at, table));
  }
  std::ranges::reverse(all);
  return replay(std::move(all), fmt::format("{}: table `{}`", checkpoint.path(), table));
}

std::vector<int64_t> changed_rows(const Checkpoint& increment, const std::string& table) {
  const TableArrays saved(increment, table);
  return sparse::saved_integers(saved, saved.shape("key") ? "key" : "row", 1);
}

void load_tables(const Checkpoint& checkpoint, sparse::Tables& tables) {
  tables.load([&](const std::string& table) { return table_arrays(checkpoint, table); });
}

namespace {

std::vector<CheckpointArray> dense_arrays(const model::Parameters& parameters) {
  std::vector<CheckpointArray> arrays;
  const auto add = [&](std::string_view kind, std::string_view name, const Tensor& value) {
    arrays.push_back({std::string(kDense), fmt::format("{}{}", kind, name), value, {}, true, {}});
  };
  for (const model::Parameter& p : parameters.all()) add(kParameter, p.name, p.value);
  for (size_t s = 0; s < parameters.states().size(); ++s) {
    const std::string kind = fmt::format("{}/", parameters.state_names()[s]);
    for (const model::Parameter& p : parameters.all()) add(kind, p.name, p.states[s]);
  }
  return arrays;
}

std::vector<CheckpointArray> arrays_of(const std::string& table,
                                       std::vector<sparse::TableArray> saved) {
  std::vector<CheckpointArray> arrays;
  arrays.reserve(saved.size());
  for (sparse::TableArray& array : saved) {
    arrays.push_back(
        {.file = std::string(kTables),
         .name = fmt::format("{}/{}", array.name, table),
         .value = array.value,
         .part = std::move(array.part),
         .saved_here = array.saved_here,
         .hint = std::move(array.hint),
         .any_rows = array.any_rows,
         .unless = array.unless.empty() ? std::string() : fmt::format("{}/{}", array.unless, table),
         .order = array.order});
  }
  return arrays;
}

}  // namespace

std::vector<CheckpointArray> model_arrays(const model::Parameters& parameters,
                                          sparse::Tables& tables) {
  std::vector<CheckpointArray> arrays = dense_arrays(parameters);
  for (const sparse::TableConfig& table : tables.config().tables) {
    std::ranges::move(
        arrays_of(table.name, tables.table(tables.id(table.name)).snapshot(sparse::Extent::kAll)),
        std::back_inserter(arrays));
  }
  return arrays;
}

namespace {

/// A table whose optimizer has seen nothing yet.
class WithoutState final : public sparse::SavedArrays {
 public:
  explicit WithoutState(std::unique_ptr<sparse::SavedArrays> saved) : saved_(std::move(saved)) {}

  std::optional<std::vector<int64_t>> shape(const std::string& name) const override {
    return saved_->shape(name);
  }
  void read(const std::string& name, DType dtype, int64_t first, int64_t count,
            void* to) const override {
    if (name != kState) return saved_->read(name, dtype, first, count, to);
    const std::vector<int64_t> whole = *saved_->shape(name);
    int64_t bytes = count * size_of(dtype);
    for (size_t d = 1; d < whole.size(); ++d) bytes *= whole[d];
    std::fill_n(static_cast<char*>(to), bytes, '\0');
  }

 private:
  std::unique_ptr<sparse::SavedArrays> saved_;
};

}  // namespace

void load_weights(const Checkpoint& checkpoint, const model::Parameters& parameters,
                  sparse::Tables& tables, const Stream& stream) {
  const auto is_weight = [](const auto& array) {
    if (array.file == kDense) return array.name.starts_with(kParameter);
    return array.file == kTables && !array.name.starts_with(fmt::format("{}/", kState));
  };
  std::vector<CheckpointArray> arrays = model_arrays(parameters, tables);
  std::erase_if(arrays, [&](const CheckpointArray& array) { return !is_weight(array); });
  checkpoint.read(arrays, &stream,
                  [&](const Checkpoint::Array& array) { return !is_weight(array); });
  tables.load([&](const std::string& table) {
    return std::make_unique<WithoutState>(table_arrays(checkpoint, table));
  });
}

CheckpointContents model_contents(const model::Parameters& parameters, sparse::Tables& tables,
                                  sparse::Extent extent, const Stream& stream) {
  CheckpointContents contents(dense_arrays(parameters));
  for (const sparse::TableConfig& config : tables.config().tables) {
    sparse::Table& table = tables.table(tables.id(config.name));
    if (sparse::Table::Frozen frozen = table.freeze(extent, stream)) {
      contents.later.emplace_back(
          [name = config.name, frozen = std::move(frozen)] { return arrays_of(name, frozen()); });
      continue;
    }
    std::ranges::move(arrays_of(config.name, table.snapshot(extent)),
                      std::back_inserter(contents.arrays));
  }
  return contents;
}

Exported export_weights(const Checkpoint& checkpoint, const std::string& path, bool tables) {
  struct Source {
    int64_t rows = 0, row_bytes = 0;
    ReadRows read;
  };
  std::vector<base::SafetensorsItem> items;
  std::vector<Source> sources;
  std::map<std::string, std::unique_ptr<sparse::SavedArrays>> of_tables;
  // An increment has rows of all tables, but for some of those that it lacks the numbers are new.
  const Checkpoint* full = &checkpoint;
  while (full->before() != nullptr) full = full->before();
  for (const Checkpoint::Array& array : full->arrays()) {
    const std::string table = array.name.substr(array.name.find('/') + 1);
    if (tables && array.file == kTables && array.name.starts_with("key/")) {
      fail(ErrorCode::kUnsupported,
           fmt::format("{}: table `{}` is dynamic: its rows belong to ids, which this file has no "
                       "place for; export without --tables, or use `segue publish`",
                       checkpoint.path(), table));
    }
    std::string name = exported_name(array, tables);
    if (name.empty() || array.file != kTables) continue;
    auto& saved = of_tables[table];
    if (!saved) saved = table_arrays(checkpoint, table);
    const std::string kind = array.name.substr(0, array.name.find('/'));
    const std::vector<int64_t> shape = saved->shape(kind).value();
    const DType dtype = kind == "row"          ? DType::kI64
                        : array.dtype == "F64" ? DType::kF64
                                               : DType::kF32;
    const int64_t row_bytes = ArrayPart::whole(shape).width() * size_of(dtype);
    items.push_back({std::move(name), array.dtype, shape, nullptr});
    sources.push_back(
        {shape.front(), row_bytes,
         [from = saved.get(), kind, dtype](int64_t first, int64_t count, std::byte* to) {
           from->read(kind, dtype, first, count, to);
         }});
  }
  for (const Checkpoint::Array& array : checkpoint.arrays()) {
    std::string name = exported_name(array, tables);
    if (name.empty() || array.file == kTables) continue;
    const auto reader =
        std::make_shared<WholeReader>(array.parts, array.shape, array.element_bytes);
    items.push_back({std::move(name), array.dtype, array.shape, nullptr});
    sources.push_back({reader->rows(), reader->row_bytes(),
                       [reader](int64_t first, int64_t count, std::byte* to) {
                         reader->read(first, count, to);
                       }});
  }
  if (items.empty()) {
    fail(ErrorCode::kNotFound, checkpoint.path() + ": holds no parameters to export");
  }
  Exported exported;
  exported.tensors = static_cast<int64_t>(items.size());

  const base::SafetensorsLayout layout =
      base::safetensors_layout(path, items,
                               {{"step", std::to_string(checkpoint.step())},
                                {"segue", checkpoint.manifest().segue_version}});
  base::AtomicFile file(path);
  file.write(layout.header);
  exported.bytes = static_cast<int64_t>(layout.header.size());
  for (const size_t i : layout.data_order) {
    const Source& source = sources[i];
    write_rows(source.rows, source.row_bytes, source.read, file);
    exported.bytes += source.rows * source.row_bytes;
  }
  file.commit();
  return exported;
}

}  // namespace segue::train
