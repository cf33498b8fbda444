#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "publish/version_manifest.h"

namespace segue::publish {

/// A folder of versions that nobody else publishes into meanwhile. Made if it is not there; what a
/// killed publisher left is cleared away.
class OwnedFolder {
 public:
  /// Error(kInvalidArgument) while another process has it.
  explicit OwnedFolder(const std::string& path);

  /// Points `current` to the version, in one step and durably.
  void switch_to(int64_t number) const;

 private:
  std::string path_;
  base::Descriptor lock_;  // until this is gone
};

/// A version in the making, in a folder of its own that goes away unless it is committed.
class VersionWriter {
 public:
  VersionWriter(const OwnedFolder& owned, const std::string& folder, int64_t number);
  ~VersionWriter();
  VersionWriter(const VersionWriter&) = delete;
  VersionWriter& operator=(const VersionWriter&) = delete;

  /// Where its files are put, each of them synced.
  const std::string& path() const { return temporary_; }
  /// Writes the manifest, renames, switches. A process that is killed has published it or not.
  void commit(const VersionManifest& manifest);

 private:
  const OwnedFolder& owned_;
  std::string folder_;
  int64_t number_;
  std::string temporary_;
};

}  // namespace segue::publish
