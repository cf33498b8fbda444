#include "train/checkpoint/checkpoint_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

namespace segue::train {
namespace {

constexpr int64_t kExportChunk = 16 << 20;
constexpr std::string_view kDense = "dense", kTables = "tables";
constexpr std::string_view kParameter = "param/", kWeight = "weight/", kRow = "row/";

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

/// Rows in order, whoever saved them.
void write_whole(const Checkpoint::Array& array, base::AtomicFile& file) {
  const WholeReader reader(array.parts, array.shape, array.element_bytes);
  const int64_t row_bytes = reader.row_bytes(), count = reader.rows();
  if (row_bytes == 0) return;
  const int64_t most = std::max<int64_t>(1, kExportChunk / row_bytes);
  std::vector<std::byte> rows(static_cast<size_t>(std::min(most, count) * row_bytes));
  for (int64_t first = 0; first < count; first += most) {
    const int64_t some = std::min(most, count - first);
    reader.read(first, some, rows.data());
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
  return std::make_unique<TableArrays>(checkpoint, table);
}

void load_tables(const Checkpoint& checkpoint, sparse::Tables& tables) {
  tables.load([&](const std::string& table) { return table_arrays(checkpoint, table); });
}

std::vector<CheckpointArray> model_arrays(const model::Parameters& parameters,
                                          sparse::Tables& tables) {
  std::vector<CheckpointArray> arrays;
  const auto add = [&](std::string_view kind, std::string_view name, const Tensor& value) {
    arrays.push_back({std::string(kDense), fmt::format("{}{}", kind, name), value, {}, true, {}});
  };
  for (const model::Parameter& p : parameters.all()) add(kParameter, p.name, p.value);
  for (size_t s = 0; s < parameters.states().size(); ++s) {
    const std::string kind = fmt::format("{}/", parameters.state_names()[s]);
    for (const model::Parameter& p : parameters.all()) add(kind, p.name, p.states[s]);
  }
  for (const sparse::TableConfig& table : tables.config().tables) {
    for (sparse::TableArray& array : tables.table(tables.id(table.name)).snapshot()) {
      arrays.push_back({.file = std::string(kTables),
                        .name = fmt::format("{}/{}", array.name, table.name),
                        .value = array.value,
                        .part = std::move(array.part),
                        .saved_here = array.saved_here,
                        .hint = std::move(array.hint),
                        .any_rows = array.any_rows,
                        .unless = array.unless.empty()
                                      ? std::string()
                                      : fmt::format("{}/{}", array.unless, table.name),
                        .order = array.order});
    }
  }
  return arrays;
}

Exported export_weights(const Checkpoint& checkpoint, const std::string& path, bool tables) {
  std::vector<base::SafetensorsItem> items;
  std::vector<const Checkpoint::Array*> arrays;
  Exported exported;
  for (const Checkpoint::Array& array : checkpoint.arrays()) {
    if (tables && array.file == kTables && array.name.starts_with("key/")) {
      fail(ErrorCode::kUnsupported,
           fmt::format("{}: table `{}` is dynamic: its rows belong to ids, which this file has no "
                       "place for; export without --tables",
                       checkpoint.path(), array.name.substr(array.name.find('/') + 1)));
    }
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
