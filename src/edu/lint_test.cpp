#include <cmath>
#include <filesystem>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/test_util.h"
#include "edu/machine.h"
#include "edu/registry.h"
#include "edu/sidecar.h"

namespace segue::edu {
namespace {

using Json = base::CheckedJson;

SidecarFacts facts(bool dram) {
  SidecarFacts f;
  f.workload = dram ? "micro-dlrm-dram-cpp-train" : "micro-dlrm-cpp-train";
  f.utc = "2026-01-31T23-59-59Z";
  f.machine = {.cpu = "A CPU",
               .os = "Linux 6",
               .machine_class = "x86-64, 2 cores",
               .cores = 2,
               .llc_bytes = 32 << 20,
               .l2_bytes = 2 << 20,
               .memory_bytes = int64_t{8} << 30};
  f.ceilings = {.stream_bytes = 12.5e9,
                .gather_bytes = 7.25e9,
                .flops = 151e9,
                .dispatch_floor_us = 3.5,
                .knee_bytes = 64 << 20};
  f.shape = dram ? micro_dlrm_dram(Keys::kCross, 4'000'000, 64, 20, 2048) : micro_dlrm(2048);
  for (size_t s = 0; s < kSpanCount; ++s) {
    f.times.median[s] = (dram ? 1e-3 : 1e-4) * (1 + static_cast<double>(s));
    f.times.p10[s] = 0.9 * f.times.median[s];
    f.times.p90[s] = 1.4 * f.times.median[s];
  }
  f.times.steps = 39;
  f.times.wall_seconds = 39 * 1.1 * step_seconds(f.times.median);
  f.lookups_per_step = dram ? 110'000.25 : 3 * 2048;
  f.distinct_per_step = dram ? 100'000.5 : 1'950;
  f.distinct_per_epoch = dram ? 3'000'000 : 2'600;
  f.huge_pages = true;
  f.seed = 1;
  f.threads = 2;
  return f;
}

class EduLintTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::vector<RegistryEntry> entries;
    for (const bool dram : {false, true}) {
      const SidecarFacts f = facts(dram);
      const std::string path = folder_ + "/" + sidecar_name(f);
      base::write_file(path, sidecar_text(f));
      entries.push_back(
          {.workload = f.workload, .model = "micro", .metric = "accuracy", .sidecar = path});
    }
    base::write_file(registry_, registry_text(entries));
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(registry_);
  }
  LintResult lint() const { return lint_registry(registry_, folder_); }
  std::string sidecar_path() const { return folder_ + "/" + sidecar_name(facts(true)); }

  /// A sidecar as somebody would leave it who knows how it is sealed.
  static Json sealed(Json j) {
    j["extra"].erase("digest");
    j["extra"]["digest"] = sha256(j.dump());
    return j;
  }
  /// With a registry that has no digests, no numbers and no labels: what is left is to compute the
  /// sidecar again.
  LintResult lint_forged(const Json& sidecar) {
    base::write_file(sidecar_path(), sidecar.dump(2) + "\n");
    Json registry = Json::parse(base::read_file(registry_));
    for (auto& [name, workload] : registry["suites"]["edge"].items()) {
      for (auto& [axis, block] : workload["regime"].items()) {
        block.erase("evidence_sha256_short");
        block.erase("evidence_sidecar");
        for (const char* number : {"peak_bytes_per_step", "flops_per_byte", "utilization"})
          block.erase(number);
        block["value"] = "unmeasured";
      }
    }
    const std::string bare = registry_ + ".bare";
    base::write_file(bare, registry.dump());
    const LintResult result = lint_registry(bare, folder_);
    std::filesystem::remove(bare);
    return result;
  }

  std::string folder_ = base::temp_path("sidecars"), registry_ = base::temp_path("workloads.json");
};

/// Calls forge(description, changed sidecar) for every member: another number, another type, none.
void forge_all(const Json& original,
               const std::function<void(const std::string&, const Json&)>& forge) {
  const auto flat = original.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    const Json::json_pointer at(pointer);
    Json changed = original;
    if (value.is_number_integer())
      changed[at] = value.get<int64_t>() + 1;
    else if (value.is_number())
      changed[at] = value.get<double>() * 1.01;
    else if (value.is_boolean())
      changed[at] = !value.get<bool>();
    else
      changed[at] = value.is_null() ? Json(5) : Json("forged");
    forge(pointer + " changed", changed);
    Json typed = original;
    typed[at] = value.is_string() ? Json(5) : Json("text");
    forge(pointer + " of another type", typed);
    Json without = original;
    Json& parent = without[at.parent_pointer()];
    parent.erase(at.back());
    forge(pointer + " gone", without);
  }
}

