#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "data/store/file_check.h"

namespace segue::data {

/// A file that is derived from a store and can be made again: a few arrays in one file.
///
/// Layout, little-endian: a header of 4096 bytes (magic, fingerprint of what the file was made
/// from, sizes, checksum of itself), the sections, each on a multiple of 64 bytes, then one XXH64
/// per block of 16 MiB. A file that is cut off, was made from something else, or whose blocks do
/// not match is not opened but made again. Opening checks all blocks of a small file (up to 256
/// MiB) and 16, spread over the whole, of a large one; find_damage() checks them all.
class IndexFile {
 public:
  /// Nothing, and the reason in `why`, when the file cannot be used.
  static std::optional<IndexFile> open(const std::string& path, uint64_t fingerprint,
                                       std::string& why);
  /// What is wrong with the file, whatever it was made from; empty: nothing. Checks all blocks.
  static std::string find_damage(const std::string& path);

  const std::string& path() const { return path_; }
  /// Error(kCorrupt) if the file has no such section: only checksums have been looked at so far,
  /// and anyone can make those.
  template <class T>
  std::span<const T> section(size_t i) const {
    const std::span<const std::byte> bytes = section_bytes(i, sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// For whoever finds that numbers in it make no sense.
  [[noreturn]] void fail_senseless(const std::string& what) const;
  /// Everything that opening may have left out.
  CheckedFile checked() const;

 private:
  std::span<const std::byte> section_bytes(size_t i, size_t element_bytes) const;
  static std::optional<IndexFile> open(const std::string& path, const uint64_t* fingerprint,
                                       int64_t blocks_checked, std::string& why);

  std::string path_;
  std::unique_ptr<base::MappedFile> file_;
  std::vector<std::span<const std::byte>> sections_;
  std::vector<Checksum> blocks_;
};

/// Writes an IndexFile whose sizes are known beforehand, in any order; under a temporary name until
/// commit(), which computes the checksums and syncs. Without commit() nothing is left.
class IndexWriter {
 public:
  IndexWriter(std::string path, uint64_t fingerprint, std::span<const int64_t> section_bytes);
  ~IndexWriter();
  IndexWriter(const IndexWriter&) = delete;
  IndexWriter& operator=(const IndexWriter&) = delete;

  /// Safe from several threads for different places.
  void write(size_t section, int64_t offset, const void* data, int64_t bytes) const;
  template <class T>
  void write_items(size_t section, int64_t first, std::span<const T> items) const {
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    write(section, first * kSize, items.data(), static_cast<int64_t>(items.size()) * kSize);
  }
  void commit();

 private:
  void put(int64_t at, const void* data, int64_t bytes) const;
  [[noreturn]] void fail_to_write() const;  // with errno

  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t fingerprint_ = 0;
  std::vector<int64_t> section_begin_, section_bytes_;
  int64_t checksums_begin_ = 0;
};

/// Held while files of an index folder are made, so that of several ranks one makes them and the
/// others find them made. Makes the folder; Error(kIo) says how to choose another one.
class IndexLock {
 public:
  explicit IndexLock(const std::string& folder);
  ~IndexLock();
  IndexLock(const IndexLock&) = delete;
  IndexLock& operator=(const IndexLock&) = delete;

 private:
  int fd_ = -1;
};

/// The file `name` of `folder`, made by `build(path)` when it is missing, stale or damaged.
IndexFile open_or_build(const std::string& folder, const std::string& name, uint64_t fingerprint,
                        const std::function<void(const std::string& path)>& build);

/// The progress line of a builder whose threads report what they did. Small stores get none.
class BuildProgress {
 public:
  BuildProgress(const std::string& label, int64_t total, const std::string& unit);
  ~BuildProgress();
  void add(int64_t done);

 private:
  std::mutex mutex_;
  std::unique_ptr<base::Progress> line_;
  int64_t total_ = 0, done_ = 0;
};

/// Says whether `bytes` are the ones an index was made from: their number and their hash, of large
/// arrays that of 256 pages spread over the whole. It does not depend on where a store lies or when
/// it was copied. EventStore::fingerprint_of_file() sees more.
inline constexpr size_t kWholeFingerprint = size_t{4} << 20;  // bytes; larger arrays are large
uint64_t fingerprint(std::span<const std::byte> bytes, uint64_t seed);
template <class T>
uint64_t fingerprint_of(std::span<const T> items, uint64_t seed) {
  return fingerprint(std::as_bytes(items), seed);
}
/// The same of all bytes of any array: for maps, which newer ones replace in a few places.
uint64_t fingerprint_of_map(std::span<const int32_t> map, uint64_t seed);

/// Tells the system that mapped pages, which it can read again, need not stay in memory.
void forget_pages(std::span<const std::byte> bytes);
template <class T>
void forget(std::span<const T> items) {
  forget_pages(std::as_bytes(items));
}

}  // namespace segue::data
