#include "data/parquet/parquet_writers.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/parquet/parquet.h"
#include "data/prep/prep.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

TEST(ParquetSynthTest, ThroughPrepItIsTheDirectStore) {
  const SynthLog log({.users = 100, .items = 1500, .days = 15, .events_per_user = 120, .seed = 11});
  const std::string raw = base::temp_path("raw"), direct = base::temp_path("direct"),
                    prepared = base::temp_path("prepared");
  const SynthSummary summary = write_raw_log(log, *make_parquet_log_writer(raw, "500m"), raw);
  write_synth_store(
      log, {.folder = direct, .size_name = "500m", .history_length = 45, .min_history = {0, 45}});
  PrepConfig config;
  config.raw = raw;
  config.store = prepared;
  config.schema = LogSchema::preset("yambda-500m");
  config.history_length = 45;
  config.min_history = {0, 45};
  config.parquet = &parquet_support();
  const PrepResult result = prep(config);
  EXPECT_EQ(result.rows.rows, summary.events);
  EXPECT_TRUE(result.was_in_order);

  // All files are equal, but for where the store comes from, the rows of its log and the truth.
  StoreManifest a = StoreManifest::read(direct), b = StoreManifest::read(prepared);
  EXPECT_EQ(a.num_items, b.num_items);
  const auto is_shared = [](const base::FileRecord& f) { return f.name != kTruthFile; };
  int64_t compared = 0;
  for (const base::FileRecord& file : a.files) {
    if (!is_shared(file)) continue;
    ASSERT_NE(b.find(file.name), nullptr) << file.name;
    EXPECT_TRUE(base::read_file(direct + "/" + file.name) ==
                base::read_file(prepared + "/" + file.name))
        << file.name;
    ++compared;
  }
  EXPECT_NE(b.find(kRowsFile), nullptr);
  EXPECT_EQ(compared + 1, static_cast<int64_t>(b.files.size()));
  EXPECT_GT(compared, 20);
}

}  // namespace
}  // namespace segue::data
