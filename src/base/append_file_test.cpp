#include "base/append_file.h"

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/disk_test_util.h"
#include "base/file.h"
#include "base/log.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

namespace fs = std::filesystem;

int opened(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

int64_t bytes_on_disk(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_blocks * 512;
}

TEST(AppendFile, GrowsByRecordsAndGivesItsRoomBack) {
  const std::string path = temp_path("log");
  put_file(path, "old\nhalf");
  {
    AppendFile file(path, opened(path), WhenFull::kFail);
    file.cut(4);
    file.append("one\n");
    EXPECT_EQ(read_file(path), "old\none\n") << "a record is out at once";
    file.append("");
    file.append("two\n");
    file.sync();
  }
  EXPECT_EQ(read_file(path), "old\none\ntwo\n");
  EXPECT_LE(bytes_on_disk(path), 8192);
}

/// Fills what is left of a disk.
void fill_disk(const std::string& folder) {
  const int fd = ::open((folder + "/ballast").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const std::string block(4096, 'x');
  while (::write(fd, block.data(), block.size()) > 0) {
  }
  ::close(fd);
}

TEST(AppendFile, RecordsFindRoomOnADiskThatOthersFilled) {
  const std::string disk = temp_path("disk"), path = disk + "/log";
  make_folders(disk);
  const int code = on_small_disk(disk, "1m", [&] {
    AppendFile file(path, opened(path), WhenFull::kFail);
    file.append("first\n");
    fill_disk(disk);
    for (int i = 0; i < 60; ++i) file.append(std::string(1000, 'a') + "\n");  // throws if not
    return fs::file_size(path) == 6 + 60 * 1001 ? 0 : 1;
  });
  if (code == kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

TEST(AppendFile, WhatDoesNotFitWaitsInOrder) {
  const std::string disk = temp_path("disk"), path = disk + "/log";
  make_folders(disk);
  const int code = on_small_disk(disk, "512k", [&] {
    set_log_level(LogLevel::kError);
    fill_disk(disk);
    AppendFile file(path, opened(path), WhenFull::kKeep);
    std::string wanted;
    const auto add = [&](int i) {
      const std::string record = std::to_string(i) + std::string(3000, 'a') + "\n";
      file.append(record);
      wanted += record;
    };
    for (int i = 0; i < 50; ++i) add(i);
    if (fs::file_size(path) != 0) return 1;
    if (error_of([&] { file.drain(); })->code() != ErrorCode::kIo) return 2;
    // Room for some of them: only whole ones are in the file.
    fs::resize_file(disk + "/ballast", fs::file_size(disk + "/ballast") - 5 * 4096);
    add(50);
    const std::string some = read_file(path);
    if (some.empty() || some.back() != '\n' || !wanted.starts_with(some)) return 3;
    fs::remove(disk + "/ballast");
    add(51);
    file.drain();
    return read_file(path) == wanted ? 0 : 4;
  });
  if (code == kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

TEST(AppendFile, FullDiskIsAnErrorWhereItShallBeAndLeavesWholeRecords) {
  const std::string disk = temp_path("disk"), path = disk + "/log";
  make_folders(disk);
  const int code = on_small_disk(disk, "64k", [&] {
    AppendFile file(path, opened(path), WhenFull::kFail);
    const std::string record = std::string(2999, 'a') + "\n";
    const auto error = error_of([&] {
      for (int i = 0; i < 100; ++i) file.append(record);
    });
    if (!contains(error->what(), "No space left")) return 1;
    const std::string text = read_file(path);
    return !text.empty() && text.size() % record.size() == 0 ? 0 : 2;
  });
  if (code == kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

TEST(AppendFile, OtherTroubleIsNotWaitedFor) {
  const std::string path = temp_path("log");
  put_file(path, "");
  AppendFile file(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), WhenFull::kKeep);
  EXPECT_EQ(error_of([&] { file.append("x"); })->code(), ErrorCode::kIo);
}

TEST(AppendFile, MemoryOfWhatWaitsIsBounded) {
  if (!exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  set_log_level(LogLevel::kError);
  AppendFile file("/dev/full", ::open("/dev/full", O_WRONLY | O_CLOEXEC), WhenFull::kKeep);
  const std::string record(1 << 20, 'a');
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 500; ++i) file.append(record);
  ::getrusage(RUSAGE_SELF, &after);
  set_log_level(LogLevel::kInfo);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 150 << 10);  // KiB
}

}  // namespace
}  // namespace segue::base
