#include "batch/batch.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/test_util.h"

namespace segue {
namespace {

using base::contains;
using base::message_of;

Batch make_schema() {
  Batch batch;
  const int user = batch.add_group("user");
  const int history = batch.add_group("history");
  batch.add_group("unused");
  batch.add_column("user_id", user);
  batch.add_column("item_id", history);
  batch.add_column("timestamp", history);
  return batch;
}

void fill_random(Batch& batch, int64_t samples, uint64_t seed) {
  std::mt19937_64 random(seed);
  batch.clear();
  batch.global_samples = samples + 7;
  for (int64_t s = 0; s < samples; ++s) {
    batch.sample_index.push_back(3 * s + 1);
    for (Batch::Group& group : batch.groups) {
      const bool empty = random() % 4 == 0;
      const auto length = empty ? int64_t{0} : static_cast<int64_t>(random() % 6);
      group.offsets.push_back(group.offsets[s] + length);
    }
  }
  for (Batch::Column& column : batch.columns) {
    const int64_t count = batch.offsets(column).back();
    for (int64_t i = 0; i < count; ++i) column.values.push_back(static_cast<int64_t>(random()));
  }
  batch.validate();
}

bool equal(const HostArray<int64_t>& a, const HostArray<int64_t>& b) {
  return std::ranges::equal(a.span(), b.span());
}

bool equal(const Batch& a, const Batch& b) {
  return a.global_samples == b.global_samples && equal(a.sample_index, b.sample_index) &&
         std::ranges::equal(a.groups, b.groups,
                            [](const Batch::Group& x, const Batch::Group& y) {
                              return x.name == y.name && equal(x.offsets, y.offsets);
                            }) &&
         std::ranges::equal(
             a.columns, b.columns, [](const Batch::Column& x, const Batch::Column& y) {
               return x.name == y.name && x.group == y.group && equal(x.values, y.values);
             });
}

TEST(BatchTest, FindsGroupsAndColumnsByName) {
  Batch batch = make_schema();
  EXPECT_EQ(batch.column("timestamp").group, 1);
  EXPECT_EQ(batch.group("history").name, "history");
  EXPECT_EQ(batch.find_column("album_id"), nullptr);
  EXPECT_TRUE(contains(message_of(ErrorCode::kNotFound, [&] { (void)batch.column("album_id"); }),
                       "no column `album_id`; it has `user_id`, `item_id`, `timestamp`"));
  EXPECT_TRUE(contains(message_of(ErrorCode::kNotFound, [&] { (void)batch.group("targets"); }),
                       "no group `targets`; it has `user`, `history`, `unused`"));
  EXPECT_TRUE(contains(message_of(ErrorCode::kNotFound, [] { (void)Batch().group("x"); }), "none"));
}

TEST(BatchTest, NamesAreUnique) {
  Batch batch = make_schema();
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_group("user"); });
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_column("item_id", 0); });
}

TEST(BatchTest, EmptyBatchIsLegalEverywhere) {
  const Batch nothing;
  nothing.validate();
  EXPECT_EQ(nothing.slice(0, 0).num_samples(), 0);
  EXPECT_TRUE(equal(Batch::unpack(nothing.pack()), nothing));
  EXPECT_EQ(Batch::concatenate({}).num_samples(), 0);

  const Batch empty = make_schema();
  empty.validate();
  EXPECT_TRUE(equal(empty.slice(0, 0), empty));
  EXPECT_TRUE(equal(Batch::unpack(empty.pack()), empty));
  Batch filled = make_schema();
  fill_random(filled, 5, 1);
  const Batch* parts[] = {&empty, &filled, &empty};
  EXPECT_TRUE(equal(Batch::concatenate(parts), filled));
}

TEST(BatchTest, ClearKeepsMemory) {
  Batch batch = make_schema();
  fill_random(batch, 40, 2);
  const int64_t* memory = batch.columns[1].values.data();
  const int64_t live = Buffer::live_bytes(Purpose::kBatch);
  fill_random(batch, 40, 2);
  EXPECT_EQ(batch.columns[1].values.data(), memory);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kBatch), live);
  batch.clear();
  batch.validate();
  EXPECT_EQ(batch.num_samples(), 0);
  EXPECT_EQ(batch.global_samples, 0);
}

TEST(BatchTest, PinnedMemoryHoldsTheSameSamples) {
  Batch batch;
  batch.use_pinned_memory();
  batch.add_column("id", batch.add_group("g"));
  Batch::Column& ids = batch.column("id");
  for (int64_t i = 0; i < 1000; ++i) ids.values.push_back(i);
  EXPECT_EQ(ids.values[999], 999);
  EXPECT_EQ(ids.values.pinned(), cuda_device_count() > 0);
  Batch moved = std::move(batch);
  moved.add_column("more", 0);
  moved.column("more").values.push_back(7);
  EXPECT_EQ(moved.column("more").values.pinned(), cuda_device_count() > 0);
}

TEST(BatchTest, ValidateSaysWhatDisagrees) {
  Batch batch = make_schema();
  fill_random(batch, 6, 3);
  const auto message = [&] {
    return message_of(ErrorCode::kInvalidArgument, [&] { batch.validate(); });
  };
  batch.column("timestamp").values.push_back(0);
  EXPECT_TRUE(contains(message(), "column `timestamp`"));

  fill_random(batch, 6, 3);
  batch.group("user").offsets.resize(6);
  EXPECT_TRUE(contains(message(), "group `user` of the batch has 6 offsets; 6 samples need 7"));

  fill_random(batch, 6, 3);
  batch.group("unused").offsets[0] = 1;
  EXPECT_TRUE(contains(message(), "start at 1"));

  fill_random(batch, 6, 3);
  batch.group("unused").offsets[2] = batch.group("unused").offsets[6] + 1;
  EXPECT_TRUE(contains(message(), "group `unused`"));

  fill_random(batch, 6, 3);
  batch.column("item_id").group = 3;
  EXPECT_TRUE(contains(message(), "column `item_id` of the batch names group 3 of 3"));
}

