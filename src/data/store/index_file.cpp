#include "data/store/index_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"

namespace segue::data {
namespace {

constexpr uint64_t kMagic = 0x3158444E49474553ull;  // "SEGINDX1"
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kAlignment = 64;
constexpr int64_t kBlockBytes = int64_t{16} << 20;
constexpr int64_t kMaxSections = 64;
constexpr int64_t kBlocksChecked = 16;  // of a file, when it is opened

constexpr const char* kNoFile = "there is none yet";

struct Header {
  uint64_t magic = kMagic;
  uint64_t checksum = 0;  // of what follows
  uint64_t fingerprint = 0;
  int64_t num_sections = 0;
  int64_t section_bytes[kMaxSections] = {};
  int64_t num_blocks = 0;
  uint64_t blocks_checksum = 0;  // of the checksums at the end

  uint64_t own_checksum() const {
    const auto* begin = reinterpret_cast<const std::byte*>(&fingerprint);
    const auto* end = reinterpret_cast<const std::byte*>(this + 1);
    return base::xxh64(begin, static_cast<size_t>(end - begin));
  }
};
static_assert(sizeof(Header) <= kHeaderBytes);

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::span<const std::byte> block_of(std::span<const std::byte> payload, int64_t block) {
  const auto begin = static_cast<size_t>(block * kBlockBytes);
  return payload.subspan(begin, std::min(payload.size() - begin, static_cast<size_t>(kBlockBytes)));
}

uint64_t block_checksum(std::span<const std::byte> payload, int64_t block) {
  const std::span<const std::byte> bytes = block_of(payload, block);
  return base::xxh64(bytes.data(), bytes.size());
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::optional<IndexFile> IndexFile::open(const std::string& path, uint64_t fingerprint,
                                         std::string& why) {
  return open(path, &fingerprint, kBlocksChecked, why);
}

std::string IndexFile::find_damage(const std::string& path) {
  std::string why;
  open(path, nullptr, std::numeric_limits<int64_t>::max(), why);
  return why;
}

std::optional<IndexFile> IndexFile::open(const std::string& path, const uint64_t* fingerprint,
                                         int64_t blocks_checked, std::string& why) {
  const auto reject = [&why](std::string text) {
    why = std::move(text);
    return std::nullopt;
  };
  if (!base::exists(path)) return reject(kNoFile);
  IndexFile index;
  index.path_ = path;
  index.file_ = std::make_unique<base::MappedFile>(path);
  const std::span<const std::byte> all = index.file_->bytes();
  const auto size = static_cast<int64_t>(all.size());
  if (size < kHeaderBytes) return reject("it is cut off");
  Header header;
  std::memcpy(&header, all.data(), sizeof(header));
  if (header.magic != kMagic) return reject("it is no index, or of another version");
  if (header.checksum != header.own_checksum()) return reject("its header is damaged");
  if (fingerprint != nullptr && header.fingerprint != *fingerprint)
    return reject("the store, or the way it is made, has changed");

  // The file may be cut off, and the header's checksum is one that anybody can compute.
  if (header.num_sections < 0 || header.num_sections > kMaxSections) {
    return reject("its header is damaged");
  }
  int64_t at = kHeaderBytes;
  for (int64_t i = 0; i < header.num_sections; ++i) {
    const int64_t bytes = header.section_bytes[i];
    if (bytes < 0 || bytes > size - at) return reject("it is cut off");
    index.sections_.push_back(all.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes)));
    at += aligned(bytes);
  }
  const int64_t blocks = base::num_chunks(at - kHeaderBytes, kBlockBytes);
  if (header.num_blocks != blocks || at + blocks * static_cast<int64_t>(sizeof(uint64_t)) != size) {
    return reject("it is cut off");
  }
  std::vector<uint64_t> checksums(static_cast<size_t>(blocks));
  if (blocks > 0)
    std::memcpy(checksums.data(), all.data() + at, checksums.size() * sizeof(uint64_t));
  if (base::xxh64(checksums.data(), checksums.size() * sizeof(uint64_t)) !=
      header.blocks_checksum) {
    return reject("its checksums are damaged");
  }
  const std::span<const std::byte> payload =
      all.subspan(kHeaderBytes, static_cast<size_t>(at - kHeaderBytes));
  const int64_t checked = std::min(blocks, blocks_checked);
  for (int64_t i = 0; i < checked; ++i) {
    const int64_t block = checked == 1 ? 0 : i * (blocks - 1) / (checked - 1);
    if (block_checksum(payload, block) != checksums[static_cast<size_t>(block)]) {
      return reject("its content is damaged");
    }
    forget_pages(block_of(payload, block));
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = kHeaderBytes + block * kBlockBytes;
    index.blocks_.push_back(
        {begin, std::min(begin + kBlockBytes, at), checksums[static_cast<size_t>(block)]});
  }
  return index;
}

std::span<const std::byte> IndexFile::section_bytes(size_t i, size_t element_bytes) const {
  if (i >= sections_.size() || sections_[i].size() % element_bytes != 0) {
    fail_senseless("its sections are not those of such an index");
  }
  return sections_[i];
}

void IndexFile::fail_senseless(const std::string& what) const {
  fail(ErrorCode::kCorrupt, fmt::format("{}: {}; remove the file, it is made again", path_, what));
}

CheckedFile IndexFile::checked() const {
  return {.name = std::filesystem::path(path_).filename().string(),
          .path = path_,
          .identity = file_->identity(),
          .bytes = file_->identity().bytes,
          .checksums = blocks_};
}

IndexWriter::IndexWriter(std::string path, uint64_t fingerprint,
                         std::span<const int64_t> section_bytes)
    : path_(std::move(path)),
      fingerprint_(fingerprint),
      section_bytes_(section_bytes.begin(), section_bytes.end()) {
  SEGUE_ASSERT(section_bytes.size() <= kMaxSections, "more sections than the header holds");
  int64_t at = kHeaderBytes;
  for (const int64_t bytes : section_bytes_) {
    section_begin_.push_back(at);
    at += aligned(bytes);
  }
  checksums_begin_ = at;
  base::TemporaryFile made = base::create_temporary(path_);
  temporary_ = std::move(made.path);
  fd_ = made.descriptor;
  if (::ftruncate(fd_, checksums_begin_) != 0) {
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    ::unlink(temporary_.c_str());
    errno = error;
    fail_to_write();
  }
}

IndexWriter::~IndexWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void IndexWriter::fail_to_write() const {
  const int error = errno;
  fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", path_, reason(error)));
}

void IndexWriter::put(int64_t at, const void* data, int64_t bytes) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(fd_, from, static_cast<size_t>(bytes), at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail_to_write();
    from += done;
    at += done;
    bytes -= done;
  }
}

