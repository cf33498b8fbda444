// Checkpoints that somebody made up. They are sealed as ours are, since anybody can compute a
// checksum: only what they say can give them away. Nothing but segue::Error may come of them.

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/test_util.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/run/loop.h"
#include "train/run/run_state.h"
#include "train/run/scoring.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Sealed as CheckpointManifest::text() does it.
std::string sealed(std::string text) {
  text.resize(text.size() - 2);
  return fmt::format("{},\n  \"checksum\": \"{:016x}\"\n}}\n", text, base::xxh64(text));
}

Json unsealed(const std::string& text) {
  Json j = Json::parse(text);
  j.erase("checksum");
  return j;
}

constexpr const char* kRaw = "@raw@";  // stands for text that is no JSON value of the library's

/// A value that nobody expects.
Json strange(std::mt19937_64& random, const Json& before) {
  const auto number = before.is_number() ? before.get<double>() : 7.0;
  const std::vector<Json> values = {-1,
                                    0,
                                    1,
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<uint64_t>::max(),
                                    int64_t{1} << 31,
                                    int64_t{1} << 53,
                                    int64_t{1} << 60,
                                    1e300,
                                    -0.5,
                                    nullptr,
                                    true,
                                    "",
                                    "../../../etc/passwd",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({-1, std::numeric_limits<int64_t>::max()}),
                                    static_cast<int64_t>(-number),
                                    static_cast<int64_t>(number) + 1,
                                    static_cast<int64_t>(number) * 1000003,
                                    kRaw};
  return values[random() % values.size()];
}

/// Any value of the tree, the root apart; half of the time one of the state.
Json::json_pointer any_place(std::mt19937_64& random, const Json& j) {
  const bool in_state = random() % 2 == 0;
  std::vector<std::string> places;
  const Json flat = j.flatten();
  for (const auto& [place, value] : flat.items()) {
    if (in_state && !place.starts_with("/state/")) continue;
    for (size_t at = place.find('/', 1);; at = place.find('/', at + 1)) {
      places.push_back(place.substr(0, at));  // it, and what it lies in
      if (at == std::string::npos) break;
    }
  }
  return Json::json_pointer(places[random() % places.size()]);
}

/// One of the numbers in a text becomes another.
std::string strange_text(std::mt19937_64& random, std::string text) {
  std::vector<size_t> digits;
  for (size_t i = 1; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return std::isdigit(text[at]) != 0; };
    if (is_digit(i) && !is_digit(i - 1)) digits.push_back(i);
  }
  if (digits.empty()) return text;
  const size_t at = digits[random() % digits.size()];
  const size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
  const std::vector<std::string> values = {
      "-1",   "0",  "2147483647", "9223372036854775807", "1000000000", "65536", "nan",
      "\"\"", "[]", "1e300"};
  return text.replace(at, end - at, values[random() % values.size()]);
}

