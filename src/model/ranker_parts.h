#pragma once

// The private parts of a Ranker pass; included by the files that make one.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/precision.h"
#include "model/ranker.h"
#include "ops/assemble.h"
#include "ops/rows.h"
#include "sparse/dedup.h"

namespace segue::model {

constexpr int64_t kEventsPerTask = 1 << 14;  // of loops over a batch's columns

/// Rows of tables that features read: one each, or the sum of several.
struct FeatureRows {
  Tensor index;         // i32: table rows
  Tensor offsets, bag;  // of sums, one after the other: see ops/bags.h; absent: one each

  int64_t count() const { return offsets ? offsets.size(0) - 1 : index.size(0); }
  void read(const Exec& exec, const Tensor& from, const Tensor& to) const;
  /// Gradients of what read() made are added to those of `from`.
  void add_gradients(const Exec& exec, const Tensor& dto, const Tensor& dfrom,
                     const ops::SortedIndex& sorted = {}) const;
};

/// What prepare() works in; memory is kept from batch to batch, since new pages cost more than what
/// is written to them.
struct Ranker::Places {
  /// Distinct items by a GPU, beside the batch that it trains on: the host waits for them.
  struct OnDevice {
    explicit OnDevice(Device device) : stream(device, Priority::kAhead) {}
    Stream stream;
    sparse::DeviceDedup dedup;
    sparse::DeviceDedup::Found found;
  };

  std::vector<std::string> names;       // of the sequence features, for messages
  HostArray<int64_t> ids;               // of every event, then of every candidate
  HostArray<int64_t> attribute;         // of every event, where a batch leaves it to be made
  std::unique_ptr<OnDevice> on_device;  // absent: the host finds them
  sparse::Distinct items;               // inverse: of the host alone; RankerBatch::item has it
  HostArray<int32_t> example;           // [items]: an event or candidate that has it
  std::vector<HostArray<int64_t>> attributes;  // [columns of additional features][items]
  /// Place of every item in the rows of each column's table; -1 also where it has no such value.
  std::vector<std::span<const int32_t>> feature_index;
  std::vector<HostArray<int32_t>> present;  // [columns]: of those that are values of several
  sparse::DistinctTuples branches;          // inverse: of every item
  sparse::DedupScratch scratch;
};

/// Part one: everything that exists once per batch, however many micro-batches follow.
struct Ranker::Rows {
  Tensor table_rows;       // [table rows, embedding dim]: distinct rows of all tables
  Tensor table_gradients;  // the same shape, float
  FeatureRows inputs;      // see RankerBatch
  ops::SortedIndex sorted_index;
  Preprocessor::Saved saved;
  Tensor all_gradients;  // of what the preprocessor made, float
  Preprocessor::RowGradients gradients;
};

/// One micro-batch where ops can read it.
struct Ranker::Tokens {
  Sequences sequences;
  ops::AssembleParams assemble;
  int64_t count = 0;
  int64_t most_targets = 0;

  TargetTokens labelled;  // tokens that are predicted
  struct Truncated {      // of layers that work on the newest tokens only
    Sequences sequences;
    TargetTokens labelled;
    Tensor kept;  // i64 [tokens left]: which of all tokens they are
  } truncated;
  Tensor label_timestamps;           // i64 [labels]
  std::vector<Tensor> label_values;  // per task [labels]
  FeatureRows label_features;        // [labels, sequence features]
  Tensor label_numbers;              // [labels, numeric features]; absent without
  int64_t first_label = 0;           // number of the first label in the batch

  /// Whether tokens are dropped in front of a layer, and which ones it works on.
  static bool truncated_at(size_t layer, const ModelConfig& c) {
    return static_cast<int64_t>(layer) == c.whole_layers();
  }
  const Sequences& sequences_of(size_t layer, const ModelConfig& c) const {
    return static_cast<int64_t>(layer) < c.whole_layers() ? sequences : truncated.sequences;
  }
};

struct Ranker::UserSide {
  Tensor x0;
  Tensor keep;  // what dropout kept of x0, where backward reads it (ops::assemble_keep_bytes)
  std::vector<StuLayer::Saved> layers;
  StuLayer::TargetSaved last;  // when the last layer runs at targets only
  bool collapsed = false;
  Postprocessor::Saved post;
  Tensor user;  // [labels, dim]
};

struct Ranker::ItemSide {
  Tensor user;       // [labels, dim]
  Tensor item_rows;  // [labels, features * embedding dim]
  Mlp::Saved item;
  Mlp::Saved numbers;
  Tensor product;  // what the head reads
  Mlp::Saved head;
  Tensor logits;  // [labels, tasks]
  Tensor dlogits;
};

}  // namespace segue::model
