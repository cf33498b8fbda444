#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/test_util.h"
#include "cli/app.h"
#include "cli/test_util.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_writer.h"

namespace segue::cli {
namespace {

using base::contains;
using base::temp_path;

Outcome run_checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  return run(std::move(arguments));
}

/// A run with checkpoints of steps 10 and 20.
std::string make_run() {
  std::string path = temp_path("run");
  std::vector<float> w = {1, 2, 3, 4, 5, 6}, table(200);
  const std::vector<train::CheckpointArray> arrays = {
      {"dense", "param/head.weight", Tensor(w.data(), DType::kF32, Device::cpu(), {2, 3})},
      {"dense", "adam_m/head.weight", Tensor(w.data(), DType::kF32, Device::cpu(), {2, 3})},
      {"tables", "weight/item", Tensor(table.data(), DType::kF32, Device::cpu(), {50, 4})}};
  train::CheckpointWriter writer(path + "/checkpoints", {}, 300);
  for (const int64_t step : {10, 20}) writer.save(step, arrays, R"({"samples":640})");
  writer.wait().throw_if_failed();
  return path;
}

void spoil(const std::string& path) {
  std::string content = base::read_file(path);
  content[content.size() / 2] ^= 1;
  base::put_file(path, content);
}

TEST(CliCheckpointTest, LsShowsAllAndMarksDamagedManifests) {
  const std::string path = make_run();
  for (const std::string& p : {path, path + "/checkpoints"}) {
    const Outcome o = run_checkpoint({"ls", p});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(contains(o.out, "step         10"));
    EXPECT_TRUE(contains(o.out, "step-20\n"));
  }
  const Outcome json = run_checkpoint({"ls", path + "/checkpoints/step-20", "--json"});
  EXPECT_TRUE(contains(json.out, R"("step": 20)"));
  EXPECT_TRUE(contains(json.out, R"("saved": "20)"));
  spoil(path + "/checkpoints/step-20/manifest.json");
  const Outcome damaged = run_checkpoint({"ls", path});
  EXPECT_EQ(damaged.code, 0);
  EXPECT_TRUE(contains(damaged.out, "damaged: "));
  EXPECT_TRUE(contains(run_checkpoint({"ls", path, "--json"}).out, R"("error": ")"));
}

TEST(CliCheckpointTest, VerifyNamesTheDamagedFileAndExitsWith4) {
  const std::string path = make_run();
  const Outcome good = run_checkpoint({"verify", path});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_TRUE(contains(good.out, "step-10: ok, 3 arrays"));
  spoil(path + "/checkpoints/step-10/tables-00001.safetensors");
  const Outcome bad = run_checkpoint({"verify", path});
  EXPECT_EQ(bad.code, kExitCorrupt);
  EXPECT_TRUE(contains(bad.err, "tables-00001.safetensors was changed"));
  EXPECT_TRUE(contains(bad.out, "step-20: ok"));
  EXPECT_EQ(run_checkpoint({"verify", path + "/checkpoints/step-20"}).code, 0);
  EXPECT_EQ(run_checkpoint({"verify", path + "/checkpoints/step-10/"}).code, kExitCorrupt);
}

TEST(CliCheckpointTest, ExportWritesWeightsUnderTheReferencesNames) {
  const std::string path = make_run();
  const std::string out = temp_path("w.safetensors");
  EXPECT_EQ(run_checkpoint({"export", path + "/checkpoints/step-10", "--out", out}).code, 0);
  EXPECT_EQ(base::SafetensorsFile(out).tensors().size(), 1u);
  const Outcome o = run_checkpoint({"export", path, "--out", out, "--tables"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "2 tensors of step 20"));
  const base::SafetensorsFile file(out);
  EXPECT_EQ(file.get("head.weight").to_doubles(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file.get("_embedding_collection.embeddings.item.weight").shape,
            (std::vector<int64_t>{50, 4}));
  spoil(path + "/checkpoints/step-20/dense.safetensors");
  EXPECT_EQ(run_checkpoint({"export", path, "--out", out}).code, kExitCorrupt);
}

TEST(CliCheckpointTest, ACheckpointOfSeveralRanksIsOneCheckpoint) {
  const std::string path = temp_path("run"), out = temp_path("w.safetensors");
  constexpr int kRanks = 3;
  std::vector<float> w = {1, 2}, table(10 * 4);
  std::vector<std::unique_ptr<train::CheckpointWriter>> writers;
  for (int rank = 0; rank < kRanks; ++rank) {
    const train::ArrayPart part{{10, 4}, {10, kRanks}, rank, {{0, 4}}};
    for (int64_t slot = 0; slot < part.rows(); ++slot) {
      for (int64_t c = 0; c < 4; ++c) {
        table[static_cast<size_t>(slot * 4 + c)] =
            static_cast<float>(part.partition.row_of(rank, slot) * 4 + c);
      }
    }
    std::vector<train::CheckpointArray> arrays = {
        {"dense", "param/w", Tensor(w.data(), DType::kF32, Device::cpu(), {2})},
        {"tables", "weight/item",
         Tensor(table.data(), DType::kF32, Device::cpu(), {part.rows(), 4})}};
    arrays[1].part = part;
    writers.push_back(std::make_unique<train::CheckpointWriter>(
        path + "/checkpoints", train::CheckpointConfig{}, train::kShardBytes,
        train::WriterRanks{rank, kRanks, 20}));
    writers.back()->save(10, arrays, "{}");
  }
  writers[0]->wait().throw_if_failed();

  EXPECT_TRUE(contains(run_checkpoint({"ls", path}).out, "4 files of 3 ranks"));
  EXPECT_TRUE(contains(run_checkpoint({"ls", path, "--json"}).out, R"("ranks": 3)"));
  EXPECT_TRUE(contains(run_checkpoint({"verify", path}).out, "step-10: ok, 2 arrays"));
  EXPECT_EQ(run_checkpoint({"export", path, "--out", out, "--tables"}).code, 0);
  const std::vector<double> rows =
      base::SafetensorsFile(out).get("_embedding_collection.embeddings.item.weight").to_doubles();
  ASSERT_EQ(rows.size(), 40u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<double>(i));
  spoil(path + "/checkpoints/step-10/tables-rank0002.safetensors");
  const Outcome bad = run_checkpoint({"verify", path});
  EXPECT_EQ(bad.code, kExitCorrupt);
  EXPECT_TRUE(contains(bad.err, "tables-rank0002.safetensors was changed"));
}

TEST(CliCheckpointTest, WrongPathsAndUsage) {
  EXPECT_EQ(run_checkpoint({"ls", temp_path("nowhere")}).code, kExitFile);
  base::make_folders(temp_path("empty"));
  const Outcome o = run_checkpoint({"verify", temp_path("empty")});
  EXPECT_EQ(o.code, kExitFile);
  EXPECT_TRUE(contains(o.err, "no checkpoints"));
  EXPECT_EQ(run_checkpoint({}).code, kExitUsage);
  EXPECT_EQ(run_checkpoint({"export", temp_path("empty")}).code, kExitUsage);
}

}  // namespace
}  // namespace segue::cli