/// One attack; says what it did.
std::string attack(std::mt19937_64& random, std::string& manifest) {
  Json j = unsealed(manifest);
  const Json::json_pointer place = any_place(random, j);
  std::string what = place.to_string();
  const auto kind = random() % 10;
  if (kind == 0) {
    Json& parent = j[place.parent_pointer()];
    if (parent.is_object()) parent.erase(place.back());
    what += " is gone";
  } else if (kind == 1) {
    j["state"]["config"] = strange_text(random, j["state"]["config"].get<std::string>());
    what = "a number of the config";
  } else {
    j[place] = strange(random, j[place]);
    what += " is " + j[place].dump().substr(0, 60);
  }
  std::string text = j.dump(2);
  if (const size_t raw = text.find(fmt::format("\"{}\"", kRaw)); raw != std::string::npos) {
    const std::vector<std::string> texts = {"1e999",
                                            std::string(100'000, '[') + std::string(100'000, ']'),
                                            "{\"a\": 1, \"a\": 2}", "18446744073709551616"};
    text.replace(raw, std::string(kRaw).size() + 2, texts[random() % texts.size()]);
  }
  manifest = sealed(text);
  return what;
}

int64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class CheckpointAttackTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Layout layout;
    layout.sharding = sparse::Sharding::kRow;
    config_ = layout_config(layout);
    config_.train.steps = 2;
    config_.train.metric_window = 64;
    config_.eval.max_batches = 1;
    base::set_log_level(base::LogLevel::kError);
    whole_ = base::temp_path("whole");
    comm::run_as_threads(GetParam(), 60, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      train_loop(config_, whole_, options, world);
    });
    manifest_ = base::read_file(whole_ + "/checkpoints/step-2/manifest.json");
    ASSERT_EQ(sealed(unsealed(manifest_).dump(2)), manifest_);
  }
  void TearDown() override { base::set_log_level(base::LogLevel::kInfo); }

  /// A run whose only checkpoint has another manifest.
  std::string run_with(const std::string& manifest) const {
    std::string run = base::temp_path("run");
    fs::remove_all(run);
    const std::string checkpoint = run + "/checkpoints/step-2";
    base::make_folders(checkpoint);
    for (const char* name : {"config.toml", "metrics.jsonl"}) {
      fs::copy_file(whole_ + "/" + name, run + "/" + name);
    }
    for (const auto& file : fs::directory_iterator(whole_ + "/checkpoints/step-2")) {
      if (file.path().filename() == "manifest.json") continue;
      fs::create_hard_link(file.path(), checkpoint / file.path().filename());
    }
    base::put_file(checkpoint + "/manifest.json", manifest);
    return run;
  }

  /// Everything that a checkpoint is used for; how many of the uses went through.
  int use(const std::string& run, const std::string& what) const {
    RunConfig longer = config_;
    longer.train.steps = 3;
    LoopOptions options;
    options.own_process = false;
    options.allow_config_changes = {"train.steps"};
    const std::string path = run + "/checkpoints/step-2";
    int fine = 0;
    const auto try_to = [&](const char* name, const auto& action) {
      try {
        action();
        ++fine;
      } catch (const Error& error) {
        EXPECT_STRNE(error.what(), "");
      } catch (const std::exception& error) {
        ADD_FAILURE() << name << " after " << what << ": " << error.what();
      }
    };
    try_to("ls", [&] { CheckpointManifest::read(path).bytes(); });
    try_to("export", [&] { export_weights(Checkpoint(path), run + "/out.safetensors", true); });
    try_to("eval", [&] { open_model(run, {}); });
    try_to("resume", [&] { train_loop(longer, run, options); });
    return fine;
  }

  RunConfig config_;
  std::string whole_, manifest_;
};

