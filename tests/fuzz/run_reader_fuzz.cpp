// What `segue report` reads of a run, and the page that it makes of it.
// Input: metrics.jsonl, config.toml and mlperf.log, each up to a zero byte.

#include "fuzz.h"
#include "report/page/html_report.h"
#include "report/page/report_data.h"
#include "report/run_reader.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  report::Run run;
  run.path = run.name = "fuzz";
  const std::string metrics(input.before('\0')), config(input.before('\0'));
  const std::string log(input.rest());
  report::detail::read_metrics(metrics, "metrics.jsonl", run);
  for (size_t i = 1; i < run.train.size(); ++i) {
    fuzz::require(run.train[i - 1].at.step < run.train[i].at.step, "steps increase");
  }
  if (auto settings = fuzz::accepted([&] { return report::detail::flatten_toml(config); })) {
    run.config = *std::move(settings);
  }
  run.config_text = config;
  report::detail::read_mlperf_log(log, "mlperf.log", /*points=*/metrics.empty(), run);
  fuzz::require(report::page_data({run}).find('<') == std::string::npos,
                "data cannot end the script that they stand in");
  fuzz::require(!report::html_report({run}, run.path, "now").empty(), "there is a page");
  return 0;
}