TEST_F(EduLintTest, AcceptsItsOwnSidecars) {
  const LintResult result = lint();
  EXPECT_TRUE(result.findings.empty()) << result.findings[0];
  EXPECT_EQ(result.workloads, 2);
  EXPECT_EQ(result.sidecars, 2);
  EXPECT_EQ(result.exit_code(), 0);
  const LintResult alone = lint_registry(registry_, "");
  EXPECT_EQ(alone.exit_code(), 0);
  EXPECT_EQ(alone.sidecars, 0);
  EXPECT_EQ(lint_forged(Json::parse(base::read_file(sidecar_path()))).exit_code(), 0);
}

TEST_F(EduLintTest, RejectsEveryForgery) {
  const std::string name = sidecar_name(facts(true));
  int forged = 0;
  forge_all(Json::parse(base::read_file(sidecar_path())),
            [&](const std::string& what, const Json& j) {
              EXPECT_FALSE(check_sidecar(name, j.dump()).problems.empty()) << what;
              if (++forged % 40 == 0) {
                EXPECT_EQ(lint_forged(j).exit_code(), 1) << what;
              }
            });
  EXPECT_GE(forged, 150);
}

TEST_F(EduLintTest, RejectsForgeriesThatAreSealedAgain) {
  // What nothing else in a sidecar tells anything about.
  const std::vector<std::string> free = {
      "/extra/seed",       "/extra/compiler",      "/extra/threads",
      "/extra/huge_pages", "/extra/counter_bytes", "/extra/spans_p",
      "/extra/digest",     "/extra/l2_bytes",      "/platform/machine_class"};
  const std::string name = sidecar_name(facts(true));
  int forged = 0;
  forge_all(Json::parse(base::read_file(sidecar_path())),
            [&](const std::string& what, const Json& j) {
              for (const std::string& start : free) {
                if (what.starts_with(start)) return;
              }
              const Json again = sealed(j);
              EXPECT_FALSE(check_sidecar(name, again.dump()).problems.empty()) << what;
              if (++forged % 40 == 0) {
                EXPECT_EQ(lint_forged(again).exit_code(), 1) << what;
              }
            });
  EXPECT_GE(forged, 100);
}

TEST_F(EduLintTest, ChecksTheRecordedDigest) {
  const std::string text = base::read_file(sidecar_path());
  base::write_file(sidecar_path(), text + "\n");  // the same JSON
  const LintResult result = lint();
  ASSERT_EQ(result.exit_code(), 1);
  EXPECT_NE(result.findings[0].find("SHA-256"), std::string::npos) << result.findings[0];
}

TEST_F(EduLintTest, RejectsLabelsAndNumbersOfTheRegistry) {
  const Json original = Json::parse(base::read_file(registry_));
  const std::string dram = "/suites/edge/micro-dlrm-dram-cpp-train/regime/";
  const std::pair<std::string, Json> forgeries[] = {
      {"working_set/value", "cache_resident"},
      {"working_set/value", "large"},
      {"working_set/peak_bytes_per_step", 1000.0},
      {"arithmetic_intensity/value", "compute_bound"},
      {"arithmetic_intensity/value", 5},
      {"arithmetic_intensity/flops_per_byte", 900.0},
      {"dispatch/value", "busy"},
      {"dispatch/utilization", 0.9},
      {"dispatch/evidence_sha256_short", "000000000000"},
      {"working_set/evidence_sidecar", "../elsewhere.json"},
      {"working_set/evidence_sidecar", "absent.json"}};
  for (const auto& [name, value] : forgeries) {
    Json changed = original;
    changed[Json::json_pointer(dram + name)] = value;
    base::write_file(registry_, changed.dump());
    EXPECT_EQ(lint().exit_code(), 1) << name << " " << value;
  }
  Json without = original;
  without[Json::json_pointer(dram.substr(0, dram.size() - 1))].erase("dispatch");
  base::write_file(registry_, without.dump());
  EXPECT_EQ(lint_registry(registry_, "").exit_code(), 1);
}

TEST_F(EduLintTest, AGreyBandIsNoError) {
  const Json original = Json::parse(base::read_file(registry_));
  Json changed = original;
  for (const char* axis : {"working_set", "arithmetic_intensity", "dispatch"}) {
    changed["suites"]["edge"]["micro-dlrm-dram-cpp-train"]["regime"][axis]["value"] = "unmeasured";
  }
  base::write_file(registry_, changed.dump());
  EXPECT_EQ(lint().exit_code(), 0);
}