TEST_P(CheckpointAttackTest, OnlyErrorsComeOfThem) {
  // SEGUE_ATTACKS=1000 SEGUE_SEED=7 tries more, and others.
  const char* const tries = std::getenv("SEGUE_ATTACKS");
  const char* const chosen = std::getenv("SEGUE_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 20261116;
  std::mt19937_64 random(seed);
  EXPECT_EQ(use(run_with(manifest_), "nothing"), 4);
  const int64_t before = peak_kib();
  int refused = 0;
  for (int i = 0; i < (tries != nullptr ? std::atoi(tries) : 40); ++i) {
    std::string manifest = manifest_;
    const std::string what =
        fmt::format("seed {}, attack {}: {}", seed, i, attack(random, manifest));
    SCOPED_TRACE(what);
    refused += use(run_with(manifest), what) < 4;
  }
  EXPECT_GT(refused, 10);
  EXPECT_LT(peak_kib() - before, 1 << 20) << "KiB";
}

INSTANTIATE_TEST_SUITE_P(Ranks, CheckpointAttackTest, testing::Values(1, 2));

// ---- one number at a time ----

/// Of an array [6, 4] that two ranks have rows of.
std::string manifest_of_two(const std::string& place = "", const Json& value = {}) {
  CheckpointManifest m;
  m.step = 3;
  m.ranks = 2;
  m.state_json = "{}";
  m.files = {{.name = "tables-rank0000.safetensors", .bytes = 5, .xxh64 = 1},
             {.name = "tables-rank0001.safetensors", .bytes = 7, .xxh64 = 2}};
  for (const int rank : {0, 1}) {
    m.parts.push_back({rank, "tables", "weight/item", {{6, 4}, {6, 2}, rank, {{0, 4}}}});
  }
  Json j = unsealed(m.text());
  if (!place.empty()) j[Json::json_pointer(place)] = value;
  return sealed(j.dump(2));
}

TEST(CheckpointManifestTest, ImpossibleNumbersAreRefused) {
  EXPECT_EQ(CheckpointManifest::parse(manifest_of_two(), "m").parts.size(), 2u);
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<std::pair<std::string, Json>> attacks = {
      {"/version", -1.5},
      {"/step", -1},
      {"/step", most},
      {"/step", 3.0},
      {"/step", true},
      {"/step", std::numeric_limits<uint64_t>::max()},
      {"/ranks", 0},
      {"/ranks", 1},  // rank 1 has saved a part
      {"/ranks", most},
      {"/files", Json::object()},
      {"/files/0/bytes", -1},
      {"/files/0/bytes", most},
      {"/files/0/bytes", int64_t{1} << 60},  // 2^60 with the other one
      {"/files/0/name", "tables-rank0001.safetensors"},
      {"/files/0/xxh64", "-1"},
      {"/parts", nullptr},
      {"/parts/0/rank", 1},  // twice the part of rank 1
      {"/parts/0/rank", -1},
      {"/parts/0/shape", Json::array()},
      {"/parts/0/shape", Json::array({-6, 4})},
      {"/parts/0/shape", Json::array({6, int64_t{1} << 59})},
      {"/parts/0/shape", Json::array({0, int64_t{1} << 40, int64_t{1} << 40})},
      {"/parts/0/rows_parts", 0},
      {"/parts/0/rows_parts", most},
      {"/parts/0/rows_part", -1},
      {"/parts/0/rows_part", 2},
      {"/parts/0/columns", Json::array({0})},
      {"/parts/0/columns", Json::array({-1, 4})},
      {"/parts/0/columns", Json::array({1, 4})},
      {"/parts/0/columns", Json::array({0, most})},
      {"/parts/0/columns", Json::array({most, 1})},
      {"/parts/0/columns", Json::array({0, 4, 0, 1})},
      {"/state", Json::array()},
  };
  for (const auto& [place, value] : attacks) {
    const auto error = base::error_of(
        [&] { CheckpointManifest::parse(manifest_of_two(place, value), "the path"); });
    ASSERT_TRUE(error) << place << " = " << value.dump();
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << place << ": " << error->what();
    EXPECT_TRUE(base::contains(error->what(), "the path")) << place;
  }
}

TEST(CheckpointManifestTest, TextsThatExhaustParsersAreRefused) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  std::string wide = "{";  // an object of which a list would look every key up in turn
  for (int i = 0; i < 200'000; ++i) wide += fmt::format("\"k{}\": 0, ", i);
  wide += "\"end\": 0}";
  for (const std::string& value : {deep, wide, std::string("{\"a\": 1, \"a\": 2}")}) {
    std::string text = manifest_of_two("/parts", kRaw);
    text.resize(text.find(",\n  \"checksum\""));
    text.replace(text.find(fmt::format("\"{}\"", kRaw)), std::string(kRaw).size() + 2, value);
    const auto error =
        base::error_of([&] { CheckpointManifest::parse(sealed(text + "\n}"), "m"); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  }
}

TEST(CheckpointManifestTest, ARecordOfARankIsCheckedAsWell) {
  RankRecord record;
  record.step = 4;
  record.rank = 1;
  const Json whole = unsealed(record.text());
  EXPECT_EQ(RankRecord::parse(sealed(whole.dump(2)), "r").rank, 1);
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"step", -1}, {"rank", -1}, {"rank", 1e9}, {"error", 5}, {"files", "x"}, {"parts", 0}}) {
    Json j = whole;
    j[key] = value;
    EXPECT_EQ(base::error_of([&] { RankRecord::parse(sealed(j.dump(2)), "r"); })->code(),
              ErrorCode::kCorrupt)
        << key;
  }
}

TEST(CheckpointManifestTest, AHugeFileIsNotRead) {
  const std::string folder = base::temp_path("step-1");
  base::make_folders(folder);
  base::put_file(folder + "/manifest.json", "{");
  fs::resize_file(folder + "/manifest.json", uintmax_t{1} << 40);  // of which the disk has 1 byte
  EXPECT_TRUE(base::contains(
      base::message_of(ErrorCode::kCorrupt, [&] { CheckpointManifest::read(folder); }),
      "too many for a manifest"));
}

}  // namespace
}  // namespace segue::train
