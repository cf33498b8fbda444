// What version 0.1.0 wrote (tests/frozen): every later version opens it and resumes it.

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;

/// The numbers of one key, line by line; lines without it are left out.
std::vector<double> numbers(const std::string& run, const std::string& key) {
  std::istringstream text(base::read_file(run + "/metrics.jsonl"));
  std::vector<double> all;
  for (std::string line; std::getline(text, line);) {
    const std::string name = "\"" + key + "\": ";
    const size_t at = line.find(name);
    if (at != std::string::npos)
      all.push_back(std::strtod(line.c_str() + at + name.size(), nullptr));
  }
  return all;
}

class FrozenTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("frozen");
    fs::create_directories(folder_);
    const std::string unpack = "tar -xzf tests/frozen/0.1.0.tar.gz -C " + folder_;
    ASSERT_EQ(std::system(unpack.c_str()), 0) << unpack;
    folder_ += "/0.1.0";
  }
  void TearDown() override { fs::remove_all(fs::path(folder_).parent_path()); }

  /// Saved at step 10 of 20; metrics.jsonl has all of them, and what comes after step 10 is written
  /// again. Other processors round sums differently.
  void expect_resumes(const std::string& run, const std::vector<std::string>& more) const {
    const std::vector<double> losses = numbers(run, "loss"), aucs = numbers(run, "auc");
    ASSERT_EQ(losses.size(), 24U);
    std::vector<std::string> arguments{"train",
                                       "--run",
                                       run,
                                       "--set",
                                       "data.store=" + folder_ + "/store",
                                       "--allow-config-change",
                                       "data.store"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome o = run_process(arguments);
    ASSERT_EQ(o.code, kExitOk) << o.err;
    EXPECT_TRUE(base::contains(o.err, "step-10")) << o.err;
    const std::vector<double> again = numbers(run, "loss"), auc_again = numbers(run, "auc");
    ASSERT_EQ(again.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(again[i], losses[i], 1e-5 * losses[i]);
    ASSERT_EQ(auc_again.size(), aucs.size());
    for (size_t i = 0; i < aucs.size(); ++i) EXPECT_NEAR(auc_again[i], aucs[i], 1e-3);
  }

  std::string folder_;
};

TEST_F(FrozenTest, StoreIsVerifiedAndInspected) {
  const Outcome o = run({"inspect", folder_ + "/store", "--verify", "--baselines"});
  EXPECT_EQ(o.code, kExitOk) << o.out << o.err;
}

TEST_F(FrozenTest, CheckpointsAreVerifiedAndExported) {
  for (const std::string name : {"/run-1", "/run-2"}) {
    const Outcome verified = run({"checkpoint", "verify", folder_ + name});
    EXPECT_EQ(verified.code, kExitOk) << verified.err;
    const Outcome exported =
        run({"checkpoint", "export", folder_ + name, "--out", folder_ + "/weights.safetensors"});
    EXPECT_EQ(exported.code, kExitOk) << exported.err;
  }
}

TEST_F(FrozenTest, RunOfOneRankResumes) { expect_resumes(folder_ + "/run-1", {}); }

/// Its checkpoints do not say which ids their rows stand for; those of a run that went on do.
TEST_F(FrozenTest, WhatWasNotRecordedIsSaidOnce) {
  const std::string run_folder = folder_ + "/run-1", store = "data.store=" + folder_ + "/store";
  const auto warnings = [](const std::string& text) {
    const std::string words = "did not record which ids";
    int64_t count = 0;
    for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
    return count;
  };
  Outcome o = run({"eval", run_folder, "--set", store});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(warnings(o.err), 1) << o.err;
  o = run_process(
      {"train", "--run", run_folder, "--set", store, "--allow-config-change", "data.store"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(warnings(o.err), 1) << o.err;
  o = run({"eval", run_folder, "--set", store});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(warnings(o.err), 0) << o.err;
}

TEST_F(FrozenTest, RunOfTwoRanksResumesOnTwoAndOnOne) {
  fs::copy(folder_ + "/run-2", folder_ + "/copy", fs::copy_options::recursive);
  expect_resumes(folder_ + "/run-2", {"--ranks", "2"});
  expect_resumes(folder_ + "/copy", {});
}

}  // namespace
}  // namespace segue::cli
