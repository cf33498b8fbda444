// The golden runner as a library: over the project's vectors, and over files that are wrong.

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/test_util.h"
#include "runner/case_file.h"
#include "runner/result.h"
#include "runner/runner.h"

namespace segue::golden {
namespace {

namespace fs = std::filesystem;
using base::contains;

/// Tests run in the root of the sources.
std::string golden_folder() { return "tests/golden"; }

std::string explain(const Report& report) {
  std::ostringstream text;
  for (const CaseResult& c : report.cases) {
    if (!c.passed()) print_case(text, c, /*verbose=*/true);
  }
  for (const std::string& message : report.broken) text << message << "\n";
  return text.str();
}

void expect_all_pass(Precision precision) {
  Options options;
  options.folder = golden_folder();
  options.precision = precision;
  const Report report = run_folder(options);
  EXPECT_EQ(report.failed(), 0) << explain(report);
  EXPECT_EQ(report.exit_code(), 0) << explain(report);
  EXPECT_GE(report.cases.size(), 45U + 3 * 6U);
}

TEST(Golden, AllCasesPassInFloat) { expect_all_pass(Precision::kF32); }
TEST(Golden, AllCasesPassInDouble) { expect_all_pass(Precision::kF64); }
TEST(Golden, TheWorstOfSeveralRunsHasTheLargestErrors) {
  const auto run = [](double first, double second, const char* group) {
    CaseResult r;
    r.groups = {{"out", {{"a", first, 1, true}, {"b", second, 1, true}}}, {group, {{"c", 3, 1}}}};
    return r;
  };
  const CaseResult runs[] = {run(0.1, 0.5, "dx"), run(0.4, 0.2, "dx"), run(0.3, 0.3, "dw")};
  const CaseResult worst = worst_of(runs);
  ASSERT_EQ(worst.groups.size(), 3u);
  EXPECT_EQ(worst.groups[0].tensors[0].error, 0.4);
  EXPECT_EQ(worst.groups[0].tensors[1].error, 0.5);
  EXPECT_EQ(worst.groups[1].name, "dx");
  EXPECT_EQ(worst.groups[2].name, "dw");
}
TEST(Golden, WhatIsNotFiniteInAnyRunIsTheWorst) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto run = [](double error) {
    CaseResult r;
    r.groups = {{"out", {{"a", error, 1, error <= 1}}}};
    return r;
  };
  for (const double bad : {nan, infinity}) {
    for (size_t place = 0; place < 3; ++place) {
      std::array<CaseResult, 3> runs{run(0.1), run(0.2), run(0.3)};
      runs[place] = run(bad);
      const TensorResult worst = worst_of(runs).groups[0].tensors[0];
      EXPECT_EQ(std::isnan(worst.error), std::isnan(bad)) << bad << " in run " << place;
      EXPECT_FALSE(std::isfinite(worst.error)) << bad << " in run " << place;
      EXPECT_FALSE(worst.passed) << bad << " in run " << place;
    }
  }
}
TEST(Golden, AllCasesAreFiniteInBf16) { expect_all_pass(Precision::kBf16); }

/// A file of small metric cases that can be damaged at will before it is written.
class GoldenFiles : public testing::Test {
 protected:
  GoldenFiles() : folder(base::temp_path("golden")) { base::make_folders(folder); }
  ~GoldenFiles() override { fs::remove_all(folder); }

  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<double> values;
    std::string dtype = "F64";  // "I64" of zeros has the same bits
  };
  using Tensors = std::map<std::string, Tensor>;

