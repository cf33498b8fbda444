#include "data/store/store_stage.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
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
#include "base/file_io.h"
#include "base/log.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReady = "_READY";
constexpr std::string_view kLock = "lock";
constexpr std::string_view kTemporary = ".tmp";

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

/// Names of files that a store has in its folder `segue`.
bool is_derived(const std::string& name) {
  const std::string whole = name.substr(0, name.find(".tmp-"));  // or on its way to be one
  return whole == "manifest.json" || whole == "schema.toml" || whole == "rows.json" ||
         whole == "skipped.csv" || whole == "listen_probability.npy" || whole == ".lock" ||
         whole == "segments" || whole.ends_with(".idx") || whole.ends_with("_ids.npy") ||
         whole.ends_with("_ids.txt") ||
         (whole.starts_with("verified-") && whole.ends_with(".json"));
}

/// Names at the top of a folder that only a store has. `segue` is one only if nothing else is in
/// it (see require_own_index()).
bool belongs_to_store(const std::string& name) {
  return name.starts_with(kCachePrefix) || name == "segue" || name == "item_popularity.npy" ||
         ((name.starts_with("item_to_") || name.starts_with("user_to_")) &&
          name.ends_with(".npy")) ||
         name == "split_meta.json" || name == "train_sessions.parquet" ||
         name == "test_events.parquet" || name == "session_index.parquet";
}

[[noreturn]] void fail_busy(const std::string& folder) {
  fail(ErrorCode::kIo, fmt::format("{}: another process is writing this store", folder));
}

/// True if a process holds this lock file.
bool is_locked(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return locked;
}

/// A program or a checkout of that name must not be taken for a part of a store, and removed.
void require_own_index(const std::string& folder) {
  const fs::path path = fs::path(folder) / "segue";
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return;
  bool own = fs::is_directory(path, ignored);
  if (own) {
    for (const fs::path& entry : entries(path.string())) {
      own = own && is_derived(entry.filename().string());
    }
  }
  if (!own) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{}: is not part of a store, but a store would need this name; choose another "
                     "folder for the store",
                     path.string()));
  }
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_io(path.string(), "removed", error);
}

/// Removes the store in `old`, which was exchanged for the one in `folder`; what else was in it
/// goes back. The lock comes last: while it is held and there, nobody else does this.
void clear_exchanged(const std::string& old, const std::string& folder) {
  for (const fs::path& path : entries(old)) {
    const std::string name = path.filename().string();
    if (name == kTemporary) continue;
    if (belongs_to_store(name)) {
      remove_tree(path);
    } else if (const std::string back = fmt::format("{}/{}", folder, name); !base::exists(back)) {
      base::rename_path(path.string(), back);
    } else {
      base::log_warning(fmt::format("{} stays there: {} has another one", path.string(), folder));
    }
  }
  remove_tree(fs::path(old) / kTemporary);
  std::error_code ignored;  // not empty: see above
  fs::remove(old, ignored);
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

StoreStage::StoreStage(std::string folder, StageMode mode)
    : folder_(std::move(folder)),
      temporary_(fmt::format("{}/{}", folder_, kTemporary)),
      staged_(temporary_ + "/store") {
  if (folder_.empty()) fail(ErrorCode::kInvalidArgument, "the folder of a store has no name");
  if (mode == StageMode::kSegment && !is_finished_store(folder_)) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: holds no finished store to append to; make one without --append",
                     folder_));
  }
  try {
    base::make_folders(temporary_);
  } catch (const Error& error) {
    fail(error.code(),
         fmt::format("{}; --out names a folder in a place that can be written to", error.what()));
  }
  lock();
  try {
    require_own_index(folder_);
    if (mode == StageMode::kNew && is_finished_store(folder_)) {
      fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: holds a finished store; choose another folder or --overwrite", folder_));
    }
    clear();
    const std::string left = beside(folder_);
    if (base::exists(left)) {
      if (is_locked(fmt::format("{}/{}/{}", left, kTemporary, kLock))) fail_busy(folder_);
      clear_exchanged(left, folder_);
    }
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

std::string StoreStage::beside(const std::string& folder) {
  const fs::path real = fs::canonical(folder);  // a link is followed: its target is exchanged
  return (real.parent_path() / fmt::format(".{}.replaced", real.filename().string())).string();
}

void StoreStage::clear() {
  if (exchanged_) return;
  for (const fs::path& path : entries(temporary_)) {
    if (path.filename() != kLock) remove_tree(path);
  }
}

void StoreStage::release() {
  if (exchanged_) {
    ::close(lock_);
    return;
  }
  // By its name and while it is held: whoever opened the file meanwhile looks again (see lock()).
  ::unlink(scratch(kLock).c_str());
  ::rmdir(temporary_.c_str());
  ::close(lock_);
}

void StoreStage::lock() {
  const std::string path = scratch(kLock);
  while (true) {
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock_ < 0 && errno == ENOENT) {  // its last owner removed the folder just now
      base::make_folders(temporary_);
      continue;
    }
    if (lock_ < 0) fail_io(path, "opened", {errno, std::generic_category()});
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(lock_);
      if (error != EWOULDBLOCK) fail_io(path, "locked", {error, std::generic_category()});
      fail_busy(folder_);
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
      base::rename_path(ready, scratch("old_ready"));
      base::sync_folder(path.string());
    }
  }
  const fs::path old = scratch("old");
  base::make_folders(old.string());
  for (const fs::path& path : all) {
    const std::string name = path.filename().string();
    if (belongs_to_store(name)) base::rename_path(path.string(), (old / name).string());
  }
}