TEST(BatchTest, SlicesPutTogetherGiveTheWholeBatch) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto samples = static_cast<int64_t>(random() % 12);
    Batch whole = make_schema();
    fill_random(whole, samples, seed);
    std::vector<Batch> parts;
    for (int64_t begin = 0; begin < samples || parts.empty();) {
      const auto count =
          static_cast<int64_t>(random() % static_cast<uint64_t>(samples - begin + 1));
      parts.push_back(whole.slice(begin, count));
      parts.back().validate();
      ASSERT_EQ(parts.back().num_samples(), count);
      begin += count;
    }
    std::vector<const Batch*> pointers;
    for (const Batch& part : parts) pointers.push_back(&part);
    EXPECT_TRUE(equal(Batch::concatenate(pointers), whole));
  }
}

TEST(BatchTest, SliceHoldsTheRightSamples) {
  Batch whole = make_schema();
  fill_random(whole, 9, 4);
  const Batch part = whole.slice(3, 4);
  for (int64_t s = 0; s < 4; ++s) {
    EXPECT_EQ(part.sample_index[s], whole.sample_index[s + 3]);
    for (const char* name : {"user_id", "item_id", "timestamp"}) {
      const auto values = [name](const Batch& batch, int64_t sample) {
        const Batch::Column& column = batch.column(name);
        const auto offsets = batch.offsets(column).subspan(static_cast<size_t>(sample), 2);
        return column.values.span().subspan(static_cast<size_t>(offsets[0]),
                                            static_cast<size_t>(offsets[1] - offsets[0]));
      };
      EXPECT_TRUE(std::ranges::equal(values(part, s), values(whole, s + 3)));
    }
  }
}

TEST(BatchTest, DifferentSchemasDoNotMix) {
  const Batch a = make_schema();
  Batch b;
  b.add_group("user");
  const Batch* parts[] = {&a, &b};
  message_of(ErrorCode::kInvalidArgument, [&] { (void)Batch::concatenate(parts); });
}

TEST(BatchTest, PackedBatchComesBackEqual) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Batch batch = make_schema();
    fill_random(batch, static_cast<int64_t>(seed % 11), seed);
    EXPECT_TRUE(equal(Batch::unpack(batch.pack()), batch)) << "seed " << seed;
  }
}

/// A damaged message must be refused as corrupt or, at worst, still mean the same batch.
void expect_corrupt_or_equal(std::span<const std::byte> message, const Batch& original) {
  try {
    EXPECT_TRUE(equal(Batch::unpack(message), original));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
  }
}

TEST(BatchTest, EveryTruncationIsCorrupt) {
  Batch batch = make_schema();
  fill_random(batch, 6, 5);
  const std::vector<std::byte> message = batch.pack();
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    // A copy of exact size lets the address sanitizer see a read beyond it.
    const std::vector<std::byte> cut(message.begin(),
                                     message.begin() + static_cast<std::ptrdiff_t>(bytes));
    message_of(ErrorCode::kCorrupt, [&] { (void)Batch::unpack(cut); });
  }
  std::vector<std::byte> longer = message;
  longer.resize(longer.size() + 8);
  message_of(ErrorCode::kCorrupt, [&] { (void)Batch::unpack(longer); });
}

TEST(BatchTest, EveryFlippedByteIsNoticed) {
  Batch batch = make_schema();
  fill_random(batch, 6, 6);
  std::vector<std::byte> message = batch.pack();
  std::mt19937_64 random(6);
  for (std::byte& place : message) {
    const std::byte before = place;
    place ^= static_cast<std::byte>(1 + random() % 255);
    expect_corrupt_or_equal(message, batch);
    place = before;
  }
}

/// With the checksum made right again, the checks of lengths and offsets stand alone.
TEST(BatchTest, DamageUnderAValidChecksumNeverCrashes) {
  Batch batch = make_schema();
  fill_random(batch, 6, 7);
  const std::vector<std::byte> original = batch.pack();
  constexpr size_t kHeader = 24;
  constexpr uint64_t kInteresting[] = {0,          1,          1ull << 31, 1ull << 32,
                                       1ull << 60, 1ull << 61, 1ull << 63, ~0ull};
  int refused = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<std::byte> message = original;
    if (random() % 8 == 0) message.resize(kHeader + 8 * (random() % ((message.size() - 24) / 8)));
    for (uint64_t flips = 1 + random() % 3; flips > 0 && message.size() > kHeader; --flips) {
      const size_t words = (message.size() - kHeader) / 8;
      // The front holds all counts; it gets half of the damage.
      const size_t word = random() % (random() % 2 == 0 ? std::min<size_t>(words, 24) : words);
      uint64_t value = kInteresting[random() % std::size(kInteresting)];
      if (random() % 2 == 0) value = random() % 64;
      std::memcpy(message.data() + kHeader + 8 * word, &value, 8);
    }
    const uint64_t seal[2] = {message.size(),
                              base::xxh64(message.data() + kHeader, message.size() - kHeader)};
    std::memcpy(message.data() + 8, seal, sizeof(seal));
    try {
      Batch::unpack(message).validate();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace segue