  /// Two samples, one update: the area is 1, the sums are easy.
  static Tensors metric_tensors(const std::string& name) {
    const double entropy = -2 * std::log2(0.75);
    return {{name + "/predictions0", {{1, 2}, {0.25, 0.75}}},
            {name + "/labels0", {{1, 2}, {0, 1}}},
            {name + "/weights0", {{1, 2}, {1, 1}}},
            {name + "/expect_auc_after0", {{1}, {1}}},
            {name + "/expect_ne_after0", {{1}, {entropy / 2}}},
            {name + "/expect_cross_entropy_sum", {{1}, {entropy}}},
            {name + "/expect_weighted_num_samples", {{1}, {2}}},
            {name + "/expect_pos_labels", {{1}, {1}}},
            {name + "/expect_neg_labels", {{1}, {1}}}};
  }
  static std::string metric_settings() {
    return R"({"op": "metrics", "n_tasks": 1, "n_updates": 1, "num_bins": 100000, "eta": 1e-12})";
  }

  std::string path(const std::string& file) const { return (fs::path(folder) / file).string(); }

  void write(const std::string& file, const Tensors& tensors,
             const std::map<std::string, std::string, std::less<>>& metadata) const {
    std::vector<base::SafetensorsItem> items;
    for (const auto& [name, tensor] : tensors) {
      items.push_back({name, tensor.dtype, tensor.shape, tensor.values.data()});
    }
    base::write_safetensors(path(file), items, metadata);
  }
  void write_metrics(const std::string& file, const Tensors& tensors,
                     const std::string& settings = metric_settings()) const {
    write(file, tensors,
          {{"format", "hstu-golden-1"}, {"cases", "small"}, {"case:small", settings}});
  }

  Report run(const std::string& only = "") const {
    Options options;
    options.folder = folder;
    options.only = only;
    return run_folder(options);
  }
  /// Exit code and what the program printed.
  int program(const Options& options) {
    std::ostringstream out;
    std::ostringstream err;
    const int code = run_program(options, out, err);
    printed = out.str();
    messages = err.str();
    return code;
  }
  int program() {
    Options options;
    options.folder = folder;
    return program(options);
  }
  void expect_one_failure(const std::string& message) {
    const Report report = run();
    ASSERT_EQ(report.cases.size(), 1U);
    EXPECT_EQ(report.failed(), 1);
    ASSERT_FALSE(report.cases[0].failures.empty());
    EXPECT_TRUE(contains(report.cases[0].failures[0], message));
    EXPECT_EQ(program(), 1);
    EXPECT_TRUE(printed.ends_with("\n1 cases, 1 failed\n")) << printed;
  }

  std::string folder, printed, messages;
};

TEST_F(GoldenFiles, AGoodCasePassesWhateverTheFileIsCalled) {
  write_metrics("anything.safetensors", metric_tensors("small"));
  EXPECT_EQ(program(), 0) << printed << messages;
  EXPECT_TRUE(contains(printed, "anything.safetensors: small (metrics)\n"));
  EXPECT_TRUE(contains(printed, "  PASS\n"));
  EXPECT_TRUE(printed.ends_with("\n1 cases, 0 failed\n")) << printed;
}

TEST_F(GoldenFiles, AWrongNumberFails) {
  Tensors tensors = metric_tensors("small");
  tensors["small/expect_ne_after0"].values[0] += 1e-6;
  write_metrics("a.safetensors", tensors);
  const Report report = run();
  EXPECT_EQ(report.failed(), 1);
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(program(), 1);
  EXPECT_TRUE(contains(printed, "<- FAIL"));
}

