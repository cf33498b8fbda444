#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/npy.h"
#include "base/safetensors.h"
#include "base/test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

/// One error line of the right kind on stderr, nothing on stdout.
void expect_error(const Outcome& o, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(o.code, code) << o.err;
  EXPECT_EQ(o.err.rfind("segue: error: ", 0), 0u) << o.err;
  EXPECT_EQ(o.out, "");
  for (const std::string& part : parts) EXPECT_TRUE(contains(o.err, part));
}

std::string write(const std::string& name, std::string_view text) {
  std::string path = base::temp_path(name);
  base::write_file(path, text);
  return path;
}

constexpr const char* kTiny = R"(
[model]
dim = 16
heads = 1
qk_dim = 8
v_dim = 8
layers = 1
hidden = 8
item_hidden = 8
head_hidden = 8
max_seq_len = 16
position_buckets = 16
time_buckets = 8
item = { history = "item", candidate = "next_item", table = "item" }
tasks = [{ name = "listen" }]
[sparse]
dim = 8
tables = [{ name = "item", rows = 50 }]
[data]
batch_size = 8
random = { lengths = { low = 1, high = 10 } }
[train]
steps = 3
log_every = 1
arena_gib = 0.25
[eval]
max_batches = 1
)";

// ---- usage ----

TEST(CliTest, HelpIsShortAndNamesTheCommands) {
  const Outcome o = run({"--help"});
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.err, "");
  for (const char* part : {"train", "bench", "config", "inspect", "version", "Exit codes"}) {
    EXPECT_TRUE(contains(o.out, part));
  }
  EXPECT_LE(std::count(o.out.begin(), o.out.end(), '\n'), 30);
}

TEST(CliTest, EveryCommandHasHelp) {
  for (const char* command : {"train", "bench", "config", "inspect", "version"}) {
    const Outcome o = run({command, "--help"});
    EXPECT_EQ(o.code, 0) << command;
    EXPECT_TRUE(contains(o.out, command));
    EXPECT_EQ(o.err, "");
  }
  EXPECT_TRUE(contains(run({"train", "--help"}).out, "--overwrite"));
  EXPECT_TRUE(contains(run({"bench", "--help"}).out, "one STU layer"));
}

TEST(CliTest, NoCommandShowsHelpAndFails) {
  const Outcome o = run({});
  EXPECT_EQ(o.code, kExitUsage);
  EXPECT_TRUE(contains(o.out, "train"));
  EXPECT_TRUE(contains(o.err, "segue: error: no command given"));
}

TEST(CliTest, UnknownCommandSuggestsTheNearest) {
  expect_error(run({"trian"}), kExitUsage, {"`trian`", "did you mean `train`?"});
  expect_error(run({"serve"}), kExitUsage, {"train, bench, config"});
}

TEST(CliTest, UnknownOptionsAreErrors) {
  expect_error(run({"train", "configs/random.toml", "--epochs", "3"}), kExitUsage,
               {"--epochs", "segue train --help"});
  expect_error(run({"--verbose"}), kExitUsage, {"--verbose"});
  expect_error(run({"train"}), kExitUsage, {"CONFIG", "--run"});
  expect_error(run({"inspect", "a.npy", "b.npy"}), kExitUsage, {"b.npy"});
  expect_error(run({"bench", "gemm", "--repeat", "many"}), kExitUsage, {"many"});
}

TEST(CliTest, VersionSaysWhatItWasBuiltWith) {
  const Outcome o = run({"version"});
  EXPECT_EQ(o.code, 0);
  for (const char* part : {"segue ", "compiler", "CUDA", "oneDNN", "gemm"}) {
    EXPECT_TRUE(contains(o.out, part));
  }
  EXPECT_TRUE(contains(run({"--version"}).out, "segue "));
}

