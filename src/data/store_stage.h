#pragma once

#include <string>
#include <string_view>

namespace segue::data {

/// A store in the making. Everything is written below STORE/.tmp and moved into place when all of
/// it is there: a process that is killed, or a disk that is full, leaves nothing that looks
/// finished, and an older store stays whole until that moment. Only one process at a time may have
/// the folder.
class StoreStage {
 public:
  /// Takes the folder (made if needed) and clears away what a killed process left. Error(kIo) if
  /// another process has it, Error(kInvalidArgument) if it holds a finished store and not
  /// `overwrite`.
  StoreStage(std::string folder, bool overwrite);
  ~StoreStage();
  StoreStage(const StoreStage&) = delete;
  StoreStage& operator=(const StoreStage&) = delete;

  const std::string& folder() const { return folder_; }
  /// Where to write the file that is to be `name` ("segue/manifest.json") in the store.
  std::string path(std::string_view name) const;
  /// A file that is not part of the store; gone in the end.
  std::string scratch(std::string_view name) const;

  /// Moves the staged files into place, then makes the empty file `ready`. Every staged file must
  /// be durable by now.
  void commit(const std::string& ready);

 private:
  void lock();
  void clear();    // everything but the lock
  void release();  // the folder, if it is empty, and the lock
  void retire_old();

  std::string folder_, temporary_, staged_;
  int lock_ = -1;
};

/// True if a cache in this folder says that it is complete.
bool is_finished_store(const std::string& folder);

}  // namespace segue::data
