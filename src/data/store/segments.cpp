#include "data/store/segments.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "segue/segments";

[[noreturn]] void corrupt_segment(const std::string& path, const std::string& what) {
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: {}; bring the segments back as they were, or prepare the store again", path,
                   what));
}

void require_next(const StoreManifest& base, const StoreManifest& before, const StoreManifest& m,
                  int64_t number, const std::string& path) {
  if (m.segment.number != number) {
    corrupt_segment(path, fmt::format("is segment {}, not {}", m.segment.number, number));
  }
  if (m.segment.previous != before.checksum()) {
    corrupt_segment(path, number == 1 ? "was appended to another store"
                                      : fmt::format("does not follow segment {}", number - 1));
  }
  const base::FileRecord *const mine = m.find(kSchemaFile), *const first = base.find(kSchemaFile);
  if (m.history_length != base.history_length || mine == nullptr || first == nullptr ||
      mine->xxh64 != first->xxh64) {
    corrupt_segment(path, "has another schema or history length than the store");
  }
}

}  // namespace

std::string segment_name(int64_t number) { return fmt::format("{}/{:06}", kFolder, number); }

int64_t count_segments(const std::string& store) {
  const std::string folder = fmt::format("{}/{}", store, kFolder);
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be listed: {}", folder, error.message()));
  }
  std::ranges::sort(names);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string wanted = segment_name(static_cast<int64_t>(i) + 1);
    const std::string path = fmt::format("{}/{}", store, wanted);
    if (!wanted.ends_with("/" + names[i])) {
      corrupt_segment(path, fmt::format("is missing, while there is {}/{}", folder, names[i]));
    }
  }
  return static_cast<int64_t>(names.size());
}

std::vector<StoreManifest> read_manifests(const std::string& store, int64_t most) {
  std::vector<StoreManifest> all = {StoreManifest::read(store)};
  const int64_t count = most == 0 ? 0 : std::min(most, count_segments(store));
  for (int64_t number = 1; number <= count; ++number) {
    const std::string path = fmt::format("{}/{}", store, segment_name(number));
    StoreManifest next = StoreManifest::read(path);
    require_next(all.front(), all.back(), next, number, path);
    all.push_back(std::move(next));
  }
  return all;
}

}  // namespace segue::data
