#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "data/store/file_check.h"

namespace segue::data {

/// When checksums of what is read are compared: once per store and machine, each time, or never.
enum class VerifyMode { kAuto, kAlways, kNever };

/// Which files of a store this machine has compared with their checksums:
/// FOLDER/verified-<machine>.json. A file counts as long as it is the same one, unchanged (see
/// base::FileIdentity), so a copy of a store is compared again, as is one that was made anew.
/// Safe to use from several threads.
class VerifiedFiles {
 public:
  /// `manifest` is the checksum of the store's manifest, 0 without one. What is there of another
  /// manifest, or damaged, counts for nothing.
  VerifiedFiles(std::string folder, uint64_t manifest);

  void read();  // what was saved before
  bool contains(const CheckedFile& file) const;
  void add(const CheckedFile& file);
  /// Error(kIo). Several processes may save: each adds to what is there.
  void save() const;
  const std::string& path() const { return path_; }

 private:
  using Files = std::map<std::string, base::FileIdentity>;  // by name

  Files saved() const;
  std::string to_json(const Files& files) const;

  std::string folder_, path_;
  uint64_t manifest_ = 0;
  mutable std::mutex mutex_;
  Files files_;
};

}  // namespace segue::data
