// The example schemas over made-up files in the layout of the public data sets.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

template <class T>
std::vector<T> array(const std::string& path, const char* dtype) {
  const base::NpyFile file(path);
  const std::span<const T> data = file.as<T>(dtype);
  return {data.begin(), data.end()};
}

class ExampleSchema : public testing::Test {
 protected:
  ExampleSchema() : folder_(base::temp_path("raw")) { base::make_folders(folder_); }

  void put(const std::string& name, const std::string& text) const {
    base::put_file(folder_ + "/" + name, text);
  }
  void prepare(const std::string& schema, const std::vector<std::string>& sets,
               const std::string& store) {
    PrepConfig config;
    config.raw = folder_;
    config.store = folder_ + "/" + store;
    config.schema = load_log_schema({.file = schema, .sets = sets, .use_environment = false});
    config.memory_bytes = PrepConfig::kLeastMemory;
    config.history_length = 2;
    result_ = prep(config);
    store_ = config.store;
    const VerifyReport report = verify_store(store_);
    EXPECT_TRUE(report.ok());
    for (const std::string& problem : report.problems) ADD_FAILURE() << problem;
  }
  Ints column(const std::string& name) const {
    return array<int64_t>(store_ + "/hstu_cache_L2/" + name, "<i8");
  }
  std::vector<int8_t> pool(const std::string& name) const {
    return array<int8_t>(store_ + "/hstu_cache_L2/flat_is_" + name + ".npy", "|b1");
  }

  std::string folder_, store_;
  PrepResult result_;
};

class MovieLens : public ExampleSchema {
 protected:
  void check() const {
    EXPECT_EQ(column("flat_uid.npy"), (Ints{1, 1, 1, 2, 2}));
    EXPECT_EQ(column("flat_item_ids.npy"), (Ints{3, 1, 2, 2, 3}));
    EXPECT_EQ(pool("liked"), (std::vector<int8_t>{0, 1, 1, 0, 1}));
    EXPECT_EQ(pool("seen"), (std::vector<int8_t>{1, 0, 0, 1, 0}));
    EXPECT_EQ(column("positions_L2.npy"), (Ints{2}));
    EXPECT_EQ(array<int64_t>(store_ + "/item_to_genre_1.npy", "<i8"), (Ints{0, 1, 3, 1}));
    EXPECT_EQ(array<int64_t>(store_ + "/item_to_genre_2.npy", "<i8"), (Ints{0, 2, 0, 2}));
    EXPECT_EQ(array<int64_t>(store_ + "/item_to_genre_4.npy", "<i8"), (Ints{0, 0, 0, 0}));
    EXPECT_EQ(base::read_file(store_ + "/segue/genre_ids.txt"), "Animation\nComedy\nDrama\n");
    EXPECT_EQ(result_.counts.train_events, 5);
  }
};

TEST_F(MovieLens, CsvWithHeader) {
  put("ratings.csv",
      "userId,movieId,rating,timestamp\n"
      "1,2,4.0,1112486027\n1,1,5.0,1112484676\n1,3,3.5,1112484600\n"
      "2,3,4.5,974820889\n2,2,0.5,974820691\n");
  put("movies.csv",
      "movieId,title,genres\n1,\"American President, The (1995)\",Animation|Comedy\n"
      "2,\"\"\"Great\"\" One (1990)\",Drama\n3,Heat (1995),Animation|Comedy\n");
  prepare("configs/schemas/movielens.toml", {}, "store");
  check();
  EXPECT_EQ(array<float>(store_ + "/hstu_cache_L2/flat_played_ratio.npy", "<f4"),
            (std::vector<float>{3.5f, 5.f, 4.f, 0.5f, 4.5f}));
}

