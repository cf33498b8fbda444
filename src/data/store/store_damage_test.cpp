// Whatever is in the files of a store, reading it ends well or with a segue::Error.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/test_util.h"
#include "data/inspect/baselines.h"
#include "data/inspect/inspect.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"
#include "data/store/damage_test_util.h"
#include "data/store/store_verifier.h"
#include "data/store/store_verify.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

void gather_all(const SampleStream& stream, const SampleList& list, const Gatherer& gatherer) {
  Batch batch;
  std::vector<int64_t> numbers;
  for (int64_t b = 0; b < list.num_batches(); ++b) {
    const std::span<const int64_t> positions = list.batch(b);
    numbers.assign(positions.size(), 0);
    gatherer.fill(positions, numbers, batch);
  }
  EXPECT_GE(stream.end_window(), 1);
}

/// Reads everything that training and evaluation would.
void read_all(const std::string& folder, VerifyMode verify) {
  const LogSchema schema = schema_for(folder);
  const EventStore store(folder, schema.samples(), "", verify);
  const Gatherer gatherer(store, {.history_length = 16});
  StreamConfig config;
  config.min_history = 4;
  config.batch_size = 16;
  config.train_share = 0.7;
  config.sort_by_time = true;
  const SampleStream stream(store, config);
  const IndexFile* const indices[] = {&gatherer.pools()[0].file(),
                                      &stream.windows().pieces()[0].file()};
  StoreVerifier verifier(store, indices, /*at_once=*/0);
  for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
    gather_all(stream, stream.train_window(w), gatherer);
  }
  gather_all(stream, stream.evaluation(), gatherer);
  verifier.finish();
}

class StoreDamage : public testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::kError);
    good_ = base::temp_path("good");
    const SynthLog log({.users = 40, .items = 200, .days = 8, .events_per_user = 30, .seed = 5});
    write_synth_store(log, {.folder = good_, .history_length = 16, .min_history = {4, 16}});
    read_all(good_, VerifyMode::kNever);  // makes the index files
  }
  void TearDown() override {
    fs::remove_all(good_);
    base::set_log_level(base::LogLevel::kInfo);
  }

  void survive(int damages, uint64_t seed) {
    const std::string folder = base::temp_path("bad");
    int refused = 0;
    for (int i = 0; i < damages; ++i) {
      fs::remove_all(folder);
      fs::copy(good_, folder, fs::copy_options::recursive);
      const std::string what = Damage(folder, seed + static_cast<uint64_t>(i)).apply();
      SCOPED_TRACE(what + ", seed " + std::to_string(seed + static_cast<uint64_t>(i)));
      refused += expect_errors_only(folder);
    }
    EXPECT_GT(refused, damages / 2);
  }

  /// True if somebody refused it.
  static bool expect_errors_only(const std::string& folder) {
    bool refused = false;
    const std::function<void()> uses[] = {[&] { read_all(folder, VerifyMode::kNever); },
                                          [&] { read_all(folder, VerifyMode::kAuto); },
                                          [&] { compare_sizes(folder).throw_if_bad(folder); },
                                          [&] { verify_store(folder).throw_if_bad(folder); },
                                          [&] {
                                            const LogSchema schema = schema_for(folder);
                                            const EventStore store(folder, schema.samples());
                                            summarize(store, schema);
                                          },
                                          [&] {
                                            const EventStore store(folder,
                                                                   schema_for(folder).samples());
                                            predict_by_history(store);
                                            read_truth(store);
                                          }};
    for (const std::function<void()>& use : uses) {
      try {
        use();
      } catch (const Error&) {
        refused = true;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "not a segue::Error: " << error.what();
      }
    }
    return refused;
  }

  std::string good_;
};

TEST_F(StoreDamage, EndsInAnErrorOrNotAtAll) { survive(40, 1); }

class SlowStoreDamage : public StoreDamage {};

