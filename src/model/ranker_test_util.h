#pragma once

// For tests only: small models and a batch that has everything.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "batch/batch.h"
#include "model/config.h"
#include "model/ranker.h"
#include "ops/test_util.h"
#include "sparse/tables.h"

namespace segue::model {

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.dim = 8;
  c.heads = 2;
  c.qk_dim = 4;
  c.v_dim = 4;
  c.layers = 2;
  c.hidden = 6;
  c.item_hidden = 7;
  c.head_hidden = 5;
  c.max_seq_len = 40;
  c.position_buckets = 16;
  c.time_buckets = 6;
  c.input_dropout = 0.2;
  c.dropout = 0.1;
  c.additional = {{"artist", "candidate_artist", "artist"}};
  c.item = {"item", "candidate", "item"};
  c.contextual = {{"user", "user"}, {"tags", "tag", 2, 3}};
  c.action = {"action", {1, 2}, 3};
  c.history_timestamp = "time";
  c.candidate_timestamp = "candidate_time";
  c.candidate_label = "label";
  c.tasks = {{"click", ops::TaskKind::kBinary, 1, 0.7},
             {"like", ops::TaskKind::kBinary, 2, 0.3},
             {"value", ops::TaskKind::kRegression, 1, 0.1}};
  return c;
}

inline sparse::TablesConfig tiny_tables() {
  sparse::TablesConfig t;
  t.dim = 5;
  t.tables = {{"item", 20, 0.5}, {"artist", 9, 0.5}, {"user", 6, 0.5}, {"tag", 4, 0.5}};
  return t;
}

/// A batch with an empty history, repeated ids, tags of lengths 0 to 2 and 0 to 3 candidates; of
/// every three events one has a label.
inline Batch tiny_batch(const std::vector<int64_t>& histories = {4, 0, 1, 6},
                        const std::vector<int64_t>& candidates = {1, 2, 3, 1}) {
  Batch b;
  const int history = b.add_group("history");
  const int candidate = b.add_group("candidate");
  const int user = b.add_group("user");
  const int tags = b.add_group("tags");
  const std::vector<std::pair<std::string, int>> columns = {{"item", history},
                                                            {"artist", history},
                                                            {"action", history},
                                                            {"time", history},
                                                            {"event_label", history},
                                                            {"candidate", candidate},
                                                            {"candidate_artist", candidate},
                                                            {"candidate_time", candidate},
                                                            {"label", candidate},
                                                            {"user", user},
                                                            {"tags", tags}};
  for (const auto& [name, group] : columns) b.add_column(name, group);
  b.clear();
  for (Batch::Group& g : b.groups) g.offsets.assign(std::vector<int64_t>{0});
  const auto draw = [&](uint64_t site, int64_t i, int64_t n) {
    return static_cast<int64_t>(base::splitmix64(site * 1000 + static_cast<uint64_t>(i)) %
                                static_cast<uint64_t>(n));
  };
  const auto extend = [&](const char* group, int64_t length) {
    HostArray<int64_t>& offsets = b.group(group).offsets;
    offsets.push_back(offsets[offsets.size() - 1] + length);
  };
  for (size_t s = 0; s < histories.size(); ++s) {
    const int64_t k = static_cast<int64_t>(s);
    b.sample_index.push_back(k);
    int64_t now = 1000 * (k + 1);
    for (int64_t e = 0; e < histories[s]; ++e) {
      const int64_t item = draw(1, 10 * k + e, 7), action = draw(2, 10 * k + e, 4);
      const bool labelled = b.column("item").values.size() % 3 == 1;
      b.column("event_label").values.push_back(labelled ? action : -1);
      b.column("item").values.push_back(item);
      b.column("artist").values.push_back(item % 4);
      b.column("action").values.push_back(action);
      b.column("time").values.push_back(now += draw(3, 10 * k + e, 500));
    }
    for (int64_t c = 0; c < candidates[s]; ++c) {
      const int64_t item = draw(4, 10 * k + c, 20);
      b.column("candidate").values.push_back(item);
      b.column("candidate_artist").values.push_back(item % 9);
      b.column("candidate_time").values.push_back(now);
      b.column("label").values.push_back(draw(5, 10 * k + c, 4));
    }
    b.column("user").values.push_back(draw(6, k, 6));
    for (int64_t t = 0; t < k % 3; ++t) b.column("tags").values.push_back(draw(7, k + t, 4));
    extend("history", histories[s]);
    extend("candidate", candidates[s]);
    extend("user", 1);
    extend("tags", k % 3);
  }
  b.global_samples = b.num_samples();
  return b;
}

/// The other published variant.
inline ModelConfig tiny_gated_config() {
  ModelConfig c = tiny_config();
  c.layer = LayerKind::kGated;
  c.tokens = TokenKind::kInterleaved;
  c.labels = LabelKind::kEveryItem;
  c.embedding_mlp = EmbeddingMlp::kRelu;
  c.postprocessor = PostprocessorKind::kL2;
  c.head = HeadKind::kDirect;
  c.time_buckets = 0;
  c.tasks = {{"click", ops::TaskKind::kBinary, 1, 1}, {"like", ops::TaskKind::kBinary, 2, 1}};
  return c;
}

