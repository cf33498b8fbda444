#include "train/run/run_folder.h"

#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

class RunFolderTest : public LoopTest {};

TEST_F(RunFolderTest, AFolderWithoutAnyCheckpointBeginsAgain) {
  const RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::vector<std::string> before = lasting(metrics());
  std::filesystem::remove_all(folder + "/checkpoints");
  train_loop(c, folder);
  EXPECT_EQ(lasting(metrics()), before);
}

TEST_F(RunFolderTest, WhatIsNotOfARunIsLeftAlone) {
  const std::string foreign[] = {folder + "/checkpoints/theirs/model.pt",
                                 folder + "/trace/mine.json", folder + "/tracebacks.txt",
                                 folder + "/mlperf.log.old"};
  for (const std::string& path : foreign) {
    base::make_folders(std::filesystem::path(path).parent_path().string());
    base::write_file(path, "keep");
  }
  LoopOptions over;
  over.overwrite = true;
  train_loop(tiny_config(), folder);
  train_loop(tiny_config(), folder, over);
  for (const std::string& path : foreign) EXPECT_TRUE(base::exists(path)) << path;
}

TEST_F(RunFolderTest, AFolderWithCheckpointsButNoConfigIsNotReplacedUnasked) {
  train_loop(tiny_config(), folder);
  std::filesystem::remove(folder + "/config.toml");
  const auto error = base::error_of([&] { train_loop(tiny_config(), folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(base::contains(error->what(), "--overwrite"));
  EXPECT_FALSE(metrics().empty());
}

TEST_F(RunFolderTest, HalfALineOfMetricsIsCutOff) {
  const RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::string path = folder + "/metrics.jsonl";
  const std::string whole = base::read_file(path);
  const size_t first_line = whole.find('\n') + 1;
  base::write_file(path, whole.substr(0, first_line + 10));
  RunFolder again(folder);
  base::set_log_level(base::LogLevel::kError);
  again.resume("", static_cast<int64_t>(whole.size()));
  base::set_log_level(base::LogLevel::kInfo);
  EXPECT_EQ(base::read_file(path), whole.substr(0, first_line));
  EXPECT_EQ(again.metrics_bytes(), static_cast<int64_t>(first_line));
}

TEST_F(RunFolderTest, MetricsAreCutWhereALineEnds) {
  base::make_folders(folder);
  const std::string path = folder + "/metrics.jsonl", lines = "{\"a\": 1}\n{\"a\": 2}\n";
  base::set_log_level(base::LogLevel::kError);
  for (const auto& [bytes, kept] : std::vector<std::pair<int64_t, size_t>>{
           {0, 0}, {5, 0}, {9, 9}, {10, 9}, {18, 18}, {19, 18}, {int64_t{1} << 60, 18}}) {
    base::put_file(path, lines);
    RunFolder run(folder);
    run.resume("", bytes);
    EXPECT_EQ(base::read_file(path), lines.substr(0, kept)) << bytes;
    EXPECT_EQ(run.metrics_bytes(), static_cast<int64_t>(kept));
  }
}

TEST_F(RunFolderTest, WhatAKilledProcessHalfWroteIsClearedAway) {
  RunConfig c = tiny_config();
  const std::string half = folder + "/config.toml.tmp-12345";
  for (int i = 0; i < 2; ++i) {  // a new run, then a resumed one
    std::filesystem::create_directories(folder);
    base::write_file(half, "[model]");
    train_loop(c, folder);
    EXPECT_FALSE(base::exists(half));
  }
}

TEST_F(RunFolderTest, OneProcessAtATime) {
  const RunFolder holder(folder);
  const auto error = base::error_of([&] { train_loop(tiny_config(), folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(base::contains(error->what(), "another process"));
}

TEST_F(RunFolderTest, AFailedStartTouchesNothing) {
  RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::vector<std::string> before = metrics();
  c.train.device = "cuda:99";
  LoopOptions over;
  over.overwrite = true;
  EXPECT_THROW(train_loop(c, folder, over), Error);
  EXPECT_EQ(metrics(), before);
}

TEST_F(RunFolderTest, UnwritableFolderIsAnError) {
  base::write_file(folder, "a file, not a folder");
  const auto error = base::error_of([&] { train_loop(tiny_config(), folder + "/run"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
}

// ---- links in the folder ----

TEST_F(RunFolderTest, CheckpointsGoWhereALinkPoints) {
  const std::string elsewhere = folder + "_elsewhere", link = folder + "/checkpoints";
  std::filesystem::remove_all(elsewhere);
  base::make_folders(folder);
  base::make_folders(elsewhere + "/theirs");
  std::filesystem::create_directory_symlink(elsewhere, link);
  RunConfig c = tiny_config();
  c.checkpoint.every_steps = 2;
  train_loop(c, folder);
  const std::string newest = elsewhere + "/step-6/dense.safetensors";
  const auto expect_linked = [&](const char* when) {
    EXPECT_TRUE(std::filesystem::is_symlink(link)) << when;
    EXPECT_TRUE(base::exists(newest)) << when;
    EXPECT_TRUE(base::exists(elsewhere + "/theirs")) << when;
  };
  expect_linked("a new run");
  const std::string dense = base::read_file(newest);

  // The same step again, in exchange for a damaged one.
  base::put_file(newest, "damaged");
  base::set_log_level(base::LogLevel::kError);
  EXPECT_TRUE(train_loop(c, folder).resumed);
  expect_linked("resumed");
  EXPECT_EQ(base::read_file(newest), dense);

  c.train.steps = 10;
  LoopOptions longer;
  longer.allow_config_changes = {"train.steps"};
  train_loop(c, folder, longer);
  EXPECT_TRUE(base::exists(elsewhere + "/step-10"));
  EXPECT_FALSE(base::exists(newest)) << "older ones go";

  c.train.steps = 6;
  LoopOptions over;
  over.overwrite = true;
  EXPECT_FALSE(train_loop(c, folder, over).resumed);
  expect_linked("overwritten");
  EXPECT_FALSE(base::exists(elsewhere + "/step-10"));
  std::filesystem::remove_all(elsewhere);
}

TEST_F(RunFolderTest, ALinkToNowhereIsNamedBeforeAnythingIsTouched) {
  for (const char* name : {"checkpoints", "trace"}) {
    std::filesystem::remove_all(folder);
    base::make_folders(folder);
    base::put_file(folder + "/metrics.jsonl", "");
    const std::string link = folder + "/" + name, target = folder + "/not-mounted";
    std::filesystem::create_directory_symlink(target, link);
    LoopOptions over;
    over.overwrite = true;
    const std::string message = base::message_of(ErrorCode::kInvalidArgument,
                                                 [&] { train_loop(tiny_config(), folder, over); });
    EXPECT_TRUE(base::contains(message, link)) << name;
    EXPECT_TRUE(base::contains(message, target)) << name;
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_TRUE(base::exists(folder + "/metrics.jsonl"));
    EXPECT_FALSE(base::exists(folder + "/config.toml"));
  }
}

TEST_F(RunFolderTest, ANewRunWritesThroughNoLink) {
  const std::string victim = base::temp_path("victim");
  base::make_folders(folder);
  base::put_file(victim, "precious");
  for (const char* name : {"metrics.jsonl", "config.toml"}) {
    std::filesystem::create_symlink(victim, folder + "/" + name);
  }
  LoopOptions over;
  over.overwrite = true;
  train_loop(tiny_config(), folder, over);
  EXPECT_EQ(base::read_file(victim), "precious");
  std::filesystem::remove(folder + "/.lock");
  std::filesystem::create_symlink(victim, folder + "/.lock");
  EXPECT_EQ(base::error_of([&] { train_loop(tiny_config(), folder); })->code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace segue::train
