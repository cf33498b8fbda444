// Versions that were damaged, mixed up or made up: verify finds it, nothing is built on it.

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/safetensors.h"
#include "base/sealed_json.h"
#include "base/test_util.h"
#include "publish/chain.h"
#include "publish/publish.h"
#include "publish/publish_test_util.h"

namespace segue::publish {
namespace {

namespace fs = std::filesystem;
using base::contains;
using Json = base::CheckedJson;
using Edit = std::function<void(Json&)>;

constexpr int64_t kVersions = 4;

class DamagedVersions : public testing::TestWithParam<FileFormat> {
 protected:
  void SetUp() override {
    if (GetParam() == FileFormat::kParquet && parquet() == nullptr) GTEST_SKIP() << "no Parquet";
    folder_ = base::temp_path("folder");
    fs::remove_all(folder_);
    PublishConfig config;
    config.folder = good();
    config.format = GetParam();
    config.dtype = RowType::kInt8;
    config.parquet = parquet();
    TestModel model;
    for (int64_t v = 1; v <= kVersions; ++v) {
      publish(config, model.save(folder_ + "/checkpoints", 10 * v));
      model.train();
    }
    model.save(folder_ + "/checkpoints", 100);
    ASSERT_TRUE(verify(good(), parquet()).problems.empty());
    renew();
  }