void IndexWriter::write(size_t section, int64_t offset, const void* data, int64_t bytes) const {
  SEGUE_ASSERT(offset >= 0 && bytes >= 0 && bytes <= section_bytes_[section] - offset,
               "write beyond the section of an index");
  put(section_begin_[section] + offset, data, bytes);
}

void IndexWriter::commit() {
  SEGUE_ASSERT(fd_ >= 0, "commit twice");
  Header header;
  header.fingerprint = fingerprint_;
  header.num_sections = static_cast<int64_t>(section_bytes_.size());
  std::ranges::copy(section_bytes_, header.section_bytes);
  const int64_t payload_bytes = checksums_begin_ - kHeaderBytes;
  header.num_blocks = base::num_chunks(payload_bytes, kBlockBytes);
  std::vector<uint64_t> checksums(static_cast<size_t>(header.num_blocks));
  if (payload_bytes > 0) {
    const base::MappedFile written(temporary_);
    const std::span<const std::byte> payload = written.bytes().subspan(kHeaderBytes);
    base::parallel_for(header.num_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        checksums[static_cast<size_t>(block)] = block_checksum(payload, block);
        forget_pages(block_of(payload, block));
      }
    });
  }
  const size_t checksum_bytes = checksums.size() * sizeof(uint64_t);
  header.blocks_checksum = base::xxh64(checksums.data(), checksum_bytes);
  header.checksum = header.own_checksum();
  put(checksums_begin_, checksums.data(), static_cast<int64_t>(checksum_bytes));
  put(0, &header, sizeof(header));
  if (::fsync(fd_) != 0) fail_to_write();
  if (::close(std::exchange(fd_, -1)) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    fail_to_write();
  }
  // The name needs no sync of its own: after a crash the file is there or it is made again.
}