TEST(CliTest, ExitCodesAreDistinct) {
  EXPECT_EQ(exit_code(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(exit_code(ErrorCode::kConfig), 2);
  EXPECT_EQ(exit_code(ErrorCode::kNotFound), 3);
  EXPECT_EQ(exit_code(ErrorCode::kIo), 3);
  EXPECT_EQ(exit_code(ErrorCode::kCorrupt), 4);
  EXPECT_EQ(exit_code(ErrorCode::kOutOfRange), 5);
  EXPECT_EQ(exit_code(ErrorCode::kOutOfMemory), 6);
  EXPECT_EQ(exit_code(ErrorCode::kUnsupported), 7);
  EXPECT_EQ(exit_code(ErrorCode::kNumeric), 8);
}

// ---- config ----

TEST(CliTest, ConfigPrintsTheResolvedFileWhichReadsBack) {
  const std::string path = write("tiny.toml", kTiny);
  const Outcome first =
      run({"config", path, "--set", "model.dropout=0.25", "--set", "train.seed=7"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "dropout = 0.25"));
  EXPECT_TRUE(contains(first.out, "seed = 7"));
  const Outcome second = run({"config", write("resolved.toml", first.out)});
  EXPECT_EQ(second.out, first.out);
}

TEST(CliTest, UnknownKeyNamesFileLineAndNearestKey) {
  const std::string path = write("bad.toml", "[model]\nlayrs = 3\n");
  expect_error(run({"config", path}), kExitUsage, {path, "2", "layrs", "layers"});
}

TEST(CliTest, WrongTypeSaysWhatIsExpected) {
  const std::string path = write("bad.toml", "[model]\nlayers = \"three\"\n");
  expect_error(run({"train", path}), kExitUsage, {"model.layers", "an integer", "three"});
}

TEST(CliTest, BrokenTomlIsAConfigError) {
  const std::string path = write("bad.toml", "[model\nlayers = 3\n");
  expect_error(run({"config", path}), kExitUsage, {path});
}

TEST(CliTest, MissingFileIsNotFound) {
  expect_error(run({"train", "no/such/file.toml"}), kExitFile, {"no/such/file.toml"});
  expect_error(run({"inspect", "no/such/file.npy"}), kExitFile, {"no/such/file.npy"});
}

TEST(CliTest, BadSetIsAConfigError) {
  const std::string path = write("tiny.toml", kTiny);
  expect_error(run({"config", path, "--set", "model.layrs=3"}), kExitUsage, {"model.layers"});
  expect_error(run({"config", path, "--set", "model.layers"}), kExitUsage, {"model.layers"});
  expect_error(run({"config", path, "--set", "model.layers=x"}), kExitUsage, {"an integer"});
  expect_error(run({"config", path, "--set", "sparse.tables.3.rows=5"}), kExitUsage,
               {"sparse.tables"});
}

TEST(CliTest, ImpossibleCombinationIsAConfigError) {
  const std::string path = write("tiny.toml", kTiny);
  expect_error(run({"train", path, "--set", "data.random.lengths.high=500"}), kExitUsage,
               {"model.max_seq_len"});
}

TEST(CliTest, BadDevices) {
  const std::string path = write("tiny.toml", kTiny);
  const std::string folder = base::temp_path("run");
  expect_error(run({"train", path, "--run", folder, "--device", "tpu"}), kExitUsage, {"`tpu`"});
  expect_error(run({"train", path, "--run", folder, "--device", "cuda:77"}), kExitUnsupported,
               {"--device cpu"});
  expect_error(run({"train", path, "--run", folder, "--threads", "-1"}), kExitUsage,
               {"train.threads"});
}

// ---- train ----

TEST(CliTest, TrainLeavesARunAndRefusesToChangeIt) {
  const std::string path = write("tiny.toml", kTiny);
  const std::string folder = base::temp_path("run");
  std::filesystem::remove_all(folder);
  const Outcome o = run({"train", path, "--run", folder, "--steps", "2", "--threads", "1"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.err, "done: 2 steps"));
  EXPECT_TRUE(contains(o.err, "held-out AUC"));
  EXPECT_TRUE(contains(base::read_file(folder + "/config.toml"), "steps = 2"));
  EXPECT_TRUE(contains(base::read_file(folder + "/metrics.jsonl"), "\"step\": 2"));
  expect_error(run({"train", path, "--run", folder}), kExitUsage,
               {"train.steps: was 2, now 3", "--allow-config-change", "--overwrite"});
  EXPECT_EQ(run({"train", "--run", folder}).code, 0);  // as the run itself says: nothing left
  EXPECT_EQ(run({"train", path, "--run", folder, "--overwrite"}).code, 0);
  std::filesystem::remove_all(folder);
}

TEST(CliTest, NumericTroubleHasItsOwnExitCode) {
  const std::string path = write("tiny.toml", kTiny);
  const std::string folder = base::temp_path("run");
  std::filesystem::remove_all(folder);
  const Outcome o = run({"train", path, "--run", folder, "--steps", "20", "--set",
                         "optimizer.lr=1e30", "--set", "optimizer.clip_norm=0"});
  EXPECT_EQ(o.code, kExitNumeric);
  EXPECT_TRUE(contains(o.err, "segue: error: step "));
  EXPECT_TRUE(contains(o.err, "is not finite"));
  std::filesystem::remove_all(folder);
}

TEST(CliTest, TooLargeForTheMachine) {
  expect_error(run({"train", "configs/yambda-5b.toml", "--run", base::temp_path("run"), "--set",
                    "sparse.tables.4.rows=1e12"}),
               kExitOutOfMemory, {"GiB", "sparse.tables"});
}

// ---- inspect ----

std::string write_npy_file(const std::string& name) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> shape = {2, 3};
  std::string path = base::temp_path(name);
  base::write_npy(path, "<f4", shape, std::as_bytes(std::span(values)));
  return path;
}

std::string write_safetensors_file(const std::string& name) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<base::SafetensorsItem> items = {{"layer.weight", "F32", {2, 3}, values.data()},
                                                    {"layer.bias", "F32", {3}, values.data()}};
  std::string path = base::temp_path(name);
  base::write_safetensors(path, items, {{"step", "12"}});
  return path;
}