  std::string good() const { return folder_ + "/good"; }
  std::string bad() const { return folder_ + "/bad"; }
  std::string path(int64_t version, const std::string& name = "") const {
    return version_path(bad(), version) + "/" + name;
  }
  std::string table_file(const std::string& table) const {
    return table_file_name(table, GetParam());
  }
  /// An undamaged copy.
  void renew() {
    fs::remove_all(bad());
    fs::copy(good(), bad(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

  /// Whether everybody refuses the versions; leaves an undamaged copy.
  testing::AssertionResult refused(const std::string& part = "") {
    const std::string to = folder_ + "/applied";
    const auto corrupt = [](const std::function<void()>& action) {
      try {
        action();
      } catch (const Error& error) {
        return error.code() == ErrorCode::kCorrupt;
      }
      return false;
    };
    const std::vector<std::string> problems = verify(bad(), parquet()).problems;
    const bool applied =
        !corrupt([&] { apply(bad(), to, 0, parquet()); }) || base::exists(to + "/current");
    PublishConfig config;
    config.folder = bad();
    config.parquet = parquet();
    const train::Checkpoint next(train::checkpoint_path(folder_ + "/checkpoints", 100));
    const bool published = !corrupt([&] { publish(config, next); });
    fs::remove_all(to);
    renew();
    if (problems.empty()) return testing::AssertionFailure() << "verify finds nothing";
    if (applied) return testing::AssertionFailure() << "apply takes it: " << problems[0];
    if (published) return testing::AssertionFailure() << "publish goes on: " << problems[0];
    const std::string all = fmt::format("{}", fmt::join(problems, "\n"));
    if (all.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "no <" << part << "> in <" << all << ">";
    }
    return testing::AssertionSuccess();
  }

  /// Changes a manifest and seals it again; so that later ones follow it, if they shall.
  void edit(int64_t version, const Edit& change, bool relink) const {
    const auto rewrite = [&](int64_t v, const Edit& how) {
      Json j = Json::parse(base::read_file(path(v, kVersionManifest)));
      j.erase("checksum");
      how(j);
      const std::string text = base::seal_json(j);
      base::put_file(path(v, kVersionManifest), text);
      return base::seal_of(text);
    };
    uint64_t sealed = rewrite(version, change);
    for (int64_t v = version + 1; relink && v <= kVersions; ++v) {
      sealed = rewrite(v, [&](Json& j) { j["previous_checksum"] = base::hex64(sealed); });
    }
  }

  /// Puts another content into a file of a version and lets all checksums agree with it.
  void replace(
      int64_t version, const std::string& name, const std::string& content,
      const Edit& change = [](Json&) {}) const {
    base::put_file(path(version, name), content);
    const auto record = [&](Json& j) {
      for (Json& file : j["files"]) {
        if (file["name"] != name) continue;
        file["bytes"] = content.size();
        file["xxh64"] = base::hex64(base::xxh64(content));
      }
      change(j);
    };
    edit(version, record, true);
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Both, DamagedVersions,
                         testing::Values(FileFormat::kSafetensors, FileFormat::kParquet),
                         [](const auto& of) { return std::string(to_string(of.param)); });

TEST_P(DamagedVersions, ShowInEveryFile) {
  const uint32_t seed = 11;
  std::mt19937 random(seed);
  for (int64_t v = 1; v <= kVersions; ++v) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(v))) {
      names.push_back(entry.path().filename().string());
    }
    ASSERT_GE(names.size(), 5u);
    for (const std::string& name : names) {
      const std::string whole = base::read_file(path(v, name));
      for (int i = 0; i < 4; ++i) {
        std::string changed = whole;
        const size_t at = random() % changed.size();
        changed[at] = static_cast<char>(changed[at] ^ (1 << random() % 8));
        base::put_file(path(v, name), changed);
        EXPECT_TRUE(refused(version_name(v))) << name << " at " << at << ", seed " << seed;
      }
      base::put_file(path(v, name), whole.substr(0, random() % whole.size()));
      EXPECT_TRUE(refused(version_name(v))) << name << " cut";
      fs::remove(path(v, name));
      EXPECT_TRUE(refused(name + " is missing")) << name;
    }
    base::put_file(path(v, "extra"), "x");
    EXPECT_TRUE(refused("extra is not in the manifest"));
  }
}

TEST_P(DamagedVersions, ShowByTheirOrder) {
  for (int64_t v = 1; v <= kVersions; ++v) {  // without the newest, `current` leads nowhere
    fs::remove_all(path(v));
    EXPECT_TRUE(refused()) << "without " << v;
    for (int64_t other = 1; other <= kVersions + 1; ++other) {
      if (other == v) continue;
      // One twice.
      fs::remove_all(path(other));
      fs::copy(path(v), path(other), fs::copy_options::recursive);
      EXPECT_TRUE(refused("holds " + version_name(v))) << v << " as " << other;
      if (other > kVersions) continue;
      fs::rename(path(v), bad() + "/aside");
      fs::rename(path(other), path(v));
      fs::rename(bad() + "/aside", path(other));
      EXPECT_TRUE(refused("holds " + version_name(other))) << v << " and " << other << " swapped";
      fs::copy_file(path(other, table_file("all")), path(v, table_file("all")),
                    fs::copy_options::overwrite_existing);
      EXPECT_TRUE(refused("all.")) << "a table of " << other << " in " << v;
    }
  }
  fs::rename(path(2), bad() + "/version-7");
  EXPECT_TRUE(refused("version-7: is no version"));
  // Two gaps are two lines.
  fs::remove_all(path(2));
  const std::vector<std::string> problems = verify(bad(), parquet()).problems;
  EXPECT_TRUE(contains(problems.front(), "version-000002: is missing"));
}

TEST_P(DamagedVersions, ShowByTheirLink) {
  const auto point = [&](const std::string& target) {
    fs::remove_all(bad() + "/current");
    fs::create_symlink(target, bad() + "/current");
  };
  for (const char* target :
       {"version-000001", "version-000009", "../good/version-000004", "/etc"}) {
    point(target);
    EXPECT_TRUE(refused("current")) << target;
  }
  fs::remove(bad() + "/current");
  EXPECT_TRUE(refused("points to nothing"));
  fs::remove(bad() + "/current");
  base::make_folders(bad() + "/current");
  EXPECT_TRUE(refused("is no link to a version"));
}

/// Whoever edits a number can compute a checksum, too.
TEST_P(DamagedVersions, ShowWhenNumbersWereEditedAndSealedAgain) {
  const std::vector<std::pair<const char*, Edit>> edits = {
      {"number", [](Json& j) { j["number"] = j["number"].get<int64_t>() + 1; }},
      {"base", [](Json& j) { j["base"] = j["base"].get<int64_t>() + 1; }},
      {"kind", [](Json& j) { j["kind"] = j["kind"] == "base" ? "increment" : "base"; }},
      {"a base", [](Json& j) { j["kind"] = "base", j["base"] = j["number"]; }},
      {"previous", [](Json& j) { j["previous"] = j["previous"].get<int64_t>() + 1; }},
      {"step", [](Json& j) { j["step"] = 11; }},
      {"negative", [](Json& j) { j["step"] = -1; }},
      {"dtype", [](Json& j) { j["dtype"] = "f32"; }},
      {"no dtype", [](Json& j) { j["dtype"] = "f16"; }},
      {"format", [](Json& j) { j["table_format"] = "csv"; }},
      {"dim", [](Json& j) { j["tables"][0]["dim"] = 5; }},
      {"rows", [](Json& j) { j["tables"][0]["rows"] = 41; }},
      {"rows of dynamic", [](Json& j) { j["tables"][1]["rows"] = 61; }},
      {"in_file", [](Json& j) { j["tables"][0]["in_file"] = 0; }},
      {"removed", [](Json& j) { j["tables"][1]["removed"] = 1; }},
      {"content", [](Json& j) { j["tables"][2]["content"] = base::hex64(5); }},
      {"name", [](Json& j) { j["tables"][0]["name"] = "../all"; }},
      {"a table less", [](Json& j) { j["tables"].erase(0); }},
      {"a table twice", [](Json& j) { j["tables"].push_back(j["tables"][0]); }},
      {"bytes", [](Json& j) { j["files"][1]["bytes"] = 1; }},
      {"xxh64", [](Json& j) { j["files"][1]["xxh64"] = base::hex64(1); }},
      {"a file less", [](Json& j) { j["files"].erase(1); }},
      {"another file", [](Json& j) { j["files"][1]["name"] = "../../etc/passwd"; }},
      {"no object", [](Json& j) { j["tables"][0] = 3; }},
  };
  for (const int64_t v : {int64_t{2}, kVersions}) {
    for (const auto& [name, change] : edits) {
      for (const bool relink : {false, true}) {
        edit(v, change, relink);
        EXPECT_TRUE(refused()) << name << " of " << v << (relink ? ", linked again" : "");
      }
    }
  }
  edit(
      kVersions, [](Json& j) { j["previous_checksum"] = base::hex64(3); }, false);
  EXPECT_TRUE(refused("was not made after version-000003"));
  edit(
      2, [](Json& j) { j["version"] = 2; }, true);
  EXPECT_EQ(base::error_of([&] { verify(bad(), parquet()); })->code(), ErrorCode::kUnsupported);
}

/// Behind the newest base nobody needs them.
TEST_P(DamagedVersions, BeforeTheNewestBaseAreToldButLeftAlone) {
  PublishConfig config;
  config.folder = bad();
  config.parquet = parquet();
  config.base = true;
  const train::Checkpoint next(train::checkpoint_path(folder_ + "/checkpoints", 100));
  publish(config, next);
  base::put_file(path(2, "extra"), "x");
  ASSERT_EQ(verify(bad(), parquet()).problems.size(), 1u);
  EXPECT_EQ(apply(bad(), folder_ + "/applied", 0, parquet()).step, 100);
  config.base = false;
  const train::Checkpoint earlier(train::checkpoint_path(folder_ + "/checkpoints", 40));
  EXPECT_EQ(publish(config, earlier).version.base, kVersions + 1) << "also back to an earlier step";
  for (int64_t v = 1; v <= kVersions; ++v) fs::remove_all(path(v));
  EXPECT_TRUE(verify(bad(), parquet()).problems.empty()) << "older chains may go as a whole";
}

/// Files made up with checksums that agree: rows are compared with what was published.
TEST_P(DamagedVersions, ShowWhenTheirRowsWereMadeUp) {
  const std::string name = table_file("hashed"), removed_name = removed_file_name("hashed");
  const bool safetensors = GetParam() == FileFormat::kSafetensors;
  const std::string file = folder_ + "/crafted";
  const auto write_vectors = [&](const data::VectorShape& shape,
                                 const data::VectorBlock& rows) -> std::string {
    if (parquet() == nullptr) return {};  // built without: not reached
    const auto writer = parquet()->create(file, shape);
    writer->write(rows);
    writer->finish();
    return base::read_file(file);
  };
  const auto crafted = [&](const std::vector<int64_t>& ids, const std::vector<int64_t>& removed) {
    const auto n = std::ssize(ids), m = std::ssize(removed);
    const std::vector<int8_t> weight(ids.size() * 5, 3);
    const std::vector<float> scale(ids.size(), 0.5f);
    const Edit counts = [&](Json& j) {
      j["tables"][1]["in_file"] = n;
      j["tables"][1]["removed"] = m;
    };
    if (safetensors) {
      base::write_safetensors(
          file, std::vector<base::SafetensorsItem>{{"id", "I64", {n}, ids.data()},
                                                   {"weight", "I8", {n, 5}, weight.data()},
                                                   {"removed", "I64", {m}, removed.data()},
                                                   {"scale", "F32", {n}, scale.data()}});
      return replace(3, name, base::read_file(file), counts);
    }
    const auto* const numbers = reinterpret_cast<const std::byte*>(weight.data());
    replace(3, removed_name, write_vectors({}, {removed}));
    replace(3, name,
            write_vectors({data::VectorShape::Number::kI8, 5, true}, {ids, numbers, scale.data()}),
            counts);
    if (m > 0) return;
    fs::remove(path(3, removed_name));
    edit(
        3,
        [&](Json& j) {
          std::erase_if(j["files"].get_ref<Json::array_t&>(),
                        [&](const Json& f) { return f["name"] == removed_name; });
        },
        true);
  };
  const auto ids = [&] {  // still there
    const Chain chain = open_chain(bad(), 2);
    std::vector<int64_t> found;
    EXPECT_TRUE(replay(bad(), chain, 1, parquet(), [&](int64_t id, const Row&) {
                  found.push_back(id);
                }).empty());
    return found;
  }();
  crafted({5, 4}, {});
  EXPECT_TRUE(refused("ids are not ascending: 4 follows 5"));
  crafted({5, 5}, {});
  EXPECT_TRUE(refused("ids are not ascending: 5 follows 5"));
  crafted({5}, {5});
  EXPECT_TRUE(refused("ids are not ascending: 5 follows 5"));
  crafted({}, {7});
  EXPECT_TRUE(refused("1 removed ids were not there, the first is 7"));
  crafted({}, {ids[1], ids[0]});
  EXPECT_TRUE(refused("ids are not ascending"));
  crafted({5}, {ids[0]});
  EXPECT_TRUE(refused("not those that were published"));
  crafted({5}, {});
  edit(
      3, [](Json& j) { j["tables"][1]["in_file"] = 2; }, true);
  EXPECT_TRUE(refused(safetensors ? "`id` is not I64 [2]" : "has not as many rows"));
  replace(3, name, "no table");
  EXPECT_TRUE(refused(safetensors ? "broken safetensors file" : "damaged Parquet file"));
  replace(3, kDenseFile, "no safetensors");
  EXPECT_TRUE(refused("broken safetensors file"));
}

}  // namespace
}  // namespace segue::publish
