#pragma once

#include <string>
#include <string_view>

namespace segue::data {

/// Folders of columns: hstu_cache_L<history length>.
inline constexpr std::string_view kCachePrefix = "hstu_cache_L";

/// A store that must not be there yet, one that may take the place of another, or a segment of one.
enum class StageMode { kNew, kReplace, kSegment };

/// A store in the making. Everything is written below STORE/.tmp and moved into place when all of
/// it is there: a process that is killed, or a disk that is full, leaves nothing that looks
/// finished. An older store stays whole until the new one takes its place, by an exchange of the
/// two folders: at any moment one of them is there. Where the system cannot exchange folders
/// (another file system's mount point, some network file systems) the old files are moved away
/// first. Files that belong to no store are kept. A segment enters its store by one rename, and
/// touches nothing else. Only one process at a time may have the folder.
class StoreStage {
 public:
  /// Takes the folder (made if needed) and clears away what a killed process left. Error(kIo) if
  /// another process has it, Error(kInvalidArgument) if it holds a finished store and shall be a
  /// new one, or a folder `segue` that is no store's, Error(kNotFound) if a segment has no store.
  StoreStage(std::string folder, StageMode mode);
  ~StoreStage();
  StoreStage(const StoreStage&) = delete;
  StoreStage& operator=(const StoreStage&) = delete;

  const std::string& folder() const { return folder_; }
  /// Where to write the file that is to be `name` ("segue/manifest.json") in the store.
  std::string path(std::string_view name) const;
  /// A file that is not part of the store; gone in the end.
  std::string scratch(std::string_view name) const;

  /// Moves the staged files into place and makes the empty file `ready` with the last of them.
  /// Every staged file must be durable by now.
  void commit(const std::string& ready);
  /// Moves what is staged to the folder `name` of the store, all of it at once.
  void commit_segment(const std::string& name, const std::string& ready);

  /// Where the new store waits, and then the old one, while folders are exchanged. What a killed
  /// process left there is cleared away by the next one.
  static std::string beside(const std::string& folder);

 private:
  void lock();
  void clear();    // everything but the lock
  void release();  // the folder, if it is empty, and the lock
  void retire_old();
  bool exchange();
  void sync() const;
  void move_in(const std::string& ready);

  std::string folder_, temporary_, staged_;
  int lock_ = -1;
  bool exchanged_ = false;  // the lock went with the old folder
};

/// True if a cache in this folder says that it is complete.
bool is_finished_store(const std::string& folder);

}  // namespace segue::data
