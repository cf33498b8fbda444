#include "publish/table_file.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"

namespace segue::publish {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kGroupBytes = 32 << 20;  // of a row group; part of what makes equal files equal

const char* safetensors_word(RowType type) {
  switch (type) {
    case RowType::kF32:
      return "F32";
    case RowType::kBf16:
      return "BF16";
    case RowType::kInt8:
      break;
  }
  return "I8";
}

/// Its columns in the order of the header.
std::vector<base::SafetensorsItem> items_of(const RowCodec& codec, int64_t rows, int64_t removed) {
  std::vector<base::SafetensorsItem> items = {
      {"id", "I64", {rows}, nullptr},
      {"weight", safetensors_word(codec.type()), {rows, codec.dim()}, nullptr},
      {"removed", "I64", {removed}, nullptr}};
  if (codec.scaled()) items.push_back({"scale", "F32", {rows}, nullptr});
  return items;
}

/// All of a mapped file is one block.
class SafetensorsTable final : public TableFile {
 public:
  SafetensorsTable(const std::string& path, const PublishedTable& table, RowType dtype)
      : file_(path) {
    const RowCodec codec(dtype, table.dim);
    const auto items = items_of(codec, table.in_file, table.removed);
    for (const base::SafetensorsItem& item : items) {
      const base::SafetensorsEntry* const found = file_.find(item.name);
      if (found != nullptr && found->dtype == item.dtype && found->shape == item.shape) continue;
      fail(ErrorCode::kCorrupt, fmt::format("{}: `{}` is not {} [{}], as the manifest has it", path,
                                            item.name, item.dtype, fmt::join(item.shape, ", ")));
    }
    if (file_.tensors().size() != items.size()) {
      fail(ErrorCode::kCorrupt, path + ": there are more tensors in it than a table has");
    }
    block_.ids = file_.get("id").as<int64_t>("I64");
    block_.numbers = file_.get("weight").bytes.data();
    if (codec.scaled()) block_.scales = file_.get("scale").as<float>("F32").data();
    removed_ = file_.get("removed").as<int64_t>("I64");
  }

  bool next(data::VectorBlock& block) override {
    block = std::exchange(block_, {});
    return !block.ids.empty();
  }
  std::span<const int64_t> removed() const override { return removed_; }

 private:
  base::SafetensorsFile file_;
  data::VectorBlock block_;
  std::span<const int64_t> removed_;
};

data::VectorShape shape_of(const RowCodec& codec) {
  using Number = data::VectorShape::Number;
  const Number number = codec.type() == RowType::kF32    ? Number::kF32
                        : codec.type() == RowType::kBf16 ? Number::kU16
                                                         : Number::kI8;
  return {number, codec.dim(), codec.scaled()};
}

class ParquetTable final : public TableFile {
 public:
  ParquetTable(const std::string& folder, const PublishedTable& table, RowType dtype,
               const data::VectorFiles& files) {
    const std::string path = folder + "/" + table_file_name(table.name, FileFormat::kParquet);
    rows_ = files.open(path, shape_of(RowCodec(dtype, table.dim)));
    require(path, rows_->rows() == table.in_file);
    if (table.removed == 0) return;
    const std::string removed_path = folder + "/" + removed_file_name(table.name);
    const auto reader = files.open(removed_path, {});
    require(removed_path, reader->rows() == table.removed);
    data::VectorBlock block;
    while (reader->read(block)) removed_.insert(removed_.end(), block.ids.begin(), block.ids.end());
  }

  bool next(data::VectorBlock& block) override { return rows_->read(block); }
  std::span<const int64_t> removed() const override { return removed_; }

 private:
  static void require(const std::string& path, bool as_said) {
    if (!as_said) fail(ErrorCode::kCorrupt, path + ": has not as many rows as the manifest says");
  }