TEST(CliTest, InspectListsArrays) {
  const Outcome npy = run({"inspect", write_npy_file("a.npy")});
  EXPECT_EQ(npy.code, 0) << npy.err;
  EXPECT_TRUE(contains(npy.out, "<f4"));
  EXPECT_TRUE(contains(npy.out, "[2, 3]"));
  const Outcome tensors = run({"inspect", write_safetensors_file("a.safetensors")});
  EXPECT_EQ(tensors.code, 0) << tensors.err;
  for (const char* part :
       {"layer.weight", "layer.bias", "F32", "[2, 3]", "2 arrays, 36 bytes", "metadata step: 12"}) {
    EXPECT_TRUE(contains(tensors.out, part));
  }
}

TEST(CliTest, TruncatedFilesAreCorrupt) {
  for (const std::string& path :
       {write_npy_file("a.npy"), write_safetensors_file("a.safetensors")}) {
    const std::string whole = base::read_file(path);
    for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{7}, size_t{0}}) {
      std::ofstream(path, std::ios::binary) << whole.substr(0, size);
      const Outcome o = run({"inspect", path});
      expect_error(o, kExitCorrupt, {path});
    }
  }
}

TEST(CliTest, HeaderThatLiesIsCorrupt) {
  const std::string path = write_safetensors_file("a.safetensors");
  std::string text = base::read_file(path);
  text.replace(text.find("[2,3]"), 5, "[9,3]");
  std::ofstream(path, std::ios::binary) << text;
  expect_error(run({"inspect", path}), kExitCorrupt, {path, "layer.weight"});

  const std::string npy = write_npy_file("a.npy");
  text = base::read_file(npy);
  text.replace(text.find("(2, 3)"), 6, "(9, 3)");
  std::ofstream(npy, std::ios::binary) << text;
  expect_error(run({"inspect", npy}), kExitCorrupt, {npy});
}

