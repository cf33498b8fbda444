#include "base/hash.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace segue::base {
namespace {

TEST(Xxh64, PublishedVectors) {
  const char zeros[24] = {};
  EXPECT_EQ(xxh64(zeros, 16), 0xaf09f71516247c32ull);
  EXPECT_EQ(xxh64(zeros, 24), 0xbb3302e8a9608868ull);
  EXPECT_EQ(xxh64("", 0), 0xef46db3751d8e999ull);
  EXPECT_EQ(xxh64(nullptr, 0), 0xef46db3751d8e999ull);
  const int64_t words[3] = {};
  EXPECT_EQ(xxh64_words(words, 2, 0), 0xaf09f71516247c32ull);
  EXPECT_EQ(xxh64_words(words, 3, 0), 0xbb3302e8a9608868ull);
}

// The vectors that xxHash's own program checks itself by. All of our files hold these hashes.
TEST(Xxh64, VectorsOfTheReference) {
  constexpr uint64_t kSeed = 2654435761;
  std::string text(222, '\0');
  uint64_t state = kSeed;
  for (char& c : text) {
    c = static_cast<char>(state >> 56);
    state *= 11400714785074694797ull;
  }
  const struct {
    size_t length;
    uint64_t unseeded, seeded;
  } cases[] = {{0, 0xef46db3751d8e999, 0xac75fda2929b17ef},
               {1, 0xe934a84adb052768, 0x5014607643a9b4c3},
               {4, 0x9136a0dca57457ee, 0xcaab286bd8e9fdb5},
               {14, 0x8282dcc4994e35c8, 0xc3bd6bf63deb6df0},
               {222, 0xb641ae8cb691c174, 0x20cb8ab7ae10c14a}};
  for (const auto& c : cases) {
    EXPECT_EQ(xxh64(text.data(), c.length), c.unseeded) << c.length;
    EXPECT_EQ(xxh64(text.data(), c.length, kSeed), c.seeded) << c.length;
  }
}

TEST(Xxh64, StreamEqualsTheWholeForEveryCut) {
  std::mt19937_64 random(11);
  std::string text(150, '\0');
  for (char& c : text) c = static_cast<char>(random());
  for (size_t length = 0; length <= text.size(); ++length) {
    for (int trial = 0; trial < 8; ++trial) {
      const uint64_t seed = random();
      Xxh64Stream stream(seed);
      for (size_t done = 0; done < length;) {
        const size_t piece = std::min<size_t>(random() % 70, length - done);
        stream.update(text.data() + done, piece);
        done += piece;
        ASSERT_EQ(stream.digest(), xxh64(text.data(), done, seed)) << done;
      }
      ASSERT_EQ(stream.digest(), xxh64(text.data(), length, seed)) << length;
    }
  }
}

TEST(Xxh64, WordsEqualTheirBytes) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 1000; ++trial) {
    const int64_t words[3] = {static_cast<int64_t>(random()), static_cast<int64_t>(random()),
                              static_cast<int64_t>(random())};
    const uint64_t seed = random();
    for (int count = 0; count <= 3; ++count) {
      ASSERT_EQ(xxh64_words(words, count, seed),
                xxh64(words, 8u * static_cast<size_t>(count), seed));
    }
  }
}

// Rows of crossed features: ids in the order of the cross, table sizes of the published benchmark.
TEST(CrossFeature, RowsOfTheReference) {
  struct Case {
    std::vector<int64_t> ids;
    uint64_t rows;
    uint64_t row;
  };
  const Case cases[] = {
      {{1, 3}, 100'000'000, 64'114'124},  // user, artist
      {{1, 4}, 40'000'000, 10'577'137},   // user, album
      {{1, 5}, 24'000'000, 7'457'897},    // user, hour
      {{2, 5}, 40'000'000, 19'381'703},   // item, hour
      {{1, 3, 5}, 40'000'000, 1'351'993}  // user, artist, hour
  };
  for (const Case& c : cases) {
    EXPECT_EQ(xxh64_words(c.ids.data(), static_cast<int>(c.ids.size()), 0) % c.rows, c.row);
  }
}

}  // namespace
}  // namespace segue::base