IndexLock::IndexLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  try {
    base::make_folders(folder);
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd_ < 0) fail(ErrorCode::kIo, fmt::format("{}: {}", path, reason(errno)));
  } catch (const Error& error) {
    fail(ErrorCode::kIo, fmt::format("{}\nSegue keeps files that it derives from a store in this "
                                     "folder; choose a writable one with --index DIR",
                                     error.what()));
  }
  // Some network file systems have no locks: then several ranks may do the same work.
  while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

IndexLock::~IndexLock() {
  if (fd_ >= 0) ::close(fd_);
}

namespace {

/// Removes what killed processes left of `path`, which may be large. Whoever still writes, on a
/// file system without locks, has written lately.
void remove_leftovers(const std::string& folder, const std::string& name) {
  namespace fs = std::filesystem;
  constexpr std::chrono::hours kLongAgo{1};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(name + ".tmp-")) continue;
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(error);
    if (!error && age > kLongAgo) fs::remove(entry.path(), error);
  }
}

}  // namespace

IndexFile open_or_build(const std::string& folder, const std::string& name, uint64_t fingerprint,
                        const std::function<void(const std::string& path)>& build) {
  const std::string path = folder + "/" + name;
  std::string why;
  std::optional<IndexFile> file = IndexFile::open(path, fingerprint, why);
  if (file) return std::move(*file);
  const IndexLock lock(folder);
  file = IndexFile::open(path, fingerprint, why);  // another rank may have made it meanwhile
  if (file) return std::move(*file);
  // Making it for the first time is not worth a line; a progress line shows if it takes long.
  base::log(why == kNoFile ? base::LogLevel::kDebug : base::LogLevel::kInfo,
            fmt::format("making {}: {}", path, why));
  remove_leftovers(folder, name);
  build(path);
  file = IndexFile::open(path, fingerprint, why);
  if (!file) fail(ErrorCode::kIo, fmt::format("{}: was just written, but {}", path, why));
  return std::move(*file);
}

BuildProgress::BuildProgress(const std::string& label, int64_t total, const std::string& unit)
    : total_(total) {
  constexpr int64_t kWorthALine = 20'000'000;
  if (total >= kWorthALine) line_ = std::make_unique<base::Progress>(label, total, unit);
}

BuildProgress::~BuildProgress() = default;

void BuildProgress::add(int64_t done) {
  if (!line_) return;
  const std::lock_guard lock(mutex_);
  done_ += done;
  line_->update(done_);
  if (done_ == total_) line_->finish();
}

namespace {

uint64_t whole_fingerprint(std::span<const std::byte> bytes, uint64_t seed) {
  return base::xxh64(bytes.data(), bytes.size(), base::splitmix64(seed ^ bytes.size()));
}

}  // namespace

uint64_t fingerprint_of_map(std::span<const int32_t> map, uint64_t seed) {
  return whole_fingerprint(std::as_bytes(map), seed);
}

uint64_t fingerprint(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr size_t kPage = 4096;
  constexpr size_t kPages = 256;
  if (bytes.size() <= kWholeFingerprint) return whole_fingerprint(bytes, seed);
  uint64_t hash = base::splitmix64(seed ^ bytes.size());
  for (size_t i = 0; i < kPages; ++i) {
    const size_t at = (bytes.size() - kPage) / (kPages - 1) * i;
    hash = base::xxh64(bytes.data() + at, kPage, hash);
  }
  return hash;
}

void forget_pages(std::span<const std::byte> bytes) {
  static const auto kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t before = (kPage - address % kPage) % kPage;  // of the first whole page
  if (bytes.size() < before + kPage) return;
  const size_t pages = (bytes.size() - before) / kPage;
  // The mapping is read-only and stays so. Advice only: nothing depends on whether it is taken.
  auto* const begin = const_cast<std::byte*>(bytes.data() + before);
  ::madvise(begin, pages * kPage, MADV_DONTNEED);
}

}  // namespace segue::data