TEST_F(EduLintTest, AWorkloadWithoutASidecarPasses) {
  std::filesystem::remove(folder_ + "/" + sidecar_name(facts(false)));
  Json registry = Json::parse(base::read_file(registry_));
  for (auto& [axis, block] : registry["suites"]["edge"]["micro-dlrm-cpp-train"]["regime"].items()) {
    block.erase("evidence_sidecar");
    block.erase("evidence_sha256_short");
  }
  base::write_file(registry_, registry.dump());
  EXPECT_EQ(lint().exit_code(), 0);
  EXPECT_EQ(lint().sidecars, 1);
}

TEST_F(EduLintTest, NothingToJudgeIsCodeTwo) {
  EXPECT_EQ(lint_registry(folder_ + "/absent.yaml", "").exit_code(), 2);
  const std::string empty = base::temp_path("empty.yaml");
  base::write_file(empty, "# nothing\n");
  EXPECT_EQ(lint_registry(empty, "").exit_code(), 2);
  base::write_file(empty, "suites:\n  edge:\n");
  EXPECT_EQ(lint_registry(empty, "").exit_code(), 2);
  std::filesystem::remove(empty);
  EXPECT_THROW(lint_registry(registry_, folder_ + "/absent"), Error);
}

TEST(EduYamlTest, ReadsTheDocumentedSchema) {
  const Json j = read_yaml(
      "# a registry\n"
      "suites:\n"
      "  cloud:\n"
      "    \"micro-dlrm-train\":\n"
      "      model: MicroDLRM   # a class\n"
      "      params: 22977\n"
      "      quality_target: {metric: accuracy, value: 0.70}\n"
      "      tags: [a, 'b c', 3]\n"
      "      list:\n"
      "      - one\n"
      "      - 2.5\n"
      "      provenance: >\n"
      "        two\n"
      "        lines\n"
      "      empty:\n"
      "      flag: true\n"
      "      url: http://x.y#z\n",
      "test.yaml");
  const Json& w = j["suites"]["cloud"]["micro-dlrm-train"];
  EXPECT_EQ(w["model"], "MicroDLRM");
  EXPECT_EQ(w["params"], 22977);
  EXPECT_EQ(w["quality_target"]["value"], 0.70);
  EXPECT_EQ(w["tags"], Json::parse(R"(["a", "b c", 3])"));
  EXPECT_EQ(w["list"], Json::parse(R"(["one", 2.5])"));
  EXPECT_EQ(w["provenance"], "two lines");
  EXPECT_TRUE(w["empty"].is_null());
  EXPECT_EQ(w["flag"], true);
  EXPECT_EQ(w["url"], "http://x.y#z");
}

TEST(EduYamlTest, SaysWhatItDoesNotRead) {
  for (const char* text :
       {"a: 1\na: 2\n", "a\n", "a:\n\t- b\n", "a: &x 1\n", "a: {b: 1\n", "a: \"b\n",
        "a:\n    b: 1\n  c: 2\n", "a: 1\n   b: 2\n", "a: {b: 1} c\n", "a:\n  - b\n  c: 1\n"}) {
    EXPECT_THROW(read_yaml(text, "test.yaml"), Error) << text;
  }
  const std::string deep(5000, '[');
  EXPECT_THROW(read_yaml("a: " + deep, "test.yaml"), Error);
}

TEST(EduRegimeTest, BandsAreTheDocumentedOnes) {
  EXPECT_EQ(intensity_axis(61, 30), "compute_bound");
  EXPECT_EQ(intensity_axis(60, 30), "unmeasured");
  EXPECT_EQ(intensity_axis(15, 30), "unmeasured");
  EXPECT_EQ(intensity_axis(14.9, 30), "bandwidth_bound");
  EXPECT_EQ(dispatch_axis(0.5, 1000, 1), "device_saturated");
  EXPECT_EQ(dispatch_axis(0.3, 1000, 1), "unmeasured");
  EXPECT_EQ(dispatch_axis(0.24, 1000, 1), "dispatch_bound");
  EXPECT_EQ(dispatch_axis(0.9, 19, 1), "dispatch_bound");
  EXPECT_EQ(working_set_axis(6, 12), "cache_resident");
  EXPECT_EQ(working_set_axis(47, 12), "unmeasured");
  EXPECT_EQ(working_set_axis(48, 12), "dram_bound");
}

}  // namespace
}  // namespace segue::edu