  std::unique_ptr<data::VectorReader> rows_;
  std::vector<int64_t> removed_;
};

/// Some rows one after the other, as they lie in a file.
struct Chunk {
  std::vector<std::byte> weights;
  std::vector<float> scales;
};

/// Calls `write(first row, ids, chunk)` for all rows of `feed`, some at a time; the sum of their
/// digests.
template <class Write>
uint64_t in_chunks(RowCodec& codec, std::span<const int64_t> ids, const RowFeed& feed,
                   const std::string& path, int64_t chunk_bytes, Write write) {
  const auto most = static_cast<size_t>(std::max<int64_t>(1, chunk_bytes / codec.row_bytes()));
  uint64_t digest = 0;
  size_t first = 0, count = 0;
  Chunk chunk;
  const auto flush = [&] {
    if (count > 0) write(first, ids.subspan(first, count), chunk);
    first += std::exchange(count, 0);
    chunk.weights.clear();
    chunk.scales.clear();
  };
  const auto require = [&](bool as_before) {
    if (!as_before) fail(ErrorCode::kCorrupt, path + ": what it is made of was changed meanwhile");
  };
  feed([&](int64_t id, const Row& row) {
    require(first + count < ids.size() && ids[first + count] == id);
    digest += codec.digest(id, row);
    chunk.weights.insert(chunk.weights.end(), row.weight, row.weight + codec.weight_bytes());
    if (codec.scaled()) chunk.scales.push_back(row.scale);
    if (++count == most) flush();
  });
  require(first + count == ids.size());
  flush();
  return digest;
}

WrittenTable write_safetensors_table(const std::string& folder, const std::string& name,
                                     RowCodec& codec, std::span<const int64_t> ids,
                                     std::span<const int64_t> removed, const RowFeed& feed) {
  const std::string path = folder + "/" + name;
  const auto items = items_of(codec, std::ssize(ids), std::ssize(removed));
  const base::SafetensorsLayout layout = base::safetensors_layout(path, items);
  const auto rows = std::ssize(ids);
  const auto bytes_of = [&](const std::string& item) -> int64_t {
    if (item == "id") return static_cast<int64_t>(ids.size_bytes());
    if (item == "removed") return static_cast<int64_t>(removed.size_bytes());
    return item == "scale" ? rows * static_cast<int64_t>(sizeof(float))
                           : rows * codec.weight_bytes();
  };
  int64_t ids_at = 0, removed_at = 0, scales_at = 0, weights_at = 0;
  auto end = static_cast<int64_t>(layout.header.size());
  for (const size_t i : layout.data_order) {
    const std::string& item = items[i].name;
    (item == "id"        ? ids_at
     : item == "removed" ? removed_at
     : item == "scale"   ? scales_at
                         : weights_at) = end;
    end += bytes_of(item);
  }
  WrittenTable written;
  base::OutputFile file(path);
  file.write(layout.header.data(), layout.header.size());
  file.write_at(ids_at, ids.data(), ids.size_bytes());
  file.write_at(removed_at, removed.data(), removed.size_bytes());
  const auto write = [&](size_t first, std::span<const int64_t>, const Chunk& chunk) {
    const auto row = static_cast<int64_t>(first);
    file.write_at(weights_at + row * codec.weight_bytes(), chunk.weights.data(),
                  chunk.weights.size());
    file.write_at(scales_at + row * static_cast<int64_t>(sizeof(float)), chunk.scales.data(),
                  chunk.scales.size() * sizeof(float));
  };
  written.digest = in_chunks(codec, ids, feed, path, kChunkBytes, write);
  file.close();
  written.files.push_back(base::record_of(base::InputFile(path)));
  written.files.back().name = name;
  return written;
}

WrittenTable write_parquet_table(const std::string& folder, const std::string& table,
                                 RowCodec& codec, std::span<const int64_t> ids,
                                 std::span<const int64_t> removed, const RowFeed& feed,
                                 const data::VectorFiles& files) {
  WrittenTable written;
  const auto record = [&](const std::string& name) {
    written.files.push_back(base::record_of(base::InputFile(folder + "/" + name)));
    written.files.back().name = name;
  };
  const std::string name = table_file_name(table, FileFormat::kParquet);
  const auto writer = files.create(folder + "/" + name, shape_of(codec));
  const auto write = [&](size_t, std::span<const int64_t> some, const Chunk& chunk) {
    writer->write({some, chunk.weights.data(), chunk.scales.data()});
  };
  written.digest = in_chunks(codec, ids, feed, folder + "/" + name, kGroupBytes, write);
  writer->finish();
  record(name);
  if (removed.empty()) return written;
  const std::string removed_name = removed_file_name(table);
  const auto removals = files.create(folder + "/" + removed_name, {});
  removals->write({removed, nullptr, nullptr});
  removals->finish();
  record(removed_name);
  return written;
}

/// A version that does not fit is refused before it takes the room of others.
void require_room(const std::string& folder, int64_t bytes) {
  const std::optional<base::DiskSpace> disk = base::disk_space(folder);
  if (!disk || bytes <= disk->available) return;
  fail(ErrorCode::kIo, fmt::format("{}: No space left on device: a table needs {} bytes, {} are "
                                   "free",
                                   folder, bytes, disk->available));
}

}  // namespace

void require_format(FileFormat format, const data::VectorFiles* parquet) {
  if (format != FileFormat::kParquet || parquet != nullptr) return;
  fail(ErrorCode::kUnsupported,
       "tables in Parquet: built without Parquet support; run scripts/fetch_wheels.sh and rebuild, "
       "or "
       "publish with --format safetensors");
}

std::unique_ptr<TableFile> open_table_file(const std::string& folder,
                                           const VersionManifest& manifest,
                                           const PublishedTable& table,
                                           const data::VectorFiles* parquet) {
  require_format(manifest.format, parquet);
  if (manifest.format == FileFormat::kParquet) {
    return std::make_unique<ParquetTable>(folder, table, manifest.dtype, *parquet);
  }
  const std::string path = folder + "/" + table_file_name(table.name, manifest.format);
  return std::make_unique<SafetensorsTable>(path, table, manifest.dtype);
}

WrittenTable write_table_file(const std::string& folder, const std::string& table,
                              FileFormat format, RowCodec& codec, std::span<const int64_t> ids,
                              std::span<const int64_t> removed, const RowFeed& feed,
                              const data::VectorFiles* parquet) {
  require_format(format, parquet);
  require_room(folder,
               std::ssize(ids) * codec.row_bytes() + static_cast<int64_t>(removed.size_bytes()));
  if (format == FileFormat::kParquet) {
    return write_parquet_table(folder, table, codec, ids, removed, feed, *parquet);
  }
  return write_safetensors_table(folder, table_file_name(table, format), codec, ids, removed, feed);
}

}  // namespace segue::publish
