#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace segue::base {

/// What becomes of a record that the disk has no room for.
enum class WhenFull { kFail, kKeep };

/// A log that grows at its end by records, each of which is in the file whole or not at all. Room
/// is set aside ahead of the end, where the file system can do that: what fills the disk leaves the
/// next records their place.
class AppendFile {
 public:
  /// Takes over a descriptor that was opened with O_APPEND.
  AppendFile(std::string path, int descriptor, WhenFull when_full);
  /// Gives back the room that was not needed; what waits is tried once more.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Cuts what there is to `bytes`; before anything was appended.
  void cut(int64_t bytes);
  /// On a full disk (or quota) with kKeep the record waits in memory, behind those before it, until
  /// there is room again; a warning says so. Error(kIo) with kFail, and for all other trouble.
  void append(std::string_view record);
  /// Writes what waits. Error(kIo) when the disk is still full.
  void drain();
  /// Drains; then everything so far survives a crash of the machine.
  void sync();

 private:
  void set_room_aside(size_t bytes);
  int write_waiting();
  int write_whole(std::string_view record);
  void keep(std::string_view record, int error);
  [[noreturn]] void refuse(int error) const;

  std::string path_;
  int fd_;
  WhenFull when_full_;
  int64_t room_ = 0;      // set aside behind the end
  bool has_room_ = true;  // the file system can set it aside
  std::deque<std::string> waiting_;
  size_t waiting_bytes_ = 0;
  int64_t lost_ = 0;  // records that nobody had room for
};

}  // namespace segue::base
