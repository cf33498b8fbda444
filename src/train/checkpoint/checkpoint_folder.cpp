#include "train/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_manifest.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

/// <prefix><step>-<number of the save>: what is left of one save is never taken for another's.
constexpr std::string_view kTemporaryStep = ".tmp-step-";
static_assert(kTemporaryStep.starts_with(kTemporaryPrefix));

/// 0: not the name of a save.
int64_t save_number(std::string_view name) {
  if (!name.starts_with(kTemporaryStep)) return 0;
  name.remove_prefix(std::max(kTemporaryStep.size(), name.rfind('-') + 1));
  int64_t number = 0;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be removed: {}", path, error.message()));
  }
}

/// Of an increment: the step that it needs. A damaged one needs nothing any more.
std::optional<int64_t> step_before(const std::string& path) {
  try {
    const CheckpointManifest manifest = CheckpointManifest::read(path);
    if (manifest.increment) return manifest.increment->step;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

/// Swaps two folders in one step; false where the file system cannot.
bool exchange(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace

std::string CheckpointFolder::temporary(int64_t step, int64_t number) const {
  return fmt::format("{}/{}{}-{}", path_, kTemporaryStep, step, number);
}

void CheckpointFolder::put_in_place(int64_t step, int64_t number) const {
  const std::string from = temporary(step, number), path = checkpoint_path(path_, step);
  // A run that was resumed may come to the same step again. What was there before goes with the
  // other temporaries.
  if (base::exists(path) && exchange(from, path)) return;
  if (base::exists(path)) move_aside(step);
  base::rename_path(from, path);
}

/// Out of the list first: a checkpoint that is half removed must not look like a damaged one.
void CheckpointFolder::move_aside(int64_t step) const {
  const std::string aside = fmt::format("{}/{}old-{}", path_, kTemporaryPrefix, step);
  remove_folder(aside);
  base::rename_path(checkpoint_path(path_, step), aside);
}

void CheckpointFolder::prune(int64_t step, int64_t keep_last) const {
  const std::vector<CheckpointEntry> entries = list_checkpoints(path_);
  const auto later =
      std::find_if(entries.begin(), entries.end(), [step](const auto& e) { return e.step > step; });
  const int64_t up_to_now = later - entries.begin();
  const int64_t too_many = keep_last > 0 ? std::max<int64_t>(0, up_to_now - keep_last) : 0;
  std::set<int64_t> needed;  // by those that stay
  for (int64_t i = up_to_now - 1; i >= 0; --i) {
    const CheckpointEntry& entry = entries[static_cast<size_t>(i)];
    if (i < too_many && !needed.contains(entry.step)) continue;
    needed.insert(entry.step);
    if (const std::optional<int64_t> before = step_before(entry.path)) needed.insert(*before);
  }
  // The newest first: what is half done leaves no increment without what it needs.
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (!needed.contains(entry->step)) move_aside(entry->step);
  }
}

void CheckpointFolder::clear_temporaries(int64_t last_number) const {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporaryPrefix) && save_number(name) <= last_number) {
      paths.push_back(entry.path().string());
    }
  }
  for (const std::string& path : paths) remove_folder(path);
}

}  // namespace segue::train