TEST_F(GoldenFiles, RoundingThatTheProblemMagnifiesPasses) {
  // The norm of two values that differ by a thousandth makes 1e-4 of the rounding of its inputs.
  const std::vector<double> x = {1.0, 1.001}, dy = {0.3, -0.2};
  const double mean = (x[0] + x[1]) / 2, d = x[1] - mean, rstd = 1 / std::sqrt(d * d + 1e-5);
  const std::vector<double> y = {-d * rstd, d * rstd};
  const double mean1 = (dy[0] + dy[1]) / 2, mean2 = (dy[0] * y[0] + dy[1] * y[1]) / 2;
  const auto dx = [&](size_t i) { return rstd * (dy[i] - mean1 - y[i] * mean2); };
  Tensors tensors = {{"n/param._layer_norm.weight", {{2}, {1, 1}}},
                     {"n/param._layer_norm.bias", {{2}, {0, 0}}},
                     {"n/x", {{1, 2}, x}},
                     {"n/dout", {{1, 2}, dy}},
                     {"n/timestamps", {{1}, {0}, "I64"}},
                     {"n/out_f64", {{1, 2}, y}},
                     {"n/dx_f64", {{1, 2}, {dx(0), dx(1)}}},
                     {"n/grad._layer_norm.weight_f64", {{2}, {dy[0] * y[0], dy[1] * y[1]}}},
                     {"n/grad._layer_norm.bias_f64", {{2}, dy}}};
  const std::map<std::string, std::string, std::less<>> metadata = {
      {"format", "hstu-golden-1"},
      {"cases", "n"},
      {"case:n",
       R"({"op": "postprocessor", "kind": "layernorm", "embedding_dim": 2, "eps": 1e-5})"}};
  write("norm.safetensors", tensors, metadata);
  Report report = run();
  ASSERT_EQ(report.cases.size(), 1U);
  ASSERT_FALSE(report.cases[0].groups.empty()) << report.cases[0].failures[0];
  const TensorResult& out = report.cases[0].groups[0].tensors[0];
  EXPECT_TRUE(report.cases[0].passed());
  EXPECT_GT(out.error, 1e-5) << "too easy for this test";
  EXPECT_LT(out.tolerance, 1e-2);

  tensors["n/out_f64"].values[0] *= 1 + 1e-6;  // wrong, though less than rounding makes of it
  write("norm.safetensors", tensors, metadata);
  report = run();
  EXPECT_EQ(report.failed(), 1);
}

/// What a GPU may err is made from the errors of plain runs: broken ones allow nothing.
TEST_F(GoldenFiles, NothingPassesAgainstAPlainRunThatIsNotFinite) {
  write_metrics("a.safetensors", metric_tensors("small"));
  const CaseFile file(path("a.safetensors"));
  const Case golden = file.open("small");
  const double values[] = {1, 2};
  const Values reference{{1, 2}, {2}, true};
  for (const double error : {0.0, std::numeric_limits<double>::quiet_NaN()}) {
    CaseResult plain, result;
    plain.groups = {{"out", {{"x", error, 1, true}}}};
    Checker(golden, {Precision::kBf16, Device::cuda(), &plain}, result)
        .check_against("out", "x", values, reference, Level::kResult);
    EXPECT_EQ(result.passed(), error == 0) << error;
  }
}

TEST_F(GoldenFiles, AnExpectationWithoutRowsFails) {
  // One token of one sequence, the layer's own target; nothing may be read where there is nothing.
  Tensors tensors = {{"s/x", {{1, 2}, {1, 2}}},
                     {"s/dout", {{1, 2}, {1, 2}}},
                     {"s/out", {{0, 2}, {}}},
                     {"s/dx", {{1, 2}, {0, 0}}}};
  const std::vector<std::pair<std::string, std::vector<int64_t>>> parameters = {
      {"_uvqk_weight", {2, 4}},  {"_uvqk_beta", {4}},        {"_input_norm_weight", {2}},
      {"_input_norm_bias", {2}}, {"_output_weight", {3, 2}}, {"_output_norm_weight", {1}},
      {"_output_norm_bias", {1}}};
  for (const auto& [name, shape] : parameters) {
    const std::vector<double> ones(
        static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)), 1);
    tensors["s/param." + name] = {shape, ones};
    tensors["s/grad." + name] = {shape, ones};
  }
  const int64_t offsets[] = {0, 1}, targets[] = {1};
  std::vector<base::SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, tensor.dtype, tensor.shape, tensor.values.data()});
  }
  items.push_back({"s/seq_offsets", "I64", {2}, offsets});
  items.push_back({"s/num_targets", "I64", {1}, targets});
  base::write_safetensors(
      path("a.safetensors"), items,
      {{"format", "hstu-golden-1"},
       {"cases", "s"},
       {"case:s", R"({"op": "stu_layer", "embedding_dim": 2, "heads": 1, "dqk": 1, "dv": 1,
                      "max_seq_len": 1, "norm_eps": 1e-6})"}});
  expect_one_failure("`out` has shape [0, 2]");
}

