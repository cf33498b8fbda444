#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_io.h"

namespace segue::data {

/// A part of a file, and the XXH64 that its bytes must have.
struct Checksum {
  int64_t begin = 0, end = 0;
  uint64_t xxh64 = 0;
};

/// Header and elements of an array, or the whole of another file.
std::vector<Checksum> checksums_of(const base::FileRecord& record);

/// A file that somebody reads, and what must be in it.
struct CheckedFile {
  std::string name, path;
  base::FileIdentity identity;  // of the file that was opened
  int64_t bytes = 0;
  std::vector<Checksum> checksums;
};

/// Compares a file with its checksums, a buffer at a time: whoever does it can stop in between, and
/// another thread go on.
class FileCheck {
 public:
  FileCheck(base::InputFile file, int64_t bytes, std::vector<Checksum> checksums);
  /// A file that is in use: one that took its place since is a problem.
  explicit FileCheck(const CheckedFile& file);

  /// Reads on; false when there is nothing left, or something is wrong. Error(kIo) when the file
  /// cannot be read.
  bool advance();
  void finish() {
    while (advance()) {
    }
  }
  int64_t bytes_read() const { return bytes_read_; }
  const std::string& problem() const { return problem_; }  // empty: none so far

 private:
  base::InputFile file_;
  std::vector<Checksum> checksums_;
  size_t current_ = 0;  // of the checksums
  int64_t at_ = 0, asked_ahead_ = 0;
  base::Xxh64Stream hash_;
  std::vector<char> buffer_;
  int64_t bytes_read_ = 0;
  std::string problem_;
};

}  // namespace segue::data
