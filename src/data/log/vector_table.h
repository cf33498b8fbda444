#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace segue::data {

/// Columns of a file of vectors: `id`, then `weight`, a list of `dim` numbers, then `scale`.
struct VectorShape {
  enum class Number { kF32, kU16, kI8 } number = Number::kF32;
  int64_t dim = 0;      // 0: ids alone
  bool scaled = false;  // whether there is a scale

  int64_t number_bytes() const {
    return number == Number::kF32 ? 4 : number == Number::kU16 ? 2 : 1;
  }
};

/// Consecutive rows; nothing is copied.
struct VectorBlock {
  std::span<const int64_t> ids;
  const std::byte* numbers = nullptr;  // [ids, dim]
  const float* scales = nullptr;
};

class VectorWriter {
 public:
  virtual ~VectorWriter() = default;
  virtual void write(const VectorBlock& rows) = 0;
  virtual void finish() = 0;  // the file appears, durably
};

/// Reads a file from front to back, in bounded memory.
class VectorReader {
 public:
  virtual ~VectorReader() = default;
  virtual int64_t rows() const = 0;  // of the file
  /// The next rows, valid until the call after; false at the end.
  virtual bool read(VectorBlock& block) = 0;
};

/// What the optional Parquet library gives to those who keep vectors.
class VectorFiles {
 public:
  virtual ~VectorFiles() = default;
  /// What is written in one call is a row group of its own: equal calls give equal bytes.
  virtual std::unique_ptr<VectorWriter> create(const std::string& path,
                                               const VectorShape& shape) const = 0;
  /// Error(kCorrupt) where the file has other columns.
  virtual std::unique_ptr<VectorReader> open(const std::string& path,
                                             const VectorShape& shape) const = 0;
};

}  // namespace segue::data
