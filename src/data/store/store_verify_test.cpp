#include "data/store/store_verify.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/prep/prep_test_util.h"
#include "data/store/index_file.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;

/// A sound store, and copies of it that are damaged.
class VerifyStore : public testing::Test {
 protected:
  VerifyStore() : log_("raw"), store_(log_.folder + "/store") {
    log_.put_events("events.csv", random_log(400, 2, 6));
    prep(log_.config("store"));
  }

  std::string copy() const {
    const std::string folder = log_.folder + "/copy";
    fs::remove_all(folder);
    fs::copy(store_, folder, fs::copy_options::recursive);
    return folder;
  }

  RawLog log_;
  std::string store_;
};

TEST_F(VerifyStore, CountsWhatItFinds) {
  const VerifyReport report = verify_store(store_);
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(report.has_manifest);
  const StoreManifest manifest = StoreManifest::read(store_);
  EXPECT_EQ(report.files, static_cast<int64_t>(manifest.files.size()));
  EXPECT_EQ(report.events, manifest.num_events);
  EXPECT_EQ(report.users, manifest.num_users);
  EXPECT_GT(report.anchors, 0);
}

TEST_F(VerifyStore, EveryFlippedBitIsFound) {
  for (const base::FileRecord& file : StoreManifest::read(store_).files) {
    const std::string folder = copy(), path = folder + "/" + file.name;
    const std::string good = base::read_file(path);
    for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      base::put_file(path, bad);
      std::string found;
      try {
        const VerifyReport report = verify_store(folder);
        for (const std::string& problem : report.problems) found += problem + "\n";
      } catch (const Error& error) {  // a schema that cannot be read
        found = error.what();
      }
      EXPECT_TRUE(contains(found, file.name)) << at;
    }
    base::put_file(path, good.substr(0, good.size() - 1));
    try {
      EXPECT_TRUE(contains(verify_store(folder).problems.front(), "bytes, should have"));
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), file.name));
    }
    fs::remove(path);
    try {
      EXPECT_TRUE(contains(verify_store(folder).problems.front(), "is missing"));
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), file.name));
    }
  }
}

TEST_F(VerifyStore, DamagedIndexFilesAreFoundWhereverTheDamageIs) {
  const int64_t sizes[] = {int64_t{300} << 20};  // more blocks than opening checks
  const std::string path = store_ + "/segue/pools.idx";
  IndexWriter writer(path, 1, sizes);
  writer.commit();
  EXPECT_TRUE(verify_store(store_).ok());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + (int64_t{88} << 20));  // the sixth block is not among those
    file.put('x');
  }
  std::string why;
  EXPECT_TRUE(IndexFile::open(path, 1, why));
  const VerifyReport report = verify_store(store_);
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_TRUE(contains(report.problems[0], "segue/pools.idx: its content is damaged; remove it"));
}

TEST_F(VerifyStore, AManifestThatWasTouched) {
  const std::string folder = copy(), path = folder + "/" + kManifestFile;
  std::string text = base::read_file(path);
  text.replace(text.find("\"num_users\": ") + 13, 1, "9");
  base::put_file(path, text);
  const auto error = base::error_of([&] { verify_store(folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
}

/// Without a manifest there are no checksums: what can be derived must still agree.
TEST_F(VerifyStore, DerivedFilesAreDerivedAgain) {
  for (const auto& [name, problem] : std::initializer_list<std::pair<std::string, std::string>>{
           {"user_start", "user_start.npy: element"},
           {"user_end", "user_end.npy: element"},
           {"unique_uids", "unique_uids.npy: element"},
           {"positions_L20", "positions_L20.npy: element"},
           {"anchor_ts_L20_m0", "anchor_ts_L20_m0.npy: element"},
           {"flat_uid", "go back"},
           {"flat_timestamps", "go back"},
           {"flat_is_skip", "other pools"},
           {"flat_is_like", "other pools"},
           {"flat_event_types", ""},
           {"flat_item_ids", "item_popularity.npy: element"}}) {
    const std::string folder = copy();
    fs::remove_all(folder + "/segue");
    ASSERT_TRUE(verify_store(folder).ok()) << name;
    const std::string path = folder + "/hstu_cache_L20/" + name + ".npy";
    std::string bytes = base::read_file(path);
    // A value in the middle, changed by much (and down, for times and users).
    const size_t width = name.starts_with("flat_is_") ? 1 : 8;
    const size_t at = 128 + (bytes.size() - 128) / width / 2 * width;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    if (problem == "go back") bytes.replace(at, 8, std::string(8, '\0'));
    base::put_file(path, bytes);
    const VerifyReport report = verify_store(folder);
    ASSERT_FALSE(report.ok()) << name;
    std::string all;
    for (const std::string& p : report.problems) all += p + "\n";
    EXPECT_TRUE(contains(all, problem));
  }
}

TEST(VerifyStoreOfOthers, TheReferenceCacheKeepsTheRules) {
  const VerifyReport report = verify_store("tests/golden/golden_data");
  EXPECT_TRUE(report.ok());
  for (const std::string& problem : report.problems) ADD_FAILURE() << problem;
  EXPECT_FALSE(report.has_manifest);
  EXPECT_EQ(report.events, 21973);
  EXPECT_EQ(report.users, 150);
}

TEST(VerifyStoreOfOthers, NoStoreAtAll) {
  const auto error = base::error_of([] { verify_store(base::temp_path("nothing")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace segue::data
