#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/prep/prep.h"
#include "data/propose/propose_schema.h"
#include "data/store/id_maps.h"
#include "data/store/store_verify.h"

namespace segue::data {

/// A folder with files of a log, what is proposed for it, and what prep makes of that.
class ProposedLog : public testing::Test {
 protected:
  ProposedLog() : folder_(base::temp_path("shapes")) { base::make_folders(folder_); }

  void put(const std::string& name, const std::string& text) const {
    base::put_file(folder_ + "/" + name, text);
  }
  /// The proposal for `raw` (the folder), read as prep reads a schema.
  LogSchema propose(const std::string& raw = "") {
    text_ = propose_schema(raw.empty() ? folder_ : raw, parquet_);
    base::ConfigSources sources;
    sources.file = "proposal";
    sources.text = text_;
    sources.use_environment = false;
    return load_log_schema(sources);
  }
  /// Rows of a log of 30 users, 40 items and 40 days: `row(i, user, item, seconds)`.
  template <class Row>
  static std::string rows(Row row) {
    std::string text;
    for (int64_t i = 0; i < 3000; ++i) {
      text += row(i, i * 7919 % 30, static_cast<int64_t>(i * 2654435761u % 4294967296u >> 11) % 40,
                  1'700'000'000 + i * 1152) +
              "\n";
    }
    return text;
  }
  PrepResult prepared(const LogSchema& schema, const std::string& skip = "") const {
    PrepConfig config;
    config.parquet = parquet_;
    if (!skip.empty()) config.skip_bad = SkipLimit::parse(skip);
    config.raw = folder_;
    config.store = folder_ + "/store";
    config.schema = schema;
    config.memory_bytes = PrepConfig::kLeastMemory;
    config.history_length = 20;
    config.min_history = {2};
    config.overwrite = true;
    const PrepResult result = prep(config);
    EXPECT_TRUE(verify_store(config.store).ok());
    return result;
  }
  /// Events of the store.
  int64_t prepare(const LogSchema& schema, const std::string& skip = "") const {
    return prepared(schema, skip).counts.train_events;
  }
  /// Ids of a column that the store made numbers of.
  std::vector<std::string> ids(const std::string& column) const {
    std::vector<std::string> all;
    IdMaps(folder_ + "/store").read(column, [&](std::string_view id) {
      all.emplace_back(id);
      return true;
    });
    return all;
  }
  std::string refusal() const {
    const auto error = base::error_of([this] { propose_schema(folder_, nullptr); });
    return error ? error->what() : "";
  }

  bool says(const std::string& text) const { return base::contains(text_, text); }

  std::string folder_, text_;
  const ParquetSupport* parquet_ = nullptr;
};

}  // namespace segue::data
