#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace segue::data {

/// What was compared, and what is wrong, one line each.
struct VerifyReport {
  bool has_manifest = false;
  int64_t files = 0, bytes = 0;  // compared with the manifest
  int64_t events = 0, users = 0, anchors = 0;
  std::vector<std::string> problems;  // the first of each kind, with its place

  bool ok() const { return problems.empty(); }
  /// Error(kCorrupt) that lists the problems.
  void throw_if_bad(const std::string& store) const;
};

/// Reads a whole store through buffers (memory: 8 bytes per item). Compares every file with the
/// manifest: size, header, checksum. Then derives users, pools, anchors and popularity again from
/// the events and compares every element, and checks every block of the index files. A store
/// without manifest, written by others, is held to the rules of the Yambda benchmark. So it does
/// with the segments of a store, which must be all there, in their order.
VerifyReport verify_store(const std::string& store);

/// Compares sizes and headers of all files with the manifests, if there are any; events, users and
/// anchors stay 0.
VerifyReport compare_sizes(const std::string& store);

}  // namespace segue::data
