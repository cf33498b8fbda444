#include "base/file.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_test_util.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

namespace fs = std::filesystem;

mode_t umask_now() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

TEST(MappedFile, ShowsTheBytes) {
  const std::string path = temp_path("a");
  write_file(path, std::string_view("ab\0c", 4));
  const MappedFile file(path);
  ASSERT_EQ(file.bytes().size(), 4u);
  EXPECT_EQ(std::memcmp(file.bytes().data(), "ab\0c", 4), 0);
}

TEST(MappedFile, EmptyFile) {
  const std::string path = temp_path("empty");
  write_file(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST(MappedFile, Errors) {
  const auto missing = error_of([] { MappedFile file(temp_path("missing")); });
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(contains(missing->what(), temp_path("missing")));
  const auto folder = error_of([] { MappedFile file(testing::TempDir()); });
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->code(), ErrorCode::kIo);
}

TEST(RegularFile, APipeIsRefusedAndNotWaitedFor) {
  const std::string path = temp_path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const auto& open : std::initializer_list<std::function<void()>>{
           [&] { open_regular(path); }, [&] { read_regular_file(path); },
           [&] { MappedFile file(path); },
           [&] { open_beneath(fs::path(path).parent_path(), fs::path(path).filename()); }}) {
    EXPECT_TRUE(contains(message_of(ErrorCode::kIo, open), "not a regular file"));
  }
  EXPECT_TRUE(contains(message_of(ErrorCode::kIo, [] { open_regular("/dev/null"); }), "regular"));
}

TEST(RegularFile, IdentityTellsAChangeAndACopy) {
  const std::string path = temp_path("a"), copy = temp_path("copy");
  put_file(path, "text");
  const FileIdentity before = MappedFile(path).identity();
  EXPECT_EQ(identity_of(open_regular(path)), before);
  EXPECT_EQ(before.bytes, 4);
  fs::copy(path, copy);
  fs::last_write_time(copy, fs::last_write_time(path));
  EXPECT_FALSE(identity_of(open_regular(copy)).same_file(before));
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::nanoseconds(1));
  const FileIdentity after = identity_of(open_regular(path));
  EXPECT_TRUE(after.same_file(before));
  EXPECT_NE(after, before);
}

TEST(ConfinedName, WhatLeadsOutOfAFolderIsRefused) {
  for (const char* name : {"a", "a/b", "..a", "a..", "a/.b", "hstu_cache_L16/flat_uid.npy"}) {
    EXPECT_TRUE(is_confined(name)) << name;
  }
  for (const char* name : {"", "/", "/etc/passwd", "..", "../a", "a/..", "a/../b", "a//b", "a/",
                           ".", "./a", "a/./b", "a\nb", "\x1b[2J", "a\x7f"}) {
    EXPECT_FALSE(is_confined(name)) << name;
  }
  EXPECT_FALSE(is_confined(std::string_view("a\0b", 3)));
}

TEST(ConfinedName, FilesBeneathAFolder) {
  const std::string folder = temp_path("folder"), outside = temp_path("outside");
  make_folders(folder + "/sub");
  make_folders(outside);
  put_file(folder + "/sub/a", "text");
  put_file(outside + "/a", "secret");
  EXPECT_EQ(identity_of(open_beneath(folder, "sub/a")).bytes, 4);
  // The folder itself may be reached through a link; what is below it may not.
  fs::create_directory_symlink(folder, temp_path("link"));
  EXPECT_EQ(identity_of(open_beneath(temp_path("link"), "sub/a")).bytes, 4);
  fs::create_directory_symlink(outside, folder + "/away");
  fs::create_symlink(outside + "/a", folder + "/b");
  fs::create_symlink("sub/a", folder + "/inside");
  for (const char* name : {"away/a", "b", "inside"}) {
    EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { open_beneath(folder, name); }),
                         "is a link"));
  }
  const std::string message =
      message_of(ErrorCode::kCorrupt, [&] { open_beneath(folder, "../\x1b[2J/a"); });
  EXPECT_TRUE(contains(message, "not the name of a file below it"));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  message_of(ErrorCode::kNotFound, [&] { open_beneath(folder, "sub/none"); });
  message_of(ErrorCode::kNotFound, [&] { open_beneath(folder, "sub/a/below"); });
  message_of(ErrorCode::kIo, [&] { open_beneath(folder, "sub"); });
}

