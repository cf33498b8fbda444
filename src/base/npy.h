#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::base {

class MappedFile;
struct FileIdentity;

/// A memory-mapped NumPy array, C order, header versions 1 to 3. Opening checks magic, header and
/// that the file holds exactly the announced bytes; Error(kCorrupt) otherwise.
class NpyFile {
 public:
  explicit NpyFile(const std::string& path);
  /// Of the bytes of a file, which must outlive this; `path` is for messages.
  NpyFile(std::span<const std::byte> file, const std::string& path);
  ~NpyFile();
  NpyFile(NpyFile&&) noexcept;

  const std::string& path() const { return path_; }
  const std::string& descr() const { return descr_; }  // NumPy's word, e.g. "<i8", "<f4", "|b1"
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const;
  std::span<const std::byte> bytes() const { return data_; }
  const FileIdentity& identity() const;  // of the file; not of bytes in memory

  template <class T>
  std::span<const T> as(std::string_view expected_descr) const {
    return {static_cast<const T*>(checked_data(expected_descr, sizeof(T))),
            static_cast<size_t>(elements())};
  }

 private:
  NpyFile(std::unique_ptr<MappedFile> file, const std::string& path);
  const void* checked_data(std::string_view expected_descr, size_t element_bytes) const;

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::string descr_;
  std::vector<int64_t> shape_;
  std::span<const std::byte> data_;
};

/// Byte for byte what NumPy's save() writes for the same array; atomic as write_safetensors.
void write_npy(const std::string& path, std::string_view descr, std::span<const int64_t> shape,
               std::span<const std::byte> data);

/// The header alone, for writers that stream their data.
std::string npy_header(std::string_view descr, std::span<const int64_t> shape);

}  // namespace segue::base
