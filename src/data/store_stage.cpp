#include "data/store_stage.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "data/file_io.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCachePrefix = "hstu_cache_L";
constexpr std::string_view kReady = "_READY";
constexpr std::string_view kLock = "lock";

[[noreturn]] void fail_io(const std::string& path, const char* what, const std::error_code& error) {
  fail(ErrorCode::kIo, fmt::format("{}: cannot be {}: {}", path, what, error.message()));
}

std::vector<fs::path> entries(const std::string& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) paths.push_back(it->path());
  if (error && error != std::errc::no_such_file_or_directory) fail_io(folder, "listed", error);
  return paths;
}

/// Names at the top of a folder that only a store has.
bool belongs_to_store(const std::string& name) {
  return name.starts_with(kCachePrefix) || name == "segue" || name == "item_popularity.npy" ||
         (name.starts_with("item_to_") && name.ends_with(".npy")) || name == "split_meta.json" ||
         name == "train_sessions.parquet" || name == "test_events.parquet" ||
         name == "session_index.parquet";
}

}  // namespace

bool is_finished_store(const std::string& folder) {
  for (const fs::path& path : entries(folder)) {
    if (path.filename().string().starts_with(kCachePrefix) &&
        base::exists((path / kReady).string()))
      return true;
  }
  return false;
}

StoreStage::StoreStage(std::string folder, bool overwrite)
    : folder_(std::move(folder)), temporary_(folder_ + "/.tmp"), staged_(temporary_ + "/store") {
  base::make_folders(temporary_);
  lock();
  try {
    if (!overwrite && is_finished_store(folder_)) {
      fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: holds a finished store; choose another folder or --overwrite", folder_));
    }
    clear();
    base::make_folders(staged_);
  } catch (...) {
    release();
    throw;
  }
}

StoreStage::~StoreStage() {
  try {
    clear();
  } catch (const std::exception&) {
    // Left for the next process that takes the folder.
  }
  release();
}

void StoreStage::clear() {
  for (const fs::path& path : entries(temporary_)) {
    if (path.filename() == kLock) continue;
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_io(path.string(), "removed", error);
  }
}

void StoreStage::release() {
  // By its name and while it is held: whoever opened the file meanwhile looks again (see lock()).
  ::unlink(scratch(kLock).c_str());
  ::rmdir(temporary_.c_str());
  ::close(lock_);
}

void StoreStage::lock() {
  const std::string path = scratch(kLock);
  while (true) {
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0 && errno == ENOENT) {  // its last owner removed the folder just now
      base::make_folders(temporary_);
      continue;
    }
    if (lock_ < 0) fail_io(path, "opened", {errno, std::generic_category()});
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(lock_);
      if (error != EWOULDBLOCK) fail_io(path, "locked", {error, std::generic_category()});
      fail(ErrorCode::kIo, fmt::format("{}: another process is writing this store", folder_));
    }
    struct stat mine {
    }, there{};
    if (::fstat(lock_, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
      return;
    }
    ::close(lock_);  // locked a file that had just been removed
  }
}

std::string StoreStage::path(std::string_view name) const {
  fs::path path = fs::path(staged_) / name;
  base::make_folders(path.parent_path().string());
  return path.string();
}

std::string StoreStage::scratch(std::string_view name) const {
  return fmt::format("{}/{}", temporary_, name);
}

void StoreStage::retire_old() {
  const std::vector<fs::path> all = entries(folder_);
  // First of all the old store stops looking finished.
  for (const fs::path& path : all) {
    const std::string ready = (path / kReady).string();
    if (path.filename().string().starts_with(kCachePrefix) && base::exists(ready)) {
      rename_path(ready, scratch("old_ready"));
      sync_folder(path.string());
    }
  }
  const fs::path old = scratch("old");
  base::make_folders(old.string());
  for (const fs::path& path : all) {
    const std::string name = path.filename().string();
    if (belongs_to_store(name)) rename_path(path.string(), (old / name).string());
  }
}

void StoreStage::commit(const std::string& ready) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(staged_)) {
    if (entry.is_directory()) sync_folder(entry.path().string());
  }
  retire_old();
  for (const fs::path& path : entries(staged_)) {
    rename_path(path.string(), folder_ + "/" + path.filename().string());
  }
  sync_folder(folder_);
  const std::string ready_path = folder_ + "/" + ready;
  OutputFile(ready_path).close();
  sync_folder(fs::path(ready_path).parent_path().string());
}

}  // namespace segue::data
