#include "edu/lab.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/test_util.h"
#include "edu/edu.h"
#include "edu/experiment.h"
#include "edu/registry.h"

namespace segue::edu {
namespace {

void put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  base::write_file(path, text);
}

TEST(EduMachineTest, CachesAreCountedOnce) {
  const std::string root = base::temp_path("cpus");
  const auto cache = [&](int cpu, int index, const char* level, const char* size,
                         const char* shared) {
    const std::string at =
        root + "/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index);
    put(at + "/level", level);
    put(at + "/size", size);
    put(at + "/type", index == 1 ? "Instruction" : "Unified");
    put(at + "/shared_cpu_list", shared);
  };
  for (int cpu = 0; cpu < 4; ++cpu) {
    cache(cpu, 1, "4", "999M", "0-3");  // of instructions
    cache(cpu, 2, "2", "1024K", std::to_string(cpu).c_str());
    cache(cpu, 3, "3", "8M", cpu < 2 ? "0-1" : "2-3");
  }
  put(root + "/cpufreq/size", "1M");
  EXPECT_EQ(detect_cache(root), 16 * kMiB);
  EXPECT_EQ(detect_cache(root, 2), kMiB);
  EXPECT_EQ(detect_cache(root + "/absent"), 0);
  std::filesystem::remove_all(root);
}

TEST(EduMachineTest, TablesLeaveTheCacheOrAreRefused) {
  const int64_t free = int64_t{64} << 30;
  EXPECT_EQ(choose_table_bytes(12 * kMiB, free), 256 * kMiB);
  EXPECT_EQ(choose_table_bytes(36 * kMiB, free), 576 * kMiB);
  EXPECT_EQ(choose_table_bytes(96 * kMiB, free), 1536 * kMiB);
  EXPECT_EQ(choose_table_bytes(96 * kMiB, 2048 * kMiB), 512 * kMiB);
  EXPECT_THROW(choose_table_bytes(96 * kMiB, 1024 * kMiB), Error);
}

TEST(EduMachineTest, FindsTheKnee) {
  using Curve = std::vector<std::pair<int64_t, double>>;
  EXPECT_EQ(find_knee(Curve{{1, 1.0}, {2, 1.1}, {4, 1.2}, {8, 2.5}, {16, 4}}), 8);
  EXPECT_EQ(find_knee(Curve{{1, 1.0}, {2, 1.1}, {4, 1.2}}), 0);
}

TEST(EduMachineTest, FingerprintsAreDigests) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Machine m{.cpu = "a", .os = "b", .cores = 2};
  const std::string before = m.fingerprint();
  EXPECT_EQ(before.size(), 12U);
  m.cores = 3;
  EXPECT_NE(m.fingerprint(), before);
}

TEST(EduExperimentTest, LinesAreFitted) {
  const Line line = fit_line({1, 2, 3, 4}, {5, 7, 9, 11});
  EXPECT_DOUBLE_EQ(line.a, 3);
  EXPECT_DOUBLE_EQ(line.b, 2);
  EXPECT_DOUBLE_EQ(line.r2, 1);
  EXPECT_LT(fit_line({1, 2, 3, 4}, {1, 9, 1, 9}).r2, 0.5);
}

TEST(EduCompareTest, RunsAllOfItInSeconds) {
  const std::string out = base::temp_path("lesson");
  std::string said;
  run_compare(
      {.out = out, .quick = true}, [&](const std::string& line) { said += line + "\n"; }, "a test");
  for (const ExperimentKind& kind : experiment_kinds()) {
    EXPECT_NE(said.find(kind.title), std::string::npos) << kind.id;
    EXPECT_TRUE(base::exists(out + "/" + kind.id + ".csv"));
  }
  const std::string page = base::read_file(out + "/lesson.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("http://"), std::string::npos);
  const LintResult lint = lint_registry(out + "/workloads.json", out + "/roofline");
  EXPECT_EQ(lint.exit_code(), 0) << (lint.findings.empty() ? "" : lint.findings[0]);
  EXPECT_EQ(lint.sidecars, 2);
  std::filesystem::remove_all(out);
}

TEST(EduCompareTest, AFolderThatCannotBeMadeIsKnownBeforeAnyWork) {
  std::string said;
  const Sink sink = [&](const std::string& line) { said += line; };
  const auto error = base::error_of(
      [&] { run_compare({.out = "/proc/x/lesson", .quick = true}, sink, "a test"); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("/proc/x/lesson"), std::string::npos);
  EXPECT_EQ(said, "");
}

/// On an idle machine: neighbours that use its memory bend every one of these.
TEST(SlowEduCompareTest, ExperimentsComeOutAsPredicted) {
  Lab lab({}, [](const std::string&) {});
  for (const char* id : {"E1", "E2", "E3", "E4"}) {
    const Experiment e = run_experiment(lab, id);
    EXPECT_EQ(e.verdict, Verdict::kPass) << e.text();
  }
}

TEST(EduCompareTest, UnknownNamesAreErrors) {
  const Sink nobody = [](const std::string&) {};
  EXPECT_THROW(run_compare({.experiments = {"E99"}, .quick = true}, nobody, ""), Error);
  EXPECT_THROW(run_micro_dlrm_dram({.variant = "large", .quick = true}, nobody), Error);
  EXPECT_THROW(run_micro_dlrm_distributed({.ranks = 3, .quick = true}, nobody), Error);
  EXPECT_THROW(run_micro_dlrm({.data = "/absent", .quick = true}, nobody), Error);
}

TEST(EduCompareTest, VariantsRun) {
  for (const char* variant : {"uniform", "faithful"}) {
    std::string said;
    run_micro_dlrm_dram({.variant = variant, .quick = true},
                        [&](const std::string& line) { said += line; });
    EXPECT_NE(said.find("distinct rows"), std::string::npos) << variant;
  }
}

}  // namespace
}  // namespace segue::edu
