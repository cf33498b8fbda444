#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/log/vector_table.h"
#include "publish/row_codec.h"
#include "publish/version_manifest.h"

namespace segue::publish {

inline constexpr const char* kCurrent = "current";
/// Names in a folder of versions that begin like this are unfinished.
inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kLock = ".lock";

/// "version-000007"
std::string version_name(int64_t number);
std::string version_path(const std::string& folder, int64_t number);
/// Ascending; nothing is opened. A folder that does not exist has none.
std::vector<int64_t> list_versions(const std::string& folder);
/// The version that `current` points to; absent: there is no such link. Error(kCorrupt) where it
/// is something else.
std::optional<int64_t> current_version(const std::string& folder);

/// What is wrong with `current`, where `newest` is the newest version; empty: nothing. It may lag
/// behind by one: a publisher was killed before the switch, which the next one makes.
std::string current_problem(const std::string& folder, int64_t newest);

/// Error(kCorrupt) where the manifest is damaged or has another number than the folder.
VersionManifest read_version(const std::string& folder, int64_t number);

/// Manifests of these versions, and what is wrong with them and between them, one line each:
/// damage, gaps, another number than that of the folder, not made after the one before.
struct Versions {
  std::map<int64_t, VersionManifest> manifests;  // without those that cannot be read
  std::vector<std::string> problems;
};
Versions read_versions(const std::string& folder, std::span<const int64_t> numbers);

/// What of a manifest does not follow from the one before it; empty: it all does.
std::string link_problem(const VersionManifest& before, const VersionManifest& after);

/// What is wrong with the files of a version, one line each; reads all of them.
std::vector<std::string> file_problems(const std::string& folder, const VersionManifest& manifest);

/// A base and the increments that follow it.
using Chain = std::vector<VersionManifest>;

/// From the base of version `number` to it. Error(kCorrupt) with everything that is wrong with
/// manifests or files; the rows are looked at when they are replayed.
Chain open_chain(const std::string& folder, int64_t number);

/// Puts one table of a chain together again, in one pass over all versions at once, and calls
/// `visit` for each row that the last version leaves. What is wrong, one line each: ids out of
/// order, removed though not there, and after any version other rows than its manifest says.
std::vector<std::string> replay(const std::string& folder, std::span<const VersionManifest> chain,
                                size_t table, const data::VectorFiles* parquet,
                                const VisitRow& visit);

/// Error(kCorrupt) with the lines, if there are any.
void require_none(const std::string& folder, std::span<const std::string> problems);

}  // namespace segue::publish