TEST(CliTest, InspectKnowsTwoKindsOfFile) {
  expect_error(run({"inspect", write("a.txt", "hello")}), kExitUsage, {".npy", ".safetensors"});
}

// ---- bench ----

TEST(CliTest, ReportWritesAPageIntoTheRunFolder) {
  const std::string folder = base::temp_path("run");
  base::make_folders(folder);
  base::put_file(folder + "/metrics.jsonl",
                 "{\"event\":\"train\",\"step\":1,\"loss\":0.5}\nbroken\n"
                 "{\"event\":\"train\",\"step\":2,\"loss\":0.4}\n");
  const Outcome one = run({"report", folder});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, folder + "/report.html\n");
  EXPECT_TRUE(contains(one.err, "metrics.jsonl:2: not a JSON object"));
  EXPECT_TRUE(contains(base::read_file(folder + "/report.html"), "<!doctype html>"));

  const std::string page = base::temp_path("both.html");
  const Outcome two = run({"report", folder, folder, "--out", page, "--title", "Two & two"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(contains(base::read_file(page), "<title>Two &amp; two</title>"));
}

TEST(CliTest, ReportErrors) {
  expect_error(run({"report", "/no/such/run"}), kExitFile, {"/no/such/run", "no such run folder"});
  const std::string folder = base::temp_path("run");
  base::make_folders(folder);
  expect_error(run({"report", folder}), kExitFile, {"no metrics.jsonl"});
  base::put_file(folder + "/metrics.jsonl", "");
  expect_error(run({"report", folder}), kExitCorrupt, {"no train or eval line"});
}

TEST(CliTest, TrainPrintsTheConfigThatItWouldTrain) {
  const Outcome o = run({"train", "configs/random.toml", "--print-config", "--device", "cuda",
                         "--steps", "7", "--seed", "3", "--set", "model.dropout=0.25"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, run({"config", "configs/random.toml", "--set", "train.device=cuda", "--set",
                        "train.steps=7", "--set", "train.seed=3", "--set", "model.dropout=0.25"})
                       .out);
  expect_error(run({"train", "configs/random.toml", "--print-config", "--set", "model.layrs=1"}),
               kExitUsage, {"model.layers"});
  expect_error(run({"train", "--print-config"}), kExitUsage, {"CONFIG"});
}

TEST(CliTest, BenchPrintsJson) {
  const Outcome o = run({"bench", "attention", "--json", "--repeat", "1", "--warm-up", "0",
                         "--sequences", "2", "--length", "8", "--threads", "1"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "{\"name\": \"attention backward\""));
  EXPECT_TRUE(contains(o.out, "\"threads\": 1"));
}

TEST(CliTest, BenchAttentionOverAGrid) {
  const Outcome o = run({"bench",
                         "attention",
                         "--device",
                         "cpu",
                         "--repeat",
                         "1",
                         "--warm-up",
                         "0",
                         "--heads",
                         "1",
                         "--length",
                         "8",
                         "--grid-sequences",
                         "1,2",
                         "--grid-lengths",
                         "8,16",
                         "--grid-head-dims",
                         "32",
                         "--grid-masks",
                         "causal,context2+window4"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "mask=context2+window4"));
}

TEST(CliTest, BenchSaysWhatIsWrong) {
  expect_error(run({"bench", "attention", "--grid-masks", "causal,oblique"}), kExitUsage,
               {"no mask `oblique`", "contextN"});
  expect_error(run({"bench", "index", "--load", "0.5,2"}), kExitUsage, {"(0, 1], not 2"});
  expect_error(run({"bench", "ops", "--device", "tpu"}), kExitUsage, {"tpu"});
  for (const char* option :
       {"--dim", "--heads", "--head-dim", "--sequences", "--length", "--layers", "--table-rows",
        "--slots", "--batch", "--repeat", "--warm-up"}) {
    for (const char* value : {"-1", "9223372036854775807"}) {
      const Outcome o = run({"bench", "gemm", std::string(option) + "=" + value});
      EXPECT_EQ(o.code, kExitUsage) << option << " " << value;
      EXPECT_TRUE(contains(o.err, option)) << o.err;
    }
  }
}

TEST(CliTest, UnknownBench) {
  expect_error(run({"bench", "gem"}), kExitUsage, {"did you mean `gemm`?"});
  expect_error(run({"bench"}), kExitUsage, {"there is: gemm, layer"});
}

TEST(CliTest, TablesOfTheDocsAreWhatTheirRowsGive) {
  const Outcome o = run({"bench", "report", "--check"});
  EXPECT_EQ(o.code, 0) << o.err;
}

TEST(CliTest, BenchReportRewritesTablesAndChecksThem) {
  const std::string folder = base::temp_path("docs"), page = folder + "/page.md";
  const std::vector<std::string> rewrite = {"bench", "report", page, "--rows", folder + "/rows"};
  std::vector<std::string> check = rewrite;
  check.emplace_back("--check");
  expect_error(run(rewrite), kExitFile, {page});
  base::make_folders(folder + "/rows");
  const Outcome rows = run({"bench", "attention", "--json", "--repeat", "1", "--warm-up", "0",
                            "--sequences", "2", "--length", "8", "--threads", "1"});
  base::put_file(folder + "/rows/small.jsonl", rows.out);
  base::put_file(page, "<!-- rows: small -->\n<!-- end -->\n");
  expect_error(run(check), kExitOther, {page + ": table `small`", "segue bench report"});
  EXPECT_EQ(base::read_file(page), "<!-- rows: small -->\n<!-- end -->\n");
  const Outcome first = run(rewrite);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, page + ": small\n");
  EXPECT_TRUE(contains(base::read_file(page), "| attention forward / backward |"));
  EXPECT_EQ(run(check).code, 0);
  EXPECT_EQ(run(rewrite).out, "");
  base::put_file(folder + "/rows/small.jsonl", "{}\n");
  expect_error(run(check), kExitCorrupt, {"small.jsonl:1"});
}

TEST(CliTest, BenchReportDrawsTheMap) {
  const std::string folder = base::temp_path("map"), rows = folder + "/rows/map.jsonl";
  base::make_folders(folder + "/rows");
  base::put_file(folder + "/page.md", "no table\n");
  const Outcome measured =
      run({"bench", "map", "--device", "cpu", "--sequences", "1,2", "--lengths", "8", "--head-dims",
           "8", "--cell-seconds", "0", "--out", rows});
  EXPECT_EQ(measured.code, 0) << measured.err;
  const std::vector<std::string> draw = {
      "bench",           "report", folder + "/page.md", "--rows", folder + "/rows",  "--picture",
      folder + "/m.svg", "--csv",  folder + "/m.csv",   "--html", folder + "/m.html"};
  std::vector<std::string> check(draw.begin(), draw.begin() + 7);
  check.emplace_back("--check");
  expect_error(run(check), kExitOther, {folder + "/m.svg"});
  const Outcome drawn = run(draw);
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  for (const char* name : {"/m.svg", "/m.csv", "/m.html"}) {
    EXPECT_TRUE(contains(drawn.out, folder + name));
  }
  EXPECT_EQ(run(check).code, 0);
  EXPECT_TRUE(contains(base::read_file(folder + "/m.csv"), "8,forward,2,8,"));
  EXPECT_TRUE(contains(base::read_file(folder + "/m.html"), "forward, heads of 8"));
}

}  // namespace
}  // namespace segue::cli
