// Where results go: paths without a folder, and folders that others write to.

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/parquet.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;

class OutputPath : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("folder");
    base::make_folders(folder_);
    base::write_file(folder_ + "/config.toml", kSmallConfig);
    expect_fine({"synth", "--out", "store", "--users", "60", "--days", "10", "--items", "1500",
                 "--events-per-user", "60", "--history", "40", "--min-history", "20"});
    expect_fine(
        {"train", "config.toml", "--run", "a", "--steps", "2", "--set", "data.store=store"});
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A process that works in the folder.
  Outcome run_here(const std::vector<std::string>& arguments) const {
    return Process(arguments, [this] { return ::chdir(folder_.c_str()) == 0; }).wait();
  }
  void expect_fine(const std::vector<std::string>& arguments) const {
    const Outcome o = run_here(arguments);
    EXPECT_EQ(o.code, kExitOk) << arguments[0] << ": " << o.err;
  }
  void expect_file(const std::vector<std::string>& arguments, const std::string& name) const {
    expect_fine(arguments);
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ + "/" + name))) << name;
  }

  std::string folder_;
};

TEST_F(OutputPath, NeedsNoFolder) {
  std::vector<std::string> scores = {"scores.csv", "scores.jsonl"};
  std::vector<std::string> formats = {"csv"};
  if (parquet() != nullptr) {
    scores.emplace_back("scores.parquet");
    formats.emplace_back("parquet");
  }
  for (const std::string& name : scores) expect_file({"score", "a", "--out", name}, name);
  for (const std::string& name : scores) {  // one is made
    fs::remove_all(folder_ + "/new");
    expect_file({"score", "a", "--out", "new/" + name}, "new/" + name);
  }
  expect_file({"checkpoint", "export", "a", "--out", "w.safetensors"}, "w.safetensors");
  expect_file({"report", "a", "--out", "page.html"}, "page.html");
  expect_file({"report", "a", "a"}, "report.html");
  for (const std::string& format : formats) {
    expect_fine({"synth", "--format", format, "--out", format, "--users", "20", "--items", "60"});
  }
}

/// In /tmp anybody may put links where they guess that a program will write.
TEST_F(OutputPath, FollowsNoLink) {
  const std::string victim = base::temp_path("victim");
  base::put_file(victim, "precious");
  std::vector<std::string> names = {"scores.csv", "w.safetensors", "page.html"};
  if (parquet() != nullptr) names.emplace_back("scores.parquet");
  for (const std::string& name : names) {
    fs::create_symlink(victim, folder_ + "/" + name);
    std::vector<std::string> arguments = {"score", "a"};
    if (name == "w.safetensors") arguments = {"checkpoint", "export", "a"};
    if (name == "page.html") arguments = {"report", "a"};
    arguments.insert(arguments.end(), {"--out", name});
    // The process knows its number before anybody else does, and plants links for it and others.
    const Outcome o = Process(arguments, [&] {
                        for (pid_t pid = ::getpid(); pid < ::getpid() + 20; ++pid) {
                          const std::string planted =
                              folder_ + "/" + name + ".tmp-" + std::to_string(pid);
                          if (::symlink(victim.c_str(), planted.c_str()) != 0) return false;
                        }
                        return ::chdir(folder_.c_str()) == 0;
                      }).wait();
    EXPECT_EQ(o.code, kExitOk) << o.err;
    EXPECT_EQ(base::read_file(victim), "precious") << name;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ + "/" + name))) << name;
  }
}

}  // namespace
}  // namespace segue::cli
