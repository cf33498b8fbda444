// Checkpoints to versions and back.

#include "publish/publish.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/safetensors.h"
#include "base/test_util.h"
#include "publish/chain.h"
#include "publish/difference.h"
#include "publish/publish_test_util.h"
#include "publish/version_writer.h"

namespace segue::publish {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::message_of;

class Publish : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("folder");
    fs::remove_all(folder_);
    to_ = folder_ + "/serve";
    config_.folder = to_;
    config_.parquet = parquet();
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  train::Checkpoint save(int64_t step) { return model_.save(folder_ + "/checkpoints", step); }
  PublishResult publish_step(int64_t step) { return publish(config_, save(step)); }
  std::vector<std::string> problems() const { return verify(to_, parquet()).problems; }
  base::SafetensorsFile table(int64_t version, const std::string& name) const {
    return base::SafetensorsFile(version_path(to_, version) + "/" + name + ".safetensors");
  }

  std::string folder_, to_;
  PublishConfig config_;
  TestModel model_;
};

TEST_F(Publish, StartsWithABaseOfAllRows) {
  const PublishResult result = publish_step(10);
  EXPECT_TRUE(result.published);
  EXPECT_TRUE(result.version.is_base());
  EXPECT_EQ(result.version.step, 10);
  EXPECT_EQ(result.version.samples, 640);
  EXPECT_EQ(result.version.window, -1);
  EXPECT_DOUBLE_EQ(result.share, 1);
  EXPECT_GE(result.lag_seconds, 0);
  EXPECT_LT(result.lag_seconds, 60);
  EXPECT_EQ(fs::read_symlink(to_ + "/current"), "version-000001");
  EXPECT_TRUE(problems().empty());
  for (const auto& [name, rows] :
       {std::pair("all", &model_.all()), std::pair("touched", &model_.touched()),
        std::pair("hashed", &model_.hashed())}) {
    const base::SafetensorsFile file = table(1, name);
    const auto ids = file.get("id").as<int64_t>("I64");
    const auto weight = file.get("weight").as<float>("F32");
    ASSERT_EQ(ids.size(), rows->size()) << name;
    size_t i = 0;
    for (const auto& [id, row] : *rows) {
      EXPECT_EQ(ids[i], id) << name;
      EXPECT_EQ(std::memcmp(&weight[i * row.size()], row.data(), row.size() * sizeof(float)), 0);
      ++i;
    }
  }
}

TEST_F(Publish, GoesOnWithWhatChanged) {
  publish_step(10);
  model_.all()[7][2] += 1;
  model_.touched()[500] = {1, 2, 3};
  const int64_t gone = model_.hashed().begin()->first;
  model_.hashed().erase(gone);
  const PublishResult result = publish_step(20);
  EXPECT_FALSE(result.version.is_base());
  EXPECT_EQ(result.version.number, 2);
  EXPECT_EQ(result.version.base, 1);
  EXPECT_LT(result.share, 0.2);
  EXPECT_EQ(table(2, "all").get("id").to_ints(), std::vector<int64_t>{7});
  EXPECT_EQ(table(2, "touched").get("id").to_ints(), std::vector<int64_t>{500});
  EXPECT_TRUE(table(2, "hashed").get("id").to_ints().empty());
  EXPECT_EQ(table(2, "hashed").get("removed").to_ints(), std::vector<int64_t>{gone});
  EXPECT_EQ(fs::read_symlink(to_ + "/current"), "version-000002");
  EXPECT_TRUE(problems().empty());
}

/// What rounding hides is not sent.
TEST_F(Publish, ComparesBytesAsTheyArePublished) {
  config_.dtype = RowType::kBf16;
  publish_step(10);
  model_.all()[7][2] *= 1 + 1e-6f;
  EXPECT_EQ(publish_step(20).version.tables.front().in_file, 0);
  model_.all()[7][2] *= 1.1f;
  EXPECT_EQ(publish_step(30).version.tables.front().in_file, 1);
}

TEST_F(Publish, SaysWhenThereIsNothingNew) {
  const train::Checkpoint checkpoint = save(10);
  publish(config_, checkpoint);
  const auto before = tree_of(to_);
  EXPECT_FALSE(publish(config_, checkpoint).published);
  // Saved again, with another manifest, by a run that came to the same step.
  TestModel same;
  const PublishResult again = publish(config_, same.save(folder_ + "/again", 10));
  EXPECT_FALSE(again.published);
  EXPECT_EQ(again.version.number, 1);
  EXPECT_EQ(tree_of(to_), before);
  EXPECT_TRUE(publish_step(11).published) << "another step is news, if only that";
}

