#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/log/event.h"
#include "data/synth/synth.h"

namespace segue::data {

/// Takes the files of a raw log, in the layout of the public data set. Nothing carries its final
/// name before finish().
class RawLogWriter {
 public:
  virtual ~RawLogWriter() = default;
  virtual void add(std::span<const Event> events) = 0;
  /// File <attribute>_item_mapping with columns <attribute>_id and item_id.
  virtual void add_mapping(std::string_view attribute, const AttributeRows& rows) = 0;
  virtual void finish() = 0;
};

/// Writes FOLDER/flat/<size>/multi_event.csv, the mappings, and FOLDER/schema.toml for `segue
/// prep`.
std::unique_ptr<RawLogWriter> make_csv_log_writer(const std::string& folder,
                                                  const std::string& size_name);

struct SynthSummary {
  int64_t users = 0, events = 0, listens = 0, listen_plus = 0;
};

/// The whole log through `writer`, and the truth beside it: FOLDER/truth/ has the columns uid,
/// timestamp and listen_probability with one element per listen, in the order of the log.
SynthSummary write_raw_log(const SynthLog& log, RawLogWriter& writer, const std::string& folder);

struct SynthStoreConfig {
  std::string folder;
  std::string size_name = "50m";
  int64_t history_length = 256;
  std::vector<int64_t> min_history;  // empty: {history_length}
  bool overwrite = false;
  int64_t buffer_bytes = 64 << 20;
};

/// The store that `segue prep` makes from the raw log, byte for byte in cache and item files,
/// without the detour; and with the truth: segue/listen_probability.npy, one element per event. The
/// summary counts what is in the store, which is the train part.
SynthSummary write_synth_store(const SynthLog& log, const SynthStoreConfig& config);

/// Where write_synth_store() puts the truth, relative to the store.
inline constexpr const char* kTruthFile = "segue/listen_probability.npy";
/// Where write_raw_log() puts it, relative to the raw folder.
inline constexpr const char* kTruthFolder = "truth";

}  // namespace segue::data
