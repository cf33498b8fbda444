#include "report/page/html_report.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/test_util.h"
#include "report/page/report_data.h"

namespace segue::report {
namespace {

Run small_run(const std::string& name) {
  report::Run run;
  run.path = run.name = name;
  run.status = "finished";
  for (int i = 1; i <= 3; ++i) {
    TrainPoint p;
    p.at = {10 * i, 640.0 * i, 2.0 * i};
    p.loss = 1.0 / i;
    p.stages = {{"load", 0.5}, {"attention", 1.5}};
    p.length_bin = 64;
    p.lengths = {1, 2, 0};
    run.train.push_back(p);
  }
  EvalPoint e;
  e.at = run.train.back().at;
  e.auc = 0.76543;
  run.eval.push_back(e);
  return run;
}

TEST(KeepPoints, ShortSeriesStayWhole) {
  EXPECT_TRUE(keep_points({}, 10).empty());
  const std::vector<double> values(10, 1.0);
  EXPECT_EQ(keep_points(values, 10).size(), 10u);
}

TEST(KeepPoints, FirstLastAndExtremesOfALongSeries) {
  std::vector<double> values;
  for (int i = 0; i < 100'000; ++i) values.push_back(std::sin(i * 0.01));
  values[31'234] = 9.0;
  values[77'777] = -9.0;
  const std::vector<size_t> kept = keep_points(values, 2000);
  EXPECT_LE(kept.size(), 2000u);
  EXPECT_GE(kept.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept.back(), values.size() - 1);
  EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), 31'234u));
  EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), 77'777u));
}

TEST(KeepPoints, StretchWithoutNumbersStaysVisible) {
  std::vector<double> values(10'000, 1.0);
  std::fill(values.begin() + 4000, values.begin() + 6000, kNotFinite);
  const std::vector<size_t> kept = keep_points(values, 100);
  EXPECT_TRUE(
      std::any_of(kept.begin(), kept.end(), [&](size_t i) { return values[i] == kNotFinite; }));
}

TEST(Differences, OnlyWhatDiffers) {
  const Settings a = {{"lr", "1"}, {"same", "x"}, {"only a", "1"}},
                 b = {{"lr", "2"}, {"same", "x"}};
  const std::vector<Difference> rows = differences({&a, &b});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].key, "lr");
  EXPECT_EQ(rows[0].values, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(rows[1].values, (std::vector<std::string>{"1", ""}));
  EXPECT_TRUE(differences({&a, &a}).empty());
  EXPECT_TRUE(differences({&a}).empty());
}

TEST(StageColumns, AddsUpLinesThatShareAColumn) {
  std::vector<TrainPoint> train;
  for (int i = 1; i <= 1000; ++i) {
    TrainPoint p;
    p.at.step = 5 * i;
    p.stages = {{"load", 0.001}};
    if (i > 500) p.stages.emplace_back("late", 0.5);
    train.push_back(p);
  }
  const StageColumns columns = stage_columns(train, 100);
  ASSERT_EQ(columns.at.size(), 100u);
  EXPECT_EQ(columns.names, (std::vector<std::string>{"load", "late"}));
  EXPECT_EQ(columns.steps[0], 50);
  EXPECT_NEAR(columns.seconds[0][99], 0.01, 1e-12);
  EXPECT_EQ(columns.seconds[1][0], 0.0);
  EXPECT_EQ(columns.at.back().step, 5000);
}

TEST(Lengths, SumsAndCutsTheEmptyEnd) {
  const Lengths total = total_lengths(small_run("a").train);
  EXPECT_EQ(total.bin, 64);
  EXPECT_EQ(total.counts, (std::vector<double>{3, 6}));
}

TEST(PageData, NumbersAreThoseOfTheRun) {
  report::Run run = small_run("a");
  run.train[1].loss = kNotFinite;
  run.train[2].grad_norm = 0.1;
  const auto data = nlohmann::json::parse(page_data({run}));
  const auto& train = data.at("runs").at(0).at("train");
  EXPECT_EQ(train.at("x").at("samples"), nlohmann::json::parse("[640, 1280, 1920]"));
  EXPECT_EQ(train.at("series").at("loss").at("y"),
            nlohmann::json::parse("[1, null, 0.3333333333333333]"));
  EXPECT_FALSE(train.at("series").at("loss").contains("i"));
  EXPECT_EQ(train.at("series").at("grad_norm").at("i"), nlohmann::json::parse("[2]"));
  EXPECT_FALSE(train.at("series").contains("lr"));
}

TEST(PageData, LongRunStaysSmall) {
  report::Run run;
  for (int i = 0; i < 50'000; ++i) {
    TrainPoint p;
    p.at = {i, 64.0 * i, 0.1 * i};
    p.loss = std::cos(i * 0.1);
    p.lr = 1.0;
    run.train.push_back(p);
  }
  const auto data = nlohmann::json::parse(page_data({run}));
  EXPECT_LE(data["runs"][0]["train"]["series"]["loss"]["y"].size(), kMaxPoints);
  EXPECT_LE(data["runs"][0]["train"]["x"]["step"].size(), 2 * kMaxPoints);
}

TEST(HtmlReport, TextCannotBecomeMarkup) {
  EXPECT_EQ(escape_html("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
  const std::string evil = "</script><script>alert(1)</script>";
  report::Run run = small_run(evil), other = small_run("b");
  run.status = run.config_text = evil;
  run.config = {{evil, evil}};
  other.config = {{evil, "x"}};
  run.warnings = {evil};
  run.train[0].stages[0].first = evil;
  run.eval[0].tasks = {{evil, 0.5}, {"b", 0.5}};
  const std::string page = html_report({run, other}, evil, evil);
  EXPECT_EQ(page.find(evil), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  size_t ends = 0;
  for (size_t at = 0; (at = page.find("</script", at)) != std::string::npos; ++at) ++ends;
  EXPECT_EQ(ends, 3u);  // data, charts, script
}

TEST(HtmlReport, HeadlineAndSettings) {
  report::Run run = small_run("first");
  run.config_text = "layers = 3\n";
  const std::string page = html_report({run}, "A title", "made today");
  for (const char* part : {"<title>A title</title>", "made today", "0.7654", "finished", "1.92k",
                           "6.00 s", "layers = 3"}) {
    EXPECT_TRUE(page.find(part) != std::string::npos) << part;
  }
}

TEST(HtmlReport, TheHeadlineSaysWhatWasTrainedAndWhatItIsWorth) {
  report::Run run = small_run("run");
  run.config = {{"data.store", "data/mine"}, {"train.device", "auto"}};
  EvalPoint& e = run.eval.back();
  e.model = "HSTU & co";
  e.device = "cpu";
  e.auc_low = 0.7554;
  e.auc_high = 0.7754;
  e.oracle_auc = 0.83;
  e.baseline = "user-artist";
  e.baseline_auc = 0.7109;
  e.above_by = 0.0545;
  e.above_error = 0.004;
  e.baselines = {{"item", 0.58}, {"user-artist", 0.7109}};
  e.tasks = {{"listen", 0.76543, 0.9, 0.7, 1.01}};
  e.tasks[0].users = 321;
  e.tasks[0].user_auc = 0.6789;
  e.tasks[0].ndcg = 0.5432;
  e.tasks[0].recall = 0.4321;
  e.tasks[0].k = 10;
  e.tasks[0].calibration_error = 0.0123;
  e.tasks[0].calibration_curve = {{50, 0.3, 0.35}, {50, 0.6, 0.55}};
  e.tasks[0].by_history = {{"32 to 127", 77, 0.7123, 0.7, 0.72}};
  e.tasks[0].by_item = {{"0", 5}};
  const std::string page = html_report({run}, "t", "m");
  for (const char* part : {"data/mine · HSTU &amp; co · cpu", "± 0.0100 (95 %)", "oracle 0.8300",
                           "above user-artist 0.7109", "+0.0545 ± 0.0040", "<td>0.5800</td>",
                           "<td>321</td>", "<td>0.6789</td>", "<td>0.5432</td>", "<td>0.0123</td>",
                           "listen · 32 to 127", "0.7000 to 0.7200", "<td>n/a (one class)</td>"}) {
    EXPECT_TRUE(base::contains(page, part)) << part;
  }
  // Rules of a large log are compared on a part of the labels: the lead counts, where it is known.
  e.auc = 0.7;
  EXPECT_TRUE(base::contains(html_report({run}, "t", "m"), "above user-artist 0.7109"));
  e.above_by = kAbsent;
  EXPECT_TRUE(base::contains(html_report({run}, "t", "m"), "below user-artist 0.7109"));
  const auto data = nlohmann::json::parse(page_data({run}))["runs"][0];
  EXPECT_EQ(data["baseline"], "user-artist");
  EXPECT_EQ(data["calibration"][0]["share"], nlohmann::json::parse("[0.35, 0.55]"));
  EXPECT_EQ(data["eval"]["series"]["auc_low"]["y"], nlohmann::json::parse("[0.7554]"));
}

TEST(HtmlReport, AucsOfDifferentStoresDoNotCompare) {
  const std::string green = "class=\"best\"><dt>AUC";
  report::Run a = small_run("a"), b = small_run("b");
  b.eval.back().auc = 0.8;
  EXPECT_TRUE(base::contains(html_report({a, b}, "t", "m"), green));  // nobody says
  a.config = {{"data.store", "one"}};
  EXPECT_TRUE(base::contains(html_report({a, b}, "t", "m"), green));
  b.config = {{"data.store", "one"}};
  EXPECT_TRUE(base::contains(html_report({a, b}, "t", "m"), green));
  b.config = {{"data.store", "two"}};
  EXPECT_FALSE(base::contains(html_report({a, b}, "t", "m"), green));
}

TEST(HtmlReport, ATimeBeyondAllMeasureIsNone) {
  for (const double seconds : {1e300, 9.3e18, -1e300}) {
    report::Run run = small_run("a");
    run.train.back().at.wall_s = run.eval.back().at.wall_s = seconds;
    EXPECT_TRUE(base::contains(html_report({run}, "", ""), "<dt>Time</dt><dd><b>–</b>")) << seconds;
  }
}

TEST(HtmlReport, OneClassHasNoEntropy) {
  report::Run run = small_run("a");
  run.eval.back().tasks = {{"listen", 0.7, 0.9}, {"never", 0.5}};
  EXPECT_FALSE(base::contains(html_report({run}, "t", "m"), "<td>n/a (one class)</td>"));
  run.eval.back().tasks[1].one_class = true;
  EXPECT_TRUE(base::contains(html_report({run}, "t", "m"), "<td>n/a (one class)</td>"));
}

TEST(HtmlReport, NeedsNothingFromOutside) {
  std::string page = html_report({small_run("a")}, "t", "m");
  const std::string name_space = "http://www.w3.org/2000/svg";  // a name, not an address
  page.replace(page.find(name_space), name_space.size(), "");
  for (const char* part : {"http:", "https:", "@import", "url(//", "src="}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace segue::report