TEST_F(Publish, TakesOptionsFromTheNewestVersion) {
  config_.dtype = RowType::kInt8;
  config_.tables = {"hashed", "all"};
  publish_step(10);
  PublishConfig plain;
  plain.folder = to_;
  model_.train();
  const PublishResult next = publish(plain, save(20));
  EXPECT_EQ(next.version.dtype, RowType::kInt8);
  ASSERT_EQ(next.version.tables.size(), 2u);
  EXPECT_EQ(next.version.tables[1].name, "hashed");

  plain.dtype = RowType::kF32;
  model_.train();
  const train::Checkpoint checkpoint = save(30);
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { publish(plain, checkpoint); }),
                       "--dtype f32: version-000002 has int8; leave the option out"));
  plain.dtype.reset();
  plain.tables = {"all"};
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { publish(plain, checkpoint); }),
                       "--tables all: version-000002 has all,hashed"));
  plain.dtype = RowType::kF32;
  plain.base = true;
  const PublishResult base = publish(plain, checkpoint);
  EXPECT_EQ(base.version.number, 3);
  EXPECT_TRUE(base.version.is_base());
  EXPECT_EQ(base.version.dtype, RowType::kF32);
  EXPECT_EQ(base.version.tables.size(), 1u);
  EXPECT_TRUE(problems().empty());
}

TEST_F(Publish, RefusesWhatItCannotPublish) {
  config_.tables = {"nope"};
  EXPECT_TRUE(contains(message_of(ErrorCode::kNotFound, [&] { publish_step(10); }),
                       "there is no table `nope`; there is: all, hashed, touched"));
  EXPECT_TRUE(list_versions(to_).empty());
  config_.tables.clear();
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const RowType type : {RowType::kF32, RowType::kBf16, RowType::kInt8}) {
      config_.dtype = type;
      model_.touched()[7][1] = bad;
      EXPECT_TRUE(contains(message_of(ErrorCode::kNumeric, [&] { publish_step(10); }),
                           "table `touched`, id 7: not finite"));
    }
  }
  config_.dtype = RowType::kBf16;  // rounded up, it is infinite
  model_.touched()[7][1] = std::numeric_limits<float>::max();
  EXPECT_TRUE(contains(message_of(ErrorCode::kNumeric, [&] { publish_step(10); }), "as bf16"));
  EXPECT_TRUE(list_versions(to_).empty());
  EXPECT_FALSE(base::exists(to_ + "/.tmp-version-000001"));
  config_.dtype = RowType::kF32;
  EXPECT_TRUE(publish_step(10).published);
}

TEST_F(Publish, OnePublisherAtATime) {
  const train::Checkpoint checkpoint = save(10);
  {
    const OwnedFolder other(to_);
    EXPECT_TRUE(
        contains(message_of(ErrorCode::kInvalidArgument, [&] { publish(config_, checkpoint); }),
                 "another process is publishing into"));
  }
  EXPECT_TRUE(publish(config_, checkpoint).published);
}

TEST_F(Publish, FinishesWhatAKilledPublisherBegan) {
  publish_step(10);
  model_.train();
  const train::Checkpoint checkpoint = save(20);
  publish(config_, checkpoint);
  // Killed between the rename and the switch: the version is there and whole.
  fs::remove(to_ + "/current");
  fs::create_symlink("version-000001", to_ + "/current");
  ASSERT_EQ(problems().size(), 1u);
  EXPECT_TRUE(contains(problems()[0], "points to version-000001 instead of version-000002"));
  // And one that came less far.
  base::make_folders(to_ + "/.tmp-version-000003");
  base::put_file(to_ + "/.tmp-version-000003/all.safetensors", "half");
  EXPECT_FALSE(publish(config_, checkpoint).published);
  EXPECT_EQ(fs::read_symlink(to_ + "/current"), "version-000002");
  EXPECT_FALSE(base::exists(to_ + "/.tmp-version-000003"));
  EXPECT_TRUE(problems().empty());
}

/// A run in double precision has tables of doubles.
TEST_F(Publish, RoundsTablesOfDoubles) {
  std::vector<double> rows = {1. / 3, 1e-50, -2, 1e300}, dense = {1};
  const auto publish_table = [&](int64_t step) {
    train::CheckpointWriter writer(folder_ + "/doubles", {});
    const Device cpu = Device::cpu();
    writer.save(
        step,
        std::vector<train::CheckpointArray>{
            {.file = "dense", .name = "param/w", .value = {dense.data(), DType::kF64, cpu, {1}}},
            {.file = "tables",
             .name = "weight/t",
             .value = {rows.data(), DType::kF64, cpu, {2, 2}}}},
        "{}");
    writer.wait().throw_if_failed();
    return publish(config_, train::open_checkpoint(folder_ + "/doubles"));
  };
  EXPECT_TRUE(contains(message_of(ErrorCode::kNumeric, [&] { publish_table(1); }), "id 1"));
  rows[3] = 7;
  EXPECT_FALSE(publish_table(2).version.samples.has_value());
  EXPECT_EQ(table(1, "t").get("weight").to_doubles(), (std::vector<double>{1.f / 3, 0, -2, 7}));
}

