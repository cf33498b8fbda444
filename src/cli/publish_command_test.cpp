// `segue publish` as users and as a killed process meet it.

#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/disk_test_util.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/parquet.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"
#include "publish/chain.h"
#include "publish/publish.h"
#include "publish/publish_test_util.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

class PublishCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("folder");
    fs::remove_all(folder_);
    base::make_folders(folder_);
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }
  std::string to() const { return folder_ + "/serve"; }
  std::string checkpoint(int64_t step) const {
    return train::checkpoint_path(folder_ + "/checkpoints", step);
  }
  std::vector<std::string> arguments(int64_t step) const {
    return {"publish", checkpoint(step), "--to", to()};
  }
  /// Steps 1 ... `steps`, of tables with so many rows.
  void save(int64_t steps, int64_t rows) const {
    publish::TestModel model(1, rows);
    for (int64_t step = 1; step <= steps; ++step) {
      model.save(folder_ + "/checkpoints", step);
      model.train();
    }
  }
  std::vector<std::string> problems() const {
    return publish::verify(to(), parquet_vectors()).problems;
  }
  /// Kills publishers of step 2 at random moments; version 1 stays what it was.
  void survive(int kills, uint32_t seed);

  std::string folder_;
};

TEST_F(PublishCommand, TellsWhatItDid) {
  save(3, 40);
  // The folder of checkpoints stands for the newest of them.
  const Outcome first = run({"publish", folder_ + "/checkpoints", "--to", to(), "--dtype", "bf16"});
  EXPECT_EQ(first.code, kExitOk) << first.err;
  EXPECT_TRUE(contains(first.out, "version-000001: base, step 3, "));
  EXPECT_TRUE(contains(first.out, " bytes, 100.00% of a base, lag "));
  EXPECT_TRUE(contains(first.out, "  all: 40 rows, 40 new or changed, 0 removed\n"));
  const Outcome second = run(arguments(2));
  EXPECT_TRUE(contains(second.out, "version-000002: increment on base 1, step 2, "));
  EXPECT_TRUE(contains(second.out, "5 removed\n"));
  const Outcome again = run(arguments(2));
  EXPECT_EQ(again.code, kExitOk);
  EXPECT_TRUE(contains(again.out, "version-000002: has step 2 already, nothing was changed"));
  const Outcome verified = run({"publish", "verify", to()});
  EXPECT_EQ(verified.code, kExitOk) << verified.err;
  EXPECT_TRUE(contains(verified.out, ": ok, 2 versions, "));
  const Outcome applied = run({"publish", "apply", to(), "--to", folder_ + "/a", "--version", "1"});
  EXPECT_EQ(applied.code, kExitOk) << applied.err;
  EXPECT_TRUE(contains(applied.out, "version-000001: base, step 3, "));

  base::put_file(to() + "/version-000001/all.safetensors", "");
  fs::remove(to() + "/version-000002/dense.safetensors");
  const Outcome damaged = run({"publish", "verify", to()});
  EXPECT_EQ(damaged.code, kExitCorrupt);
  EXPECT_TRUE(contains(damaged.err, "all.safetensors has 0 bytes instead of"));
  EXPECT_TRUE(contains(damaged.err, "dense.safetensors is missing"));
}

TEST_F(PublishCommand, SaysWhatIsMissing) {
  save(1, 10);
  EXPECT_EQ(run({"publish"}).code, kExitUsage);
  EXPECT_TRUE(contains(run({"publish", checkpoint(1)}).err, "--to FOLDER"));
  EXPECT_EQ(run({"publish", folder_ + "/no", "--to", to()}).code, kExitFile);
  EXPECT_EQ(run({"publish", "verify", folder_ + "/no"}).code, kExitFile);
  EXPECT_EQ(run({"publish", "apply", folder_ + "/no", "--to", to()}).code, kExitFile);
  for (const auto& [option, value] : {std::pair("--dtype", "f16"), std::pair("--format", "csv")}) {
    std::vector<std::string> a = arguments(1);
    a.insert(a.end(), {option, value});
    const Outcome o = run(a);
    EXPECT_EQ(o.code, kExitUsage);
    EXPECT_TRUE(contains(o.err, "there is: "));
  }
  EXPECT_FALSE(base::exists(to()));
}

TEST_F(PublishCommand, WithoutArrowSaysSo) {
  save(1, 10);
  std::vector<std::string> a = arguments(1);
  a.insert(a.end(), {"--format", "parquet"});
  const Outcome o = run(a);
  if (parquet_vectors() != nullptr) {
    EXPECT_EQ(o.code, kExitOk) << o.err;
    // A build without Arrow meets a folder of one that has it.
    publish::PublishConfig config;
    config.folder = to();
    const train::Checkpoint open(checkpoint(1));
    EXPECT_TRUE(
        contains(base::message_of(ErrorCode::kUnsupported, [&] { publish::publish(config, open); }),
                 "built without Parquet support"));
    EXPECT_TRUE(
        contains(base::message_of(ErrorCode::kUnsupported, [&] { publish::verify(to(), nullptr); }),
                 "built without Parquet support"));
    return;
  }
  EXPECT_EQ(o.code, kExitUnsupported);
  EXPECT_TRUE(contains(o.err, "built without Parquet support"));
}

