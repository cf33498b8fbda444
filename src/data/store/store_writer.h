#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/log/event.h"
#include "data/log/log_schema.h"
#include "data/store/store_manifest.h"
#include "data/store/store_stage.h"

namespace segue::data {

struct StoreWriterConfig {
  std::string folder;                // the store; must not hold a finished one
  int64_t history_length = 4086;     // names the cache folder hstu_cache_L<history_length>
  std::vector<int64_t> min_history;  // anchor lists to write; empty: {history_length}
  int64_t buffer_bytes = 64 << 20;   // all write buffers together
  int64_t item_bytes = 1 << 30;      // popularity and attributes, 8 bytes per item or user each
  bool overwrite = false;            // a finished store is replaced when the new one is complete
  SegmentLink segment = {};          // number 0: a store; else a segment, without anchors
  std::string schema_text = {};      // schema.toml of a segment: as the store has it
  std::shared_ptr<StoreStage> stage = nullptr;  // already taken for `folder`; null: taken here
};

/// What surprises whoever trains on a store.
struct StoreFacts {
  int64_t outside_pools = 0;  // events that no history has
  int64_t predictable = 0;    // events of kinds that may be predicted
  int64_t positive = 0;       // of them in the label's pool; 0 where all pools are labels
};

/// Writes the flat event cache from events that arrive in store order, in bounded memory. Nothing
/// looks finished before finish(): everything is written below a temporary folder, fsynced,
/// renamed,
/// `_READY` last. Used by `prep` (from raw logs) and by `synth` (directly).
class StoreWriter {
 public:
  /// `schema` says which events are in which pool and which may be anchors.
  StoreWriter(const StoreWriterConfig& config, const LogSchema& schema);
  ~StoreWriter();

  /// Users rise, times rise within a user (equal ones keep the order they come in); events have as
  /// many numbers as the schema.
  /// Error(kInvalidArgument) if the order goes back, Error(kOutOfRange) for ids that are negative
  /// or beyond kLargestId.
  void add(std::span<const Event> events);
  /// Dense maps item -> attribute or user -> attribute, as the mapping rows came (the last row of
  /// an id wins). May be called in pieces.
  void set_attribute(const std::string& name, std::span<const int64_t> ids,
                     std::span<const int64_t> values);
  /// A file that the caller has written to stage().path(record.name); it goes into the manifest.
  void add_file(const base::FileRecord& record);
  void add_ids(const IdRecord& record);
  /// A small file of the store, written at once.
  void add_text(const std::string& name, std::string_view text);
  void set_origin(StoreOrigin origin);
  StoreStage& stage();
  bool is_segment() const;

  /// Writes users, anchors, metadata, manifest with checksums.
  void finish();

  int64_t num_events() const;
  int64_t num_users() const;
  int64_t num_anchors() const;  // of the smallest minimum history
  const StoreFacts& facts() const;

  static constexpr int64_t kLargestId = (int64_t{1} << 31) - 2;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace segue::data
