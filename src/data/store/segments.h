#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "data/store/store_manifest.h"

namespace segue::data {

/// What `segue prep --append` adds to a store lies in STORE/segue/segments/000001 and on: each
/// segment is a small store of later events, without anchor lists, which depend on what came
/// before. Its manifest has its number and the checksum of the manifest before it, so that one that
/// is missing, repeated or in another place is found.
inline constexpr int64_t kAllSegments = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMostSegments = 999'999;

/// "segue/segments/000001"
std::string segment_name(int64_t number);

/// How many segments there are. Error(kCorrupt) if one is missing, or something else lies there.
int64_t count_segments(const std::string& store);

/// The manifests of a store and of its first `most` segments, which belong together.
/// Error(kCorrupt) names the one that does not.
std::vector<StoreManifest> read_manifests(const std::string& store, int64_t most = kAllSegments);

}  // namespace segue::data
