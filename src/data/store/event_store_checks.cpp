// Which files of a store were read, and whether they are as they were written.

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/store/event_store.h"
#include "data/synth/synth_output.h"

namespace segue::data {

void EventStore::open_manifest() {
  const bool verifies = verify_ != VerifyMode::kNever;
  try {
    if (base::exists(folder_ + "/" + kManifestFile)) manifest_ = StoreManifest::read(folder_);
  } catch (const Error&) {
    if (verifies) throw;
  }
  if (!verifies) return;
  verified_ = std::make_unique<VerifiedFiles>(index_folder_, manifest_ ? manifest_->checksum() : 0);
  if (verify_ == VerifyMode::kAuto) verified_->read();
  // What others read of the store before or after it is opened.
  for (const std::string& path : {folder_ + "/" + kSchemaFile, folder_ + "/" + kTruthFile,
                                  cache_folder_ + "/store_meta.json"}) {
    if (base::exists(path)) note_opened(path, base::identity_of(base::open_regular(path)));
  }
}

void EventStore::note_opened(const std::string& path, const base::FileIdentity& identity) const {
  if (!manifest_) return;
  const std::string name = std::filesystem::path(path).lexically_relative(folder_).string();
  const base::FileRecord* const record = manifest_->find(name);
  const std::lock_guard lock(opened_mutex_);
  if (record == nullptr) {
    unlisted_.push_back(path);
  } else {
    opened_.push_back({name, path, identity, record->bytes, checksums_of(*record)});
  }
}

std::vector<CheckedFile> EventStore::checked_files() const {
  if (verify_ == VerifyMode::kNever) return {};
  const std::lock_guard lock(opened_mutex_);
  return opened_;
}

std::vector<std::string> EventStore::unlisted_files() const {
  if (verify_ == VerifyMode::kNever) return {};
  const std::lock_guard lock(opened_mutex_);
  return unlisted_;
}

uint64_t EventStore::fingerprint_of_file(const std::string& path, std::span<const std::byte> bytes,
                                         uint64_t seed) const {
  uint64_t key = fingerprint(bytes, seed);
  if (bytes.size() <= kWholeFingerprint) return key;
  const std::lock_guard lock(opened_mutex_);
  const auto file = std::ranges::find(opened_, path, &CheckedFile::path);
  if (file == opened_.end()) return key;
  for (const Checksum& checksum : file->checksums) key = base::splitmix64(key ^ checksum.xxh64);
  return key;
}

void EventStore::require_intact(std::span<const std::string> paths) const {
  std::vector<CheckedFile> files;
  int64_t bytes = 0;
  for (CheckedFile& file : checked_files()) {
    if (std::ranges::find(paths, file.path) == paths.end() || verified_->contains(file)) continue;
    bytes += file.bytes;
    files.push_back(std::move(file));
  }
  BuildProgress progress("checksums", bytes, "bytes");
  base::parallel_for(static_cast<int64_t>(files.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const CheckedFile& file = files[static_cast<size_t>(i)];
      FileCheck check(file);
      check.finish();
      if (!check.problem().empty()) fail_damaged(file.path, check.problem());
      verified_->add(file);
      progress.add(file.bytes);
    }
  });
}

void EventStore::fail_damaged(const std::string& path, const std::string& problem) const {
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: {}. Nothing that was made from it can be trusted. `segue prep --out {} "
                   "--verify` looks through the whole store; bring the file back, or prepare the "
                   "store again. data.verify = \"never\" goes on without looking",
                   path, problem, folder_));
}

}  // namespace segue::data
