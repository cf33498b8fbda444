#include "train/presets.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"

namespace segue::train {
namespace {

RunConfig yambda_5b() {
  RunConfig c;
  model::Preset preset = model::preset("yambda-5b");
  c.model = std::move(preset.model);
  c.sparse = std::move(preset.tables);
  c.optimizer = preset.optimizer;
  return c;
}

/// The reference's dense model on one GPU: item, artist and album tables in full, the contextual
/// ones scaled alike until all take 70 GB; 256 samples of 1 to 3,276 tokens; ids by Zipf's law.
RunConfig dlrmv4_one_gpu() {
  RunConfig c = yambda_5b();
  constexpr double kTableBytes = 70e9;
  constexpr size_t kSequenceTables = 3;
  const auto is_sequence = [&](const std::string& table) {
    if (table == c.model.item.table) return true;
    for (const model::SequenceFeature& f : c.model.additional) {
      if (table == f.table) return true;
    }
    return false;
  };
  double whole = 0, scaled = 0;
  size_t sequence_tables = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const double bytes = 4.0 * static_cast<double>(t.rows * c.sparse.dim);
    (is_sequence(t.name) ? whole : scaled) += bytes;
    sequence_tables += is_sequence(t.name);
  }
  SEGUE_ASSERT(sequence_tables == kSequenceTables, "item, artist and album");
  const double factor = (kTableBytes - whole) / scaled;
  for (sparse::TableConfig& t : c.sparse.tables) {
    if (is_sequence(t.name)) continue;
    t.rows = static_cast<int64_t>(static_cast<double>(t.rows) * factor);
  }
  c.data.batch_size = 256;
  // Contextual tokens and the candidate come on top of the history.
  c.data.random.lengths.low = 0;
  c.data.random.lengths.high = 3277 - c.model.contextual_tokens() - c.data.random.candidates;
  c.train.steps = 1;
  c.train.precision = Precision::kBf16;
  c.train.device = "cuda";
  return c;
}

model::ModelConfig suite_model(int64_t most_items) {
  model::ModelConfig m;
  m.dim = 1024;
  m.heads = 4;
  m.qk_dim = m.v_dim = 256;
  m.layers = 8;
  m.hidden = 1024;
  m.head_hidden = 512;
  m.position_buckets = 8192;
  m.time_buckets = 0;
  m.input_dropout = m.dropout = 0.2;
  m.layer = model::LayerKind::kGated;
  m.tokens = model::TokenKind::kInterleaved;
  m.labels = model::LabelKind::kEveryItem;
  m.embedding_mlp = model::EmbeddingMlp::kRelu;
  m.postprocessor = model::PostprocessorKind::kL2;
  m.head = model::HeadKind::kDirect;
  m.head_precision = model::HeadPrecision::kTraining;  // as published
  m.attention.contextual_mask = true;
  m.item = {"item", "unused_candidate", "item"};
  m.contextual = {
      {"user_id", "user_id"}, {"user_age", "user_age"}, {"item_category", "item_category"}};
  // A set of eight bits where the suite looks up one of 100 rows: eight vectors of 16 side by side
  // are as wide as such a row.
  constexpr int kTasks = 8;
  m.action = {"action", {}, 16};
  for (int bit = 0; bit < kTasks; ++bit) {
    m.action.weights.push_back(int64_t{1} << bit);
    m.tasks.push_back({fmt::format("action_{}", bit), ops::TaskKind::kBinary, int64_t{1} << bit});
  }
  m.max_seq_len = m.sample_tokens(most_items, 0);
  return m;
}

/// The end-to-end suite of the other public trainer: 32 samples of a GPU, all of it on one.
RunConfig suite(const data::Distribution& lengths, int64_t most_items) {
  RunConfig c;
  c.model = suite_model(most_items);
  c.sparse.dim = 128;
  c.sparse.optimizer = ops::RowOptimizer::kAdam;
  constexpr int64_t kPublishedRows = 50'000'000;
  // Of the users' rows a sixteenth, which fits one GPU beside the items' and two moments of each.
  c.sparse.tables = {{"item", kPublishedRows},
                     {"user_id", kPublishedRows / 16},
                     {"user_age", 100},
                     {"item_category", 50}};
  c.optimizer.lr = c.optimizer.sparse_lr = 1e-3;
  c.optimizer.beta1 = 0.9;
  c.data.batch_size = 32;
  c.data.random.lengths = lengths;
  // The suite's ids follow Zipf's law with exponent 1.05 and have no end. Cut to the rows of a
  // table this exponent has as many different ids in a batch.
  c.data.random.ids = {data::DistributionKind::kZipfBounded, 0, 0, 0, 0, 0.95};
  c.train.steps = 1000;
  c.train.precision = Precision::kBf16;
  return c;
}

constexpr int64_t kFixedItems = 2048, kMostItems = 4096;
using Kind = data::DistributionKind;

RunConfig suite_fixed() {
  return suite({Kind::kUniform, kFixedItems, kFixedItems + 1}, kFixedItems);
}
RunConfig suite_zipf() { return suite({Kind::kZipf, 1, kMostItems, 0, 0, 1.2}, kMostItems); }
RunConfig suite_uniform() { return suite({Kind::kUniform, 1, kMostItems + 1}, kMostItems); }

struct Named {
  const char* name;
  RunConfig (*make)();
};
constexpr Named kPresets[] = {{"yambda-5b", yambda_5b},
                              {"dlrmv4-1gpu", dlrmv4_one_gpu},
                              {"hstu-suite-fixed", suite_fixed},
                              {"hstu-suite-zipf", suite_zipf},
                              {"hstu-suite-uniform", suite_uniform}};

}  // namespace

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> all;
    for (const Named& p : kPresets) all.emplace_back(p.name);
    return all;
  }();
  return kNames;
}

RunConfig preset_config(const std::string& name) {
  for (const Named& p : kPresets) {
    if (name == p.name) return p.make();
  }
  base::fail_config(fmt::format("preset `{}` is not known; there are: {}", name,
                                fmt::join(preset_names(), ", ")));
}

}  // namespace segue::train
