#include "batch/batch.h"

#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

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
  batch.add_float_column("price", history);
  batch.add_float_column("age", user);
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
  for (Batch::FloatColumn& column : batch.float_columns) {
    const int64_t count = batch.offsets(column).back();
    for (int64_t i = 0; i < count; ++i) column.values.push_back(static_cast<float>(random() % 99));
  }
  batch.validate();
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

TEST(BatchTest, FindsFloatColumnsByName) {
  Batch batch = make_schema();
  EXPECT_EQ(batch.float_column("price").group, 1);
  EXPECT_EQ(batch.offsets(batch.float_column("price")).data(),
            batch.offsets(batch.column("item_id")).data());
  EXPECT_EQ(batch.find_float_column("age"), &batch.float_columns[1]);
  // A column is found as what it is.
  EXPECT_EQ(batch.find_float_column("item_id"), nullptr);
  EXPECT_EQ(batch.find_column("price"), nullptr);
  EXPECT_TRUE(
      contains(message_of(ErrorCode::kNotFound, [&] { (void)batch.float_column("item_id"); }),
               "no float column `item_id`; it has `price`, `age`"));
}

TEST(BatchTest, NamesAreUnique) {
  Batch batch = make_schema();
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_group("user"); });
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_column("item_id", 0); });
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_float_column("price", 0); });
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_column("price", 0); });
  message_of(ErrorCode::kInvalidArgument, [&] { batch.add_float_column("item_id", 0); });
}

TEST(BatchTest, AttributesAreMadeFromTheColumnThatDecidesThem) {
  Batch batch = make_schema();
  const std::vector<int32_t> artists{5, 6, 7};
  batch.add_attribute("artist_id", 1, artists);
  fill_random(batch, 9, 3);
  const std::span<int64_t> items = batch.column("item_id").values.span();
  for (size_t i = 0; i < items.size(); ++i) items[i] = static_cast<int64_t>(i % 5) - 1;
  HostArray<int64_t> memory;
  const std::span<const int64_t> made = batch.values("artist_id", memory);
  ASSERT_EQ(made.size(), items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(made[i], artists[static_cast<size_t>(std::clamp<int64_t>(items[i], 0, 2))]);
  }
  EXPECT_EQ(batch.values("item_id", memory).data(), items.data()) << "columns are not copied";
  EXPECT_EQ(batch.offsets("artist_id").data(), batch.group("history").offsets.data());
  EXPECT_EQ(batch.find_attribute("item_id"), nullptr);
  EXPECT_EQ(batch.slice(2, 3).values("artist_id", memory).size(),
            static_cast<size_t>(batch.slice(2, 3).column("item_id").values.size()));

  EXPECT_TRUE(contains(
      message_of(ErrorCode::kInvalidArgument, [&] { batch.add_attribute("price", 1, artists); }),
      "already has a column `price`"));
  batch.attributes[0].values = {};
  EXPECT_TRUE(contains(message_of(ErrorCode::kInvalidArgument, [&] { batch.validate(); }),
                       "attribute `artist_id` of the batch has no values"));
  EXPECT_NE(batch, [&] {
    Batch other = batch.slice(0, batch.num_samples());
    other.attributes[0].values = artists;
    return other;
  }());
}

TEST(BatchTest, EmptyBatchIsLegalEverywhere) {
  const Batch nothing;
  nothing.validate();
  EXPECT_EQ(nothing.slice(0, 0).num_samples(), 0);

  const Batch empty = make_schema();
  empty.validate();
  EXPECT_TRUE(empty.slice(0, 0) == empty);
  EXPECT_FALSE(empty == nothing);
}

TEST(BatchTest, ClearKeepsMemory) {
  Batch batch = make_schema();
  fill_random(batch, 40, 2);
  const int64_t* memory = batch.columns[1].values.data();
  const float* float_memory = batch.float_columns[0].values.data();
  const int64_t live = Buffer::live_bytes(Purpose::kBatch);
  fill_random(batch, 40, 2);
  EXPECT_EQ(batch.columns[1].values.data(), memory);
  EXPECT_EQ(batch.float_columns[0].values.data(), float_memory);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kBatch), live);
  batch.clear();
  batch.validate();
  EXPECT_EQ(batch.num_samples(), 0);
  EXPECT_EQ(batch.global_samples, 0);
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

  batch = make_schema();
  fill_random(batch, 6, 3);
  batch.float_column("price").values.push_back(0);
  EXPECT_TRUE(contains(message(), "column `price`"));

  fill_random(batch, 6, 3);
  batch.float_column("age").group = -1;
  EXPECT_TRUE(contains(message(), "column `age` of the batch names group -1 of 3"));
}

TEST(BatchTest, SliceHoldsTheRightSamples) {
  Batch whole = make_schema();
  fill_random(whole, 9, 4);
  const Batch part = whole.slice(3, 4);
  for (int64_t s = 0; s < 4; ++s) {
    EXPECT_EQ(part.sample_index[s], whole.sample_index[s + 3]);
    const auto values = [](const Batch& batch, const auto& column, int64_t sample) {
      const auto offsets = batch.offsets(column).subspan(static_cast<size_t>(sample), 2);
      return column.values.span().subspan(static_cast<size_t>(offsets[0]),
                                          static_cast<size_t>(offsets[1] - offsets[0]));
    };
    for (const char* name : {"user_id", "item_id", "timestamp"}) {
      EXPECT_TRUE(std::ranges::equal(values(part, part.column(name), s),
                                     values(whole, whole.column(name), s + 3)));
    }
    for (const char* name : {"price", "age"}) {
      EXPECT_TRUE(std::ranges::equal(values(part, part.float_column(name), s),
                                     values(whole, whole.float_column(name), s + 3)));
    }
  }
}

TEST(BatchTest, EqualBatchesHaveTheSameSchemaAndSamples) {
  Batch batch = make_schema();
  fill_random(batch, 8, 5);
  const auto copy = [&] { return batch.slice(0, batch.num_samples()); };
  EXPECT_TRUE(copy() == batch);
  EXPECT_TRUE(batch.schema() == make_schema());
  EXPECT_FALSE(batch.slice(0, 7) == batch);
  const auto differs = [&](auto change) {
    Batch other = copy();
    change(other);
    return !(other == batch);
  };
  EXPECT_TRUE(differs([](Batch& b) { ++b.column("timestamp").values[0]; }));
  EXPECT_TRUE(differs([](Batch& b) { ++b.group("unused").offsets[8]; }));
  EXPECT_TRUE(differs([](Batch& b) { ++b.sample_index[3]; }));
  EXPECT_TRUE(differs([](Batch& b) { ++b.global_samples; }));
  EXPECT_TRUE(differs([](Batch& b) { b.columns[0].name = "x"; }));
  EXPECT_TRUE(differs([](Batch& b) { b.columns[1].group = 2; }));
  EXPECT_TRUE(differs([](Batch& b) { b.groups[2].name = "x"; }));
  EXPECT_TRUE(differs([](Batch& b) { ++b.float_column("price").values[0]; }));
  EXPECT_TRUE(differs([](Batch& b) { b.float_columns[0].name = "x"; }));
  EXPECT_TRUE(differs([](Batch& b) { b.float_columns[1].group = 2; }));

  batch.float_column("price").values[0] = std::numeric_limits<float>::quiet_NaN();
  batch.float_column("price").values[1] = 0.f;
  EXPECT_TRUE(copy() == batch);
  EXPECT_TRUE(differs([](Batch& b) { b.float_column("price").values[1] = -0.f; }));
}

}  // namespace
}  // namespace segue