TEST_F(MovieLens, ColonsWithoutHeader) {
  put("ratings.dat",
      "1::2::4::978300760\n1::1::5::978300275\n1::3::3::978300019\n"
      "2::3::4::978299000\n2::2::1::978298413\n");
  put("movies.dat",
      "1::Toy Story (1995)::Animation|Comedy\n2::\"Odd\" One (1990)::Drama\n"
      "3::Heat: A Film (1995)::Animation|Comedy\n");
  prepare("configs/schemas/movielens.toml",
          {"events=ratings.dat",
           "csv_separator=::", "csv_columns=[\"userId\",\"movieId\",\"rating\",\"timestamp\"]",
           "attributes.0.file=movies.dat",
           "attributes.0.csv_columns=[\"movieId\",\"title\",\"genres\"]"},
          "store");
  check();
}

TEST_F(ExampleSchema, KuaiRand) {
  const std::string header =
      "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,"
      "is_hate,long_view,play_time_ms,duration_ms,profile_stay_time,comment_stay_time,"
      "is_profile_enter,is_rand,tab\n";
  put("log_standard_4_08_to_4_21_1k.csv",
      header +
          "7,50,20220408,1200,1649390400999,1,1,0,0,0,0,1,5000,61500,0,0,0,0,1\n"
          "7,51,20220408,1300,1649394000000,0,0,0,0,0,0,0,10,9999,0,0,0,0,1\n"
          "8,52,20220408,1300,1649394000500,1,0,0,0,0,1,0,10,1000,0,0,0,0,1\n");
  put("log_standard_4_22_to_5_08_1k.csv",
      header +
          "7,52,20220422,1300,1650603600000,1,0,1,0,1,0,0,10,1000,0,0,0,0,1\n"
          "7,50,20220508,1300,1651986000000,1,0,0,0,0,0,1,10,1000,0,0,0,0,1\n"
          "8,50,20220508,1300,1651986000001,1,0,0,0,0,0,1,10,1000,0,0,0,0,1\n");
  put("log_random_4_22_to_5_08_1k.csv", "not,read\n");
  put("video_features_basic_1k.csv",
      "video_id,author_id,video_type\n50,3,NORMAL\n51,4,NORMAL\n52,3,AD\n");
  prepare("configs/schemas/kuairand.toml", {}, "store");
  EXPECT_EQ(column("flat_uid.npy"), (Ints{7, 7, 7, 8}));
  EXPECT_EQ(column("flat_timestamps.npy"), (Ints{1649390400, 1649394000, 1650603600, 1649394000}));
  using Bits = std::vector<int8_t>;
  EXPECT_EQ(pool("long_view"), (Bits{1, 0, 0, 0}));
  EXPECT_EQ(pool("click"), (Bits{1, 0, 1, 1}));
  EXPECT_EQ(pool("like"), (Bits{1, 0, 0, 0}));
  EXPECT_EQ(pool("follow"), (Bits{0, 0, 1, 0}));
  EXPECT_EQ(pool("forward"), (Bits{0, 0, 1, 0}));
  EXPECT_EQ(pool("hate"), (Bits{0, 0, 0, 1}));
  EXPECT_EQ(column("positions_L2.npy"), (Ints{2}));
  const Ints authors = array<int64_t>(store_ + "/item_to_author.npy", "<i8");
  EXPECT_EQ(authors.size(), 53U);
  EXPECT_EQ((Ints{authors[50], authors[51], authors[52]}), (Ints{3, 4, 3}));
  // Both last views are at the last second, which is in no part.
  EXPECT_EQ(result_.counts.test_events, 0);

  put("log_standard_4_22_to_5_08_1k.csv",
      header + "7,52,20220422,1300,1650603600000,1,0,2,0,1,0,0,10,1000,0,0,0,0,1\n");
  const auto error = base::error_of([&] { prepare("configs/schemas/kuairand.toml", {}, "other"); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(base::contains(error->what(), "row 1: column \"is_follow\" has 2; a flag is 0 or 1"));
}

}  // namespace
}  // namespace segue::data