TEST_F(GoldenFiles, AnUnknownOpFails) {
  write_metrics("a.safetensors", {}, R"({"op": "teleport"})");
  expect_one_failure("op `teleport` is not known");
}

TEST_F(GoldenFiles, AMissingTensorFails) {
  Tensors tensors = metric_tensors("small");
  tensors.erase("small/labels0");
  write_metrics("a.safetensors", tensors);
  expect_one_failure("labels0");
}

TEST_F(GoldenFiles, AMissingExpectationFails) {
  Tensors tensors = metric_tensors("small");
  tensors.erase("small/expect_pos_labels");
  write_metrics("a.safetensors", tensors);
  expect_one_failure("expect_pos_labels");
}

TEST_F(GoldenFiles, AWrongShapeFails) {
  Tensors tensors = metric_tensors("small");
  tensors["small/labels0"].shape = {2, 1};
  write_metrics("a.safetensors", tensors);
  expect_one_failure("has shape [2, 1], but the settings ask for [1, 2]");
}

TEST_F(GoldenFiles, ANumberThatIsNotFiniteFails) {
  Tensors tensors = metric_tensors("small");
  tensors["small/expect_ne_after0"].values[0] = std::numeric_limits<double>::quiet_NaN();
  write_metrics("a.safetensors", tensors);
  expect_one_failure("not finite");
}

TEST_F(GoldenFiles, ABadSettingFails) {
  write_metrics("a.safetensors", metric_tensors("small"), R"({"op": "metrics", "n_tasks": -1})");
  expect_one_failure("n_tasks");
}

TEST_F(GoldenFiles, SettingsThatAreNotJsonFail) {
  write_metrics("a.safetensors", metric_tensors("small"), "{\"op\": ");
  expect_one_failure("not JSON");
}

TEST_F(GoldenFiles, OneBadCaseDoesNotStopTheOthers) {
  Tensors tensors = metric_tensors("good");
  write("a.safetensors", tensors,
        {{"format", "hstu-golden-1"},
         {"cases", "bad missing good"},
         {"case:bad", R"({"op": "hstu_attention"})"},
         {"case:good", metric_settings()}});
  const Report report = run();
  ASSERT_EQ(report.cases.size(), 3U);
  EXPECT_FALSE(report.cases[0].passed());
  EXPECT_FALSE(report.cases[1].passed());
  EXPECT_TRUE(report.cases[2].passed());
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(run("/good ").exit_code(), 0);
}

TEST_F(GoldenFiles, ATruncatedFileIsBrokenAndTheOthersRun) {
  write_metrics("a.safetensors", metric_tensors("small"));
  write_metrics("b.safetensors", metric_tensors("small"));
  fs::resize_file(path("a.safetensors"), fs::file_size(path("a.safetensors")) - 8);
  const Report report = run();
  EXPECT_EQ(report.cases.size(), 1U);
  EXPECT_EQ(report.failed(), 0);
  ASSERT_EQ(report.broken.size(), 1U);
  EXPECT_TRUE(contains(report.broken[0], "a.safetensors"));
  EXPECT_EQ(program(), 2);
  EXPECT_TRUE(contains(messages, "a.safetensors"));
  EXPECT_TRUE(printed.ends_with("\n1 cases, 0 failed\n")) << printed;
}

TEST_F(GoldenFiles, AFileWithoutAListOfCasesIsBroken) {
  write("a.safetensors", {}, {{"format", "hstu-golden-1"}});
  EXPECT_EQ(program(), 2);
  EXPECT_TRUE(contains(messages, "cases"));
}

TEST_F(GoldenFiles, OtherSafetensorsFilesAreIgnoredWithANote) {
  write("weights.safetensors", {{"w", {{1}, {1}}}}, {});
  write_metrics("a.safetensors", metric_tensors("small"));
  EXPECT_EQ(program(), 0);
  EXPECT_TRUE(contains(messages, "weights.safetensors"));
}