/// Of a real run: tables that were trained, a state, dense weights.
TEST_F(PublishCommand, PublishesARun) {
  base::write_file(folder_ + "/config.toml", kSmallConfig);
  std::vector<std::string> train = {"train", folder_ + "/config.toml", "--run", folder_ + "/run"};
  const std::vector<std::string> sets = {"data.random.lengths.high=20", "eval.every_windows=0",
                                         "eval.every_steps=100", "checkpoint.every_steps=4"};
  for (const std::string& set : sets) train.insert(train.end(), {"--set", set});
  train.insert(train.end(), {"--allow-config-change", "train.steps", "--steps", "4"});
  const Outcome trained = run(train);
  ASSERT_EQ(trained.code, kExitOk) << trained.err;
  const std::vector<std::string> command = {"publish", folder_ + "/run", "--to", to()};
  const Outcome first = run(command);
  EXPECT_EQ(first.code, kExitOk) << first.err;
  EXPECT_TRUE(contains(first.out, "version-000001: base, step 4, "));
  train.back() = "8";
  const Outcome longer = run(train);
  ASSERT_EQ(longer.code, kExitOk) << longer.err;
  const Outcome second = run(command);
  EXPECT_TRUE(contains(second.out, "version-000002: increment on base 1, step 8, "));
  EXPECT_TRUE(problems().empty());
  EXPECT_EQ(run({"publish", "apply", to(), "--to", folder_ + "/applied"}).code, kExitOk);
  EXPECT_EQ(run({"publish", folder_ + "/run", "--to", folder_ + "/full"}).code, kExitOk);
  EXPECT_EQ(publish::tree_of(folder_ + "/applied"), publish::tree_of(folder_ + "/full"));
}

void PublishCommand::survive(int kills, uint32_t seed) {
  std::mt19937 random(seed);
  save(2, 30000);
  ASSERT_EQ(run_process(arguments(1)).code, kExitOk);
  const auto before = publish::tree_of(to());
  const base::Stopwatch watch;
  ASSERT_EQ(run_process(arguments(2)).code, kExitOk);
  const double seconds = watch.seconds();
  const auto after = publish::tree_of(to());
  const auto back = [&] {
    fs::remove_all(to() + "/version-000002");
    fs::remove(to() + "/current");
    fs::create_symlink("version-000001", to() + "/current");
  };
  int killed = 0;
  for (int i = 0; i < kills; ++i) {
    back();
    Process process(arguments(2));
    std::this_thread::sleep_for(
        std::chrono::duration<double>(seconds * std::uniform_real_distribution<>(0, 1.1)(random)));
    process.kill();
    if (process.wait().signal == SIGKILL) ++killed;
    const std::string current = fs::read_symlink(to() + "/current").string();
    EXPECT_TRUE(base::exists(to() + "/" + current + "/manifest.json")) << current;
    auto left = publish::tree_of(to());
    std::erase_if(left, [](const auto& file) { return file.first.starts_with(".tmp-"); });
    left["current"] = "version-000001";
    if (left.contains("version-000002/manifest.json")) left["current"] = "version-000002";
    EXPECT_TRUE(left == before || left == after) << "kill " << i << ", seed " << seed;
    const Outcome o = run_process(arguments(2));
    EXPECT_EQ(o.code, kExitOk) << o.err;
    EXPECT_TRUE(publish::tree_of(to()) == after) << "kill " << i << ", seed " << seed;
  }
  EXPECT_GT(killed, 0);
  EXPECT_TRUE(problems().empty());
}

TEST_F(PublishCommand, SurvivesKills) { survive(5, 3); }

using SlowPublishCommand = PublishCommand;
TEST_F(SlowPublishCommand, SurvivesKills) { survive(60, 5); }

TEST_F(PublishCommand, RefusesASecondPublisher) {
  save(2, 30000);
  Process first(arguments(1));
  const base::Stopwatch watch;
  while (!base::exists(to() + "/.tmp-version-000001") && watch.seconds() < 20) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  first.kill(SIGSTOP);
  ASSERT_TRUE(base::exists(to() + "/.tmp-version-000001")) << "it was too quick";
  const Outcome second = run_process(arguments(2));
  EXPECT_EQ(second.code, kExitUsage);
  EXPECT_TRUE(contains(second.err, "another process is publishing into"));
  first.kill(SIGCONT);
  EXPECT_EQ(first.wait().code, kExitOk);
  EXPECT_TRUE(problems().empty());
}

TEST_F(PublishCommand, LosesNothingOnAFullDisk) {
  save(2, 4000);
  base::make_folders(to());
  // From where not even the lock fits to where an increment does not, nor all of a base.
  for (const char* size : {"4k", "64k", "100k"}) {
    const int code = base::on_small_disk(to(), size, [&]() -> int {
      const Outcome o = run_process(arguments(1));
      if (o.code != kExitFile || !contains(o.err, "No space left on device")) return 1;
      if (!publish::list_versions(to()).empty()) return 2;
      if (!base::resize_disk(to(), "16m")) return 3;
      if (run_process(arguments(1)).code != kExitOk) return 4;
      const auto before = publish::tree_of(to());
      const int64_t used = 16384 - base::disk_space(to())->available / 1024;
      if (!base::resize_disk(to(), fmt::format("{}k", used + 4))) return 5;
      if (run_process(arguments(2)).code != kExitFile) return 6;
      if (publish::tree_of(to()) != before) return 7;
      if (!base::resize_disk(to(), "16m")) return 8;
      if (run_process(arguments(2)).code != kExitOk) return 9;
      return problems().empty() ? 0 : 10;
    });
    if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
    EXPECT_EQ(code, 0) << size;
  }
}

}  // namespace
}  // namespace segue::cli