/// --gtest_repeat and --gtest_shuffle give it other damages each time.
TEST_F(SlowStoreDamage, EndsInAnErrorOrNotAtAll) {
  const auto seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  survive(500, 1000 + seed * 100'000);
}

TEST_F(StoreDamage, AUserThatDoesNotExistIsNoIndex) {
  const std::string path = good_ + "/hstu_cache_L16/flat_uid.npy";
  std::string bytes = base::read_file(path);
  const LogSchema schema = schema_for(good_);
  const EventStore tables(good_, schema.samples());
  for (const int64_t user : tables.unique_users()) {
    const auto u = static_cast<size_t>(user);
    // The first and the last event of a user may be looked at when the store is opened.
    for (int64_t e = tables.user_start()[u] + 1; e < tables.user_end()[u] - 1; ++e) {
      bytes[128 + 8 * static_cast<size_t>(e) + 6] = 0x7f;
    }
  }
  base::put_file(path, bytes);
  const EventStore store(good_, schema.samples(), "", VerifyMode::kNever);
  const std::string message =
      base::message_of(ErrorCode::kCorrupt, [&] { summarize(store, schema); });
  EXPECT_TRUE(base::contains(message, "flat_uid.npy gives event"));
}

TEST_F(StoreDamage, ManifestsThatAreSealedButMakeNoSense) {
  const std::string path = good_ + "/" + kManifestFile, good = base::read_file(path);
  const auto with = [&](const char* place, const ManifestJson& value) {
    ManifestJson j = ManifestJson::parse(good);
    j[nlohmann::json_pointer<std::string>(place)] = value;
    return base::message_of(ErrorCode::kCorrupt,
                            [&] { StoreManifest::from_json(sealed(j), path); });
  };
  using base::contains;
  EXPECT_TRUE(contains(with("/min_history", ManifestJson::array()), "minimum histories []"));
  EXPECT_TRUE(contains(with("/min_history", {4, 4}), "minimum histories [4, 4]"));
  EXPECT_TRUE(contains(with("/min_history", {-1}), "minimum histories [-1]"));
  StoreManifest none = StoreManifest::from_json(good, path);
  none.history_length = 0;
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kCorrupt,
                                        [&] { StoreManifest::from_json(none.to_json(), path); }),
                       "history length"));
  EXPECT_TRUE(contains(with("/num_events", -1), "events of"));
  EXPECT_TRUE(contains(with("/num_users", 1 << 30), "events of"));
  // Conversions of nlohmann's would take these, too.
  EXPECT_TRUE(contains(with("/num_users", 92233720368547758072.0), "`num_users`: 9.2"));
  EXPECT_TRUE(contains(with("/num_items", 0.5), "`num_items`: 0.5 is not a whole number"));
  EXPECT_TRUE(contains(with("/history_length", true), "`history_length`: true is not"));
  EXPECT_TRUE(contains(with("/min_history", {1e300}), "`min_history`: 1e+300 is not"));
  EXPECT_TRUE(contains(with("/origin/sources", {{{"name", "a"}, {"bytes", -1e30}}}), "`bytes`"));
  const std::string uid = "/files/hstu_cache_L16~1flat_uid.npy";
  EXPECT_TRUE(contains(with((uid + "/count").c_str(), int64_t{1} << 61), "elements"));
  EXPECT_TRUE(contains(with((uid + "/count").c_str(), -1), "elements"));
  EXPECT_TRUE(contains(with((uid + "/dtype").c_str(), "<i3"), "elements"));
  EXPECT_TRUE(contains(with((uid + "/bytes").c_str(), 1), "elements"));
  for (const char* name : {"..~1..~1etc~1passwd", "~1etc~1passwd", "a~1..~1b", ""}) {
    const std::string place = std::string("/files/") + name;
    EXPECT_TRUE(
        contains(with(place.c_str(), {{"bytes", 1}, {"xxh64", hex64(0)}}), "below the store"))
        << name;
  }
  EXPECT_EQ(StoreManifest::from_json(good, path).to_json(), good);
}

TEST_F(StoreDamage, NestingWithoutEndIsAnError) {
  const std::string deep(200'000, '['), path = "manifest.json";
  base::message_of(ErrorCode::kCorrupt, [&] { StoreManifest::from_json(deep, path); });
  base::message_of(ErrorCode::kCorrupt, [&] {
    StoreManifest::from_json("{\"format\":" + deep + std::string(deep.size(), ']') + "}", path);
  });
  base::put_file(good_ + "/segue/schema.toml", "a = " + deep);
  base::message_of(ErrorCode::kCorrupt, [&] { schema_for(good_); });
}

}  // namespace
}  // namespace segue::data