TEST(AtomicFile, AppearsOnlyAtCommit) {
  const std::string path = temp_path("a");
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("ne");
    file.write("w");
    EXPECT_EQ(read_file(path), "old");
    file.commit();
    EXPECT_EQ(read_file(path), "new");
  }
  EXPECT_EQ(read_file(path), "new");
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const std::string folder = temp_path("folder");
  make_folders(folder);
  {
    AtomicFile file(folder + "/a");
    file.write("half");
    EXPECT_FALSE(fs::is_empty(folder));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(AtomicFile, Errors) {
  const auto error = error_of([] { write_file(temp_path("no/such/folder/a"), "text"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(contains(error->what(), "No such file or directory"));

  // The target is a folder: the rename fails and the temporary file goes.
  const std::string folder = temp_path("folder");
  make_folders(folder + "/taken/inner");
  EXPECT_TRUE(error_of([&] { write_file(folder + "/taken", "text"); }));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST(AtomicFile, FullDiskIsAnError) {
  const std::string disk = temp_path("disk");
  make_folders(disk);
  const int code = on_small_disk(disk, "64k", [&] {
    const auto error = error_of([&] { write_file(disk + "/a", std::string(1 << 20, 'x')); });
    if (!error || error->code() != ErrorCode::kIo) return 1;
    if (!contains(error->what(), "No space left")) return 2;
    return fs::is_empty(disk) ? 0 : 3;
  });
  if (code == kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

// ---- files in folders that others write to ----

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(TemporaryFile, IsNewAndNobodyCanGuessIt) {
  const std::string folder = temp_path("folder");
  make_folders(folder);
  std::set<std::string> names;
  for (int i = 0; i < 200; ++i) {
    const TemporaryFile made = create_temporary(folder + "/a");
    EXPECT_TRUE(made.path.starts_with(folder + "/a.tmp-")) << made.path;
    EXPECT_TRUE(names.insert(made.path).second);
    EXPECT_EQ(::open(made.path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600), -1);
    struct stat info {};
    EXPECT_EQ(::fstat(made.descriptor, &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0666 & ~umask_now());
    EXPECT_NE(::fcntl(made.descriptor, F_GETFD) & FD_CLOEXEC, 0);
    ::close(made.descriptor);
  }
  // Neither the first nor the last digits are a counter, a clock or the number of the process.
  std::set<std::string> first, last;
  for (const std::string& name : names) {
    first.insert(name.substr(folder.size() + 7, 4));
    last.insert(name.substr(name.size() - 4));
  }
  EXPECT_GT(first.size(), 150u);
  EXPECT_GT(last.size(), 150u);
}

TEST(TemporaryFile, PlantedLinksDoNotMatter) {
  const std::string folder = temp_path("folder"), victim = temp_path("victim");
  make_folders(folder);
  put_file(victim, "precious");
  const std::string path = folder + "/scores.csv";
  // The name that an earlier version took, and names nearby.
  for (pid_t pid = ::getpid(); pid < ::getpid() + 100; ++pid) {
    fs::create_symlink(victim, path + ".tmp-" + std::to_string(pid));
  }
  fs::create_symlink(victim, path);
  write_file(path, "mine");
  EXPECT_EQ(read_file(victim), "precious");
  EXPECT_EQ(read_file(path), "mine");
  EXPECT_FALSE(fs::is_symlink(path)) << "a link at the path itself is replaced";
}

TEST(CreateFile, ReplacesFilesAndLinksAndNothingElse) {
  const std::string folder = temp_path("folder"), victim = temp_path("victim");
  make_folders(folder + "/inner");
  put_file(victim, "precious");
  put_file(folder + "/file", "old");
  fs::create_hard_link(folder + "/file", folder + "/other-name");
  fs::create_symlink(victim, folder + "/link");
  fs::create_symlink(folder + "/nowhere", folder + "/dangling");
  for (const char* name : {"file", "link", "dangling", "new"}) {
    const std::string path = folder + "/" + name;
    const int fd = create_file(path);
    EXPECT_EQ(::write(fd, "ab", 2), 2);
    ::close(fd);
    EXPECT_EQ(read_file(path), "ab") << name;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path))) << name;
  }
  EXPECT_EQ(read_file(victim), "precious");
  EXPECT_EQ(read_file(folder + "/other-name"), "old");
  EXPECT_FALSE(exists(folder + "/nowhere"));

  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  for (const char* name : {"inner", "pipe", "no/such/folder"}) {
    const std::set<std::string> before = names_in(folder);
    EXPECT_EQ(error_of([&] { create_file(folder + "/" + name); })->code(), ErrorCode::kIo) << name;
    EXPECT_EQ(names_in(folder), before);
  }
}

TEST(FolderOf, IsNeverEmpty) {
  EXPECT_EQ(folder_of("scores.parquet"), ".");
  EXPECT_EQ(folder_of("./scores.parquet"), ".");
  EXPECT_EQ(folder_of("a/b"), "a");
  EXPECT_EQ(folder_of("/b"), "/");
  EXPECT_EQ(folder_of(""), ".");
}

TEST(DiskSpace, KnowsWhatIsThere) {
  const auto here = disk_space(testing::TempDir());
  ASSERT_TRUE(here);
  EXPECT_GT(here->block, 0);
  EXPECT_LE(here->available, here->total);
  EXPECT_FALSE(disk_space(temp_path("missing")));
  EXPECT_FALSE(disk_space("/proc")) << "a file system that counts nothing tells nothing";
}

TEST(ReadFile, TextAndErrors) {
  const std::string path = temp_path("a");
  const std::string text(200'000, 'x');
  write_file(path, text);
  EXPECT_EQ(read_file(path), text);
  const auto missing = error_of([] { read_file(temp_path("missing")); });
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->code(), ErrorCode::kNotFound);
  const auto folder = error_of([] { read_file(testing::TempDir()); });
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->code(), ErrorCode::kIo);
}

TEST(MakeFolders, WholePathAndErrors) {
  const std::string path = temp_path("a/b/c");
  EXPECT_FALSE(exists(path));
  make_folders(path);
  EXPECT_TRUE(exists(path));
  make_folders(path);
  write_file(path + "/file", "");
  const auto error = error_of([&] { make_folders(path + "/file/d"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(error_of([&] { make_folders(path + "/file"); }));
}

}  // namespace
}  // namespace segue::base