/// With the keys that a checkpoint names as changed, others are not compared.
TEST_F(Publish, LooksOnlyAtKeysThatMayDiffer) {
  publish_step(10);
  const std::vector<int64_t> candidates = {std::next(model_.hashed().begin(), 3)->first,
                                           std::next(model_.hashed().begin(), 9)->first};
  const int64_t unnamed = std::next(model_.hashed().begin(), 5)->first;
  const int64_t gone = model_.hashed().begin()->first;
  const int64_t fresh = gone - 1;
  for (const int64_t id : {candidates[0], unnamed}) model_.hashed()[id][0] += 1;
  model_.hashed().erase(gone);
  model_.hashed()[fresh] = std::vector<float>(5, 1.f);
  const train::Checkpoint checkpoint = save(20);
  CheckpointTable rows(checkpoint, "hashed", RowType::kF32);
  const Chain chain = open_chain(to_, 1);
  std::vector<int64_t> keys;
  for (const int64_t id : candidates) keys.push_back(sparse::key_of_id(id));
  const auto ids = [&](const Difference& d) {
    std::vector<int64_t> all;
    for (const size_t i : d.changed) all.push_back(rows.ids()[i]);
    return all;
  };
  const Difference some = difference_of(to_, chain, 1, nullptr, rows, keys);
  EXPECT_EQ(ids(some), (std::vector<int64_t>{fresh, candidates[0]}));
  EXPECT_EQ(some.removed, std::vector<int64_t>{gone});
  const Difference all = difference_of(to_, chain, 1, nullptr, rows, std::nullopt);
  EXPECT_EQ(ids(all), (std::vector<int64_t>{fresh, candidates[0], unnamed}));
}

/// Replayed versions are the full dump of the same checkpoint, byte for byte.
class PublishedRows : public Publish,
                      public testing::WithParamInterface<std::tuple<FileFormat, RowType>> {};

TEST_P(PublishedRows, AreTheFullDumpAgain) {
  const auto [format, dtype] = GetParam();
  if (format == FileFormat::kParquet && parquet() == nullptr) GTEST_SKIP() << "no Parquet here";
  config_.format = format;
  config_.dtype = dtype;
  publish_step(10);
  for (int64_t version = 2; version <= 7; ++version) {
    model_.train();
    const train::Checkpoint checkpoint = save(10 * version);
    const PublishResult result = publish(config_, checkpoint);
    ASSERT_EQ(result.version.number, version);
    EXPECT_GT(result.version.tables[1].removed, 0);
    ASSERT_TRUE(problems().empty()) << problems().front();

    const std::string replayed = folder_ + "/replayed", dumped = folder_ + "/dumped";
    apply(to_, replayed, 0, parquet());
    PublishConfig full = config_;
    full.folder = dumped;
    publish(full, checkpoint);
    auto a = tree_of(replayed), b = tree_of(dumped);
    EXPECT_TRUE(verify(replayed, parquet()).problems.empty());
    EXPECT_EQ(a, b) << "version " << version;
    fs::remove_all(replayed);
    fs::remove_all(dumped);
  }
  // An older one, and a base in between.
  const VersionManifest third = apply(to_, folder_ + "/third", 3, parquet());
  EXPECT_EQ(third.step, 30);
  config_.base = true;
  EXPECT_TRUE(publish_step(90).version.is_base());
  EXPECT_EQ(apply(to_, folder_ + "/fifth", 5, parquet()).step, 50);
  EXPECT_TRUE(problems().empty());
  EXPECT_TRUE(contains(message_of(ErrorCode::kInvalidArgument,
                                  [&] { apply(to_, folder_ + "/third", 0, parquet()); }),
                       "holds versions already"));
}

INSTANTIATE_TEST_SUITE_P(
    All, PublishedRows,
    testing::Combine(testing::Values(FileFormat::kSafetensors, FileFormat::kParquet),
                     testing::Values(RowType::kF32, RowType::kBf16, RowType::kInt8)),
    [](const auto& of) {
      return std::string(to_string(std::get<0>(of.param))) + "_" + to_string(std::get<1>(of.param));
    });

}  // namespace
}  // namespace segue::publish