/// False, and nothing changed, where folders cannot be exchanged.
bool StoreStage::exchange() {
  std::error_code error, ignored;
  const fs::path real = fs::canonical(folder_, error);
  const fs::path here = fs::current_path(ignored);
  // Whoever works in the folder would be left in the old one.
  if (error ||
      std::mismatch(real.begin(), real.end(), here.begin(), here.end()).first == real.end()) {
    return false;
  }
  const std::string other = beside(folder_);
  fs::permissions(staged_, fs::status(real).permissions(), ignored);
  if (std::rename(staged_.c_str(), other.c_str()) != 0) return false;
  if (::renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, real.c_str(), RENAME_EXCHANGE) != 0) {
    base::rename_path(other, staged_);
    return false;
  }
  exchanged_ = true;
  try {
    base::sync_folder(real.parent_path().string());
    clear_exchanged(other, real.string());
  } catch (const Error& failure) {  // the new store is there all the same
    base::log_warning(
        fmt::format("{}: the old store is still beside it: {}", folder_, failure.what()));
  }
  return true;
}

void StoreStage::move_in(const std::string& ready) {
  retire_old();
  for (const fs::path& path : entries(staged_)) {
    base::rename_path(path.string(), folder_ + "/" + path.filename().string());
  }
  base::sync_folder(folder_);
  const std::string ready_path = folder_ + "/" + ready;
  base::OutputFile(ready_path).close();
  base::sync_folder(fs::path(ready_path).parent_path().string());
}

void StoreStage::sync() const {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(staged_)) {
    if (entry.is_directory()) base::sync_folder(entry.path().string());
  }
  base::sync_folder(staged_);
}

void StoreStage::commit_segment(const std::string& name, const std::string& ready) {
  base::OutputFile(path(ready)).close();
  sync();
  const fs::path to = fs::path(folder_) / name;
  base::make_folders(to.parent_path().string());
  base::sync_folder(to.parent_path().parent_path().string());
  base::rename_path(staged_, to.string());
  base::sync_folder(to.parent_path().string());
}

void StoreStage::commit(const std::string& ready) {
  if (is_finished_store(folder_)) {
    const std::string ready_path = path(ready);
    base::OutputFile(ready_path).close();
    sync();
    if (exchange()) return;
    remove_tree(ready_path);
  }
  sync();
  move_in(ready);
}

}  // namespace segue::data
