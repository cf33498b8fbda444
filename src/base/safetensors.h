#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::base {

class MappedFile;

/// One tensor inside a safetensors file. `dtype` is the format's own word, such as F32, BF16 or
/// I64.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // mapped; alive as long as the file object
  std::string origin;                // file and name, for messages

  int64_t elements() const;
  template <class T>
  std::span<const T> as(std::string_view expected_dtype) const {
    return {static_cast<const T*>(checked_data(expected_dtype, sizeof(T))),
            static_cast<size_t>(elements())};
  }
  /// Values converted, wherever they lie: to_doubles from any real or integer type, to_ints from
  /// integers and booleans. as<T>() needs the stored type and, because it does not copy, aligned
  /// data.
  std::vector<double> to_doubles() const;
  std::vector<int64_t> to_ints() const;

 private:
  const void* checked_data(std::string_view expected_dtype, size_t element_bytes) const;
};

/// Memory-mapped reader. Opening checks everything a hostile file could lie about: header length
/// (at most 100 MB and inside the file), JSON, dtypes, shapes against offsets (with overflow),
/// offsets against the file, gaps and overlaps. Throws Error(kCorrupt) naming the file and the
/// tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  /// Of the bytes of a file, which must outlive this; `path` is for messages.
  SafetensorsFile(std::span<const std::byte> file, const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null if absent
  const SafetensorsEntry& get(std::string_view name) const;   // Error(kNotFound) with nearest name

 private:
  SafetensorsFile(std::unique_ptr<MappedFile> file, const std::string& path);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, SafetensorsEntry, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

struct SafetensorsItem {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

/// What a file begins with, and the order in which the data of the items follows it.
struct SafetensorsLayout {
  std::string header;  // length field included
  std::vector<size_t> data_order;
};
/// The header lists the items in the given order; data of wider types comes first, so that every
/// tensor is aligned for its type. `data` of the items is not looked at. Error(kInvalidArgument),
/// with `path` for the message, when two have one name or an item cannot be.
SafetensorsLayout safetensors_layout(
    const std::string& path, std::span<const SafetensorsItem> items,
    const std::map<std::string, std::string, std::less<>>& metadata = {});

/// Writes a temporary file beside `path`, fsyncs, renames: a reader sees the old file or the new
/// one. Laid out as above.
void write_safetensors(const std::string& path, std::span<const SafetensorsItem> items,
                       const std::map<std::string, std::string, std::less<>>& metadata = {});

}  // namespace segue::base
