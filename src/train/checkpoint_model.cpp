#include "train/checkpoint_model.h"

#include <cstdio>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace segue::train {
namespace {

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

}  // namespace

std::vector<CheckpointArray> model_arrays(const model::Parameters& parameters,
                                          const sparse::Tables& tables) {
  std::vector<CheckpointArray> arrays;
  const auto add = [&](std::string_view file, std::string_view kind, std::string_view name,
                       const Tensor& value) {
    arrays.push_back({std::string(file), fmt::format("{}{}", kind, name), value});
  };
  for (const model::Parameter& p : parameters.all()) add(kDense, kParameter, p.name, p.value);
  for (const model::Parameter& p : parameters.all()) add(kDense, kFirstMoment, p.name, p.m);
  for (const model::Parameter& p : parameters.all()) add(kDense, kSecondMoment, p.name, p.v);
  for (const sparse::TableConfig& table : tables.config().tables) {
    const sparse::TableId id = tables.id(table.name);
    add(kTables, kWeight, table.name, tables.weights(id));
    add(kTables, kState, table.name, tables.state(id));
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
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  try {
    ShardWriter writer(temporary, layout.header);
    for (const size_t i : layout.data_order) {
      for (const std::span<const std::byte> part : arrays[i]->parts) {
        writer.write(part.data(), Device::cpu(), static_cast<int64_t>(part.size()), nullptr);
      }
    }
    exported.bytes = writer.finish().bytes;
    data::rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  data::sync_folder(folder.empty() ? "." : folder.string());
  return exported;
}

}  // namespace segue::train