/// Interleaved candidates with every part of the mask in use.
inline ModelConfig tiny_masked_config() {
  ModelConfig c = tiny_config();
  c.tokens = TokenKind::kInterleaved;
  c.output_norm = OutputNorm::kGroup;
  c.postprocessor = PostprocessorKind::kLayerNorm;
  c.attention = {.contextual_mask = true,
                 .window = 4,
                 .min_full = 2,
                 .target_group = 2,
                 .score_scale = ScoreScale::kBatchMax};
  return c;
}

/// A global prefix: the contextual tokens and the first event.
inline ModelConfig tiny_semilocal_config() {
  ModelConfig c = tiny_config();
  c.attention.window = 2;
  c.attention.global_prefix = c.contextual_tokens() + 1;
  return c;
}

/// Three values of an item, two of the sample, in a table that another feature reads too.
inline ModelConfig with_bags(ModelConfig c) {
  c.additional.push_back({"genre", "candidate_genre", "tag", 3});
  c.contextual.push_back({.name = "liked", .table = "tag", .values = 2});
  return c;
}

/// Their columns for a tiny_batch(): 0 to 3 values, of items by their ids.
inline Batch bagged_batch(Batch b) {
  const auto add = [&](const std::string& name, const std::string& of, int64_t factor) {
    Batch::Column column;
    column.name = name;
    column.group = b.column(of).group;
    for (const int64_t id : b.column(of).values.span()) {
      column.values.push_back(factor * (id + 3) / 2 % 4);
    }
    b.columns.push_back(std::move(column));
  };
  for (const int64_t k : {1, 2, 3}) {
    add("genre_" + std::to_string(k), "item", k);
    add("candidate_genre_" + std::to_string(k), "candidate", k);
  }
  add("liked_1", "user", 1);
  add("liked_2", "user", 3);
  return b;
}

inline ModelConfig with_numbers(ModelConfig c, bool tokens) {
  c.numeric = {.columns = {"price", "gap", "rate"}, .hidden = 4, .tokens = tokens};
  return c;
}

/// The same with forms, and a number that only the history knows.
inline ModelConfig with_outcomes(ModelConfig c) {
  c = with_numbers(std::move(c), true);
  c.numeric.outcomes = {"watched"};
  c.numeric.forms = {{.column = "price", .shape = NumberShape::kBuckets, .bounds = {-0.2, 0.3}},
                     {.column = "watched", .shape = NumberShape::kLog, .offset = 0.1, .scale = 3},
                     {.column = "rate", .offset = -0.5, .scale = 0.5}};
  return c;
}

/// Numbers for every event and candidate of a tiny_batch(), and `watched` of events.
inline Batch numbered_batch(Batch b) {
  uint64_t site = 900;
  const auto add = [&](const std::string& name, int group) {
    Batch::FloatColumn& c = b.float_columns.emplace_back();
    c.name = name;
    c.group = group;
    c.values.resize(b.offsets(c).back());
    for (int64_t i = 0; i < c.values.size(); ++i) {
      c.values[i] = static_cast<float>(ops::test::TestBed::number(site, i));
    }
    ++site;
  };
  for (const std::string& name : with_numbers({}, true).numeric.columns) {
    add(name, 0);
    add(NumericConfig::of_candidate(name), 1);
  }
  add("watched", 0);
  HostArray<float>& watched = b.float_columns.back().values;
  if (watched.size() > 1) watched[1] = std::numeric_limits<float>::quiet_NaN();
  return b;
}

/// A model in float or double whose parameters are all away from their initial values.
struct TinyRanker {
  explicit TinyRanker(const ModelConfig& config, DType dtype = DType::kF64)
      : bed(dtype == DType::kF64 ? Precision::kF64 : Precision::kF32),
        tables(tiny_tables(), Device::cpu(), dtype, 3),
        ranker(config, tables, Device::cpu(), dtype, 5) {
    uint64_t seed = 200;
    for (Parameter& p : ranker.parameters().all()) {
      const Tensor flat = p.value.reshape({p.value.elements()});
      dispatch_real(dtype, [&]<class T>(T) {
        int64_t i = 0;
        for (T& x : flat.span<T>())
          x += static_cast<T>(0.2 * ops::test::TestBed::number(seed, i++));
      });
      ++seed;
    }
  }
  Pass run(const Batch& batch, const PassOptions& options = {}) {
    ranker.parameters().zero_grads();
    return ranker.run(bed.exec, batch, options);
  }
  Pass run(PreparedBatch& prepared, const PassOptions& options) {
    ranker.parameters().zero_grads();
    return ranker.run(bed.exec, prepared, options);
  }
  ops::test::TestBed bed;
  sparse::Tables tables;
  Ranker ranker;
};

}  // namespace segue::model
