#include "data/store/index_file.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kKey = 42;

class IndexFileTest : public testing::Test {
 protected:
  IndexFileTest() : folder(base::temp_path("index")), path(folder + "/a.idx") {
    fs::remove_all(folder);  // of an earlier repetition
    fs::create_directories(folder);
    numbers.resize(1000);
    std::iota(numbers.begin(), numbers.end(), 7);
  }
  void write() const {
    const int64_t sizes[] = {static_cast<int64_t>(numbers.size() * sizeof(int64_t)), 0, 5};
    IndexWriter writer(path, kKey, sizes);
    writer.write(2, 0, "hello", 5);
    const std::span<const int64_t> all(numbers);
    writer.write_items(0, 400, all.subspan(400));  // in any order
    writer.write_items(0, 0, all.first(400));
    writer.commit();
  }
  std::optional<IndexFile> open(uint64_t key = kKey) {
    why.clear();
    return IndexFile::open(path, key, why);
  }

  std::string folder, path, why;
  std::vector<int64_t> numbers;
};

TEST_F(IndexFileTest, KeepsItsSections) {
  write();
  const auto file = open();
  ASSERT_TRUE(file) << why;
  EXPECT_TRUE(std::ranges::equal(file->section<int64_t>(0), numbers));
  EXPECT_TRUE(file->section<int64_t>(1).empty());
  EXPECT_EQ(std::string(file->section<char>(2).data(), 5), "hello");
}

TEST_F(IndexFileTest, SaysWhyItCannotBeUsed) {
  EXPECT_FALSE(open());
  EXPECT_EQ(why, "there is none yet");
  write();
  EXPECT_FALSE(open(kKey + 1));
  EXPECT_EQ(why, "the store, or the way it is made, has changed");
  const std::string good = base::read_file(path);
  // Any length but its own, and a flipped bit anywhere but in the padding.
  for (const size_t size : {size_t{0}, size_t{100}, size_t{4096}, good.size() - 1}) {
    base::put_file(path, good.substr(0, size));
    EXPECT_FALSE(open()) << size;
  }
  base::put_file(path, good + "x");
  EXPECT_FALSE(open());
  for (const size_t at :
       {size_t{0}, size_t{9}, size_t{17}, size_t{4096}, size_t{4096 + 7999}, good.size() - 1}) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    base::put_file(path, damaged);
    EXPECT_FALSE(open()) << at;
    EXPECT_FALSE(why.empty());
  }
  base::put_file(path, good);
  EXPECT_TRUE(open());
}

TEST_F(IndexFileTest, NothingIsLeftOfAWriterThatWasGivenUp) {
  {
    const int64_t sizes[] = {8};
    IndexWriter writer(path, kKey, sizes);
  }
  EXPECT_TRUE(fs::is_empty(folder));
  write();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(IndexFileTest, IsMadeOnceByManyThreads) {
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const IndexFile file = open_or_build(folder, "a.idx", kKey, [&](const std::string&) {
        ++made;
        write();
      });
      EXPECT_EQ(file.section<int64_t>(0)[999], 1006);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  base::put_file(path, "damaged");
  open_or_build(folder, "a.idx", kKey, [&](const std::string&) {
    ++made;
    write();
  });
  EXPECT_EQ(made, 2);
}

TEST_F(IndexFileTest, WhatAKilledProcessLeftIsRemoved) {
  for (const char* name : {"a.idx.tmp-1", "a.idx.tmp-2", "b.idx.tmp-1"}) {
    base::put_file(folder + "/" + name, "half");
  }
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  for (const char* name : {"a.idx.tmp-1", "b.idx.tmp-1"}) {
    fs::last_write_time(folder + "/" + name, long_ago);
  }
  open_or_build(folder, "a.idx", kKey, [&](const std::string&) { write(); });
  EXPECT_FALSE(base::exists(folder + "/a.idx.tmp-1"));
  EXPECT_TRUE(base::exists(folder + "/a.idx.tmp-2"));  // may be in the making
  EXPECT_TRUE(base::exists(folder + "/b.idx.tmp-1"));  // of another file
}

TEST_F(IndexFileTest, AFolderThatCannotBeMadeSaysWhatToDo) {
  base::put_file(folder + "/file", "");
  const auto error = base::error_of([&] { IndexLock lock(folder + "/file/segue"); });
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(base::contains(error->what(), "--index DIR"));
}

TEST(Fingerprint, DependsOnEveryByteOfASmallArray) {
  std::vector<int64_t> values(5000, 1);
  const uint64_t before = fingerprint_of(std::span<const int64_t>(values), 0);
  EXPECT_NE(fingerprint_of(std::span<const int64_t>(values), 1), before);
  values[4321] = 2;
  EXPECT_NE(fingerprint_of(std::span<const int64_t>(values), 0), before);
  values[4321] = 1;
  EXPECT_EQ(fingerprint_of(std::span<const int64_t>(values), 0), before);
  values.resize(4999);
  EXPECT_NE(fingerprint_of(std::span<const int64_t>(values), 0), before);
}

TEST(Fingerprint, SeesLengthAndBothEndsOfALargeArray) {
  std::vector<uint8_t> values(16 << 20, 1);
  const auto hash = [&] { return fingerprint_of(std::span<const uint8_t>(values), 0); };
  const uint64_t before = hash();
  values.front() = 2;
  EXPECT_NE(hash(), before);
  values.front() = 1;
  values[values.size() - 1000] = 2;
  EXPECT_NE(hash(), before);
  values[values.size() - 1000] = 1;
  values.push_back(1);
  EXPECT_NE(hash(), before);
}

}  // namespace
}  // namespace segue::data
