#include "base/file.h"

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::base {
namespace {

namespace fs = std::filesystem;

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
  if (!exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string path = temp_path("a");
  fs::create_symlink("/dev/full", path + ".tmp-" + std::to_string(::getpid()));
  const auto error = error_of([&] { write_file(path, std::string(1 << 20, 'x')); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(contains(error->what(), "No space left"));
  EXPECT_FALSE(exists(path));
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