TEST_F(GoldenFiles, NothingToRunIsNotSuccess) {
  EXPECT_EQ(program(), 2);
  EXPECT_EQ(printed, "0 cases, 0 failed\n");
  Options options;
  options.folder = path("not there");
  EXPECT_EQ(program(options), 2);
  write_metrics("a.safetensors", metric_tensors("small"));
  options.folder = folder;
  options.only = "no such case";
  EXPECT_EQ(program(options), 2);
  options.only = "(";
  EXPECT_EQ(program(options), 2);
  EXPECT_TRUE(contains(messages, "regular expression"));
}

TEST_F(GoldenFiles, JsonIsOneDocument) {
  Tensors tensors = metric_tensors("small");
  tensors["small/expect_ne_after0"].values[0] = std::numeric_limits<double>::infinity();
  write_metrics("a.safetensors", tensors);
  Options options;
  options.folder = folder;
  options.json = true;
  EXPECT_EQ(program(options), 1);
  const nlohmann::json json = nlohmann::json::parse(printed);
  EXPECT_EQ(json["num_cases"], 1);
  EXPECT_EQ(json["num_failed"], 1);
  const nlohmann::json& result = json["cases"][0];
  EXPECT_EQ(result["verdict"], "FAIL");
  ASSERT_EQ(result["groups"].size(), 3U);  // auc, ne, sums
  EXPECT_EQ(result["groups"][0]["passed"], true);
  EXPECT_EQ(result["groups"][0]["tolerance"], 1e-6);
  EXPECT_EQ(result["groups"][1]["passed"], false);
  EXPECT_TRUE(result["groups"][1]["error"].is_null());
}

TEST_F(GoldenFiles, ADeviceThatIsNotThereIsAUsageError) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  Options options;
  options.folder = folder;
  options.device = Device::cuda();
  EXPECT_EQ(program(options), 2);
  EXPECT_TRUE(contains(messages, "--device cpu"));
}

TEST(GoldenSettings, AreReadWithTheirTypes) {
  const Settings s(R"({"n": 3, "x": 0.5, "list": [1, 2], "one": 7, "pi": "2*3.14", "yes": 1,
                       "map": {"z": "a", "b": "c"}})");
  EXPECT_EQ(s.integer("n"), 3);
  EXPECT_EQ(s.integer("absent", 4), 4);
  EXPECT_EQ(s.number("x"), 0.5);
  EXPECT_EQ(s.integers("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(s.integers("one"), (std::vector<int64_t>{7}));
  EXPECT_EQ(s.product("pi", 0), 2 * 3.14);
  EXPECT_TRUE(s.flag("yes", false));
  EXPECT_EQ(s.pairs("map")[0].first, "z") << "in the order of the file";
  EXPECT_TRUE(contains(base::error_of([&] { s.integer("x"); })->what(), "`x`"));
  EXPECT_TRUE(contains(base::error_of([&] { s.text("absent"); })->what(), "`absent` is missing"));
}

TEST(GoldenTolerance, DependsOnPrecisionAndReference) {
  const Judgement f32{Precision::kF32}, f64{Precision::kF64}, bf16{Precision::kBf16};
  EXPECT_EQ(tolerance_of(Level::kResult, f32, true), 1e-5);
  EXPECT_EQ(tolerance_of(Level::kResult, {Precision::kF32, Device::cuda()}, true), 1e-4);
  EXPECT_EQ(tolerance_of(Level::kResult, f64, true), 1e-9);
  EXPECT_EQ(tolerance_of(Level::kResult, f64, false), 1e-5);
  EXPECT_EQ(tolerance_of(Level::kAfterTraining, f32, true), 1e-4);
  EXPECT_TRUE(std::isinf(tolerance_of(Level::kResult, bf16, true)));
  EXPECT_EQ(tolerance_of(Level::kExact, bf16, false), 0);
}

}  // namespace
}  // namespace segue::golden
