#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_util.h"
#include "model/ranker.h"
#include "model/ranker_test_util.h"

namespace segue::model {
namespace {

/// The artists of items 0 to 6, which are those that tiny_batch() plays.
constexpr int32_t kArtists[] = {0, 1, 2, 3, 0, 1, 2};

/// The same samples; artists of played items are left to be made from the items.
Batch with_attribute(const Batch& from) {
  Batch batch;
  for (const Batch::Group& group : from.groups) batch.add_group(group.name);
  for (const Batch::Column& column : from.columns) {
    if (column.name != "artist") batch.add_column(column.name, column.group);
  }
  for (size_t g = 0; g < from.groups.size(); ++g) {
    batch.groups[g].offsets.assign(from.groups[g].offsets.span());
  }
  for (Batch::Column& column : batch.columns) {
    column.values.assign(from.column(column.name).values.span());
  }
  batch.sample_index.assign(from.sample_index.span());
  batch.global_samples = from.global_samples;
  batch.add_attribute("artist", 0, kArtists);
  batch.validate();
  return batch;
}

std::vector<double> results(const ModelConfig& config, const Batch& batch) {
  TinyRanker f(config);
  const Pass pass = f.run(batch);
  std::vector<double> out{pass.loss};
  out.insert(out.end(), pass.logits.begin(), pass.logits.end());
  for (const Tensor& t : pass.row_gradients) {
    if (t) out.insert(out.end(), t.span<double>().begin(), t.span<double>().end());
  }
  return out;
}

TEST(RankerPrepareTest, AttributesMadeFromItemsEqualAttributesOfEveryEvent) {
  Batch decided = tiny_batch(), contradicted = tiny_batch();
  const std::span<const int64_t> items = decided.column("candidate").values.span();
  for (size_t c = 0; c < items.size(); ++c) {
    // Items beyond those played are known from the candidates alone.
    const int64_t artist = kArtists[std::min<size_t>(static_cast<size_t>(items[c]), 6)];
    decided.column("candidate_artist").values[static_cast<int64_t>(c)] = artist;
    contradicted.column("candidate_artist").values[static_cast<int64_t>(c)] = 8 - artist;
  }
  ModelConfig every_event = tiny_config();
  every_event.identities.distinct_rows = false;
  for (const Batch& batch : {std::cref(decided), std::cref(contradicted)}) {
    for (const ModelConfig& config : {tiny_config(), tiny_gated_config(), every_event}) {
      EXPECT_EQ(results(config, with_attribute(batch)), results(config, batch));
    }
    const std::vector<double> found = results(tiny_config(), batch);
    const std::vector<double> expected = results(every_event, batch);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
  }
}

TEST(RankerPrepareTest, DistinctItemsAreCountedWhereTheyHaveNoRow) {
  sparse::TablesConfig config = tiny_tables();
  config.tables[0].rows = 3;
  config.out_of_range = sparse::OutOfRange::kClamp;
  const Batch batch = tiny_batch();
  int64_t outside = 0;
  for (const char* column : {"item", "candidate"}) {
    outside += std::ranges::count_if(batch.column(column).values.span(),
                                     [](int64_t id) { return id >= 3; });
  }
  sparse::Tables tables(config, Device::cpu(), DType::kF64, 1);
  Ranker ranker(tiny_config(), tables, Device::cpu(), DType::kF64, 1);
  const std::unique_ptr<PreparedBatch> prepared = ranker.new_batch();
  ranker.prepare(batch, 1 << 20, sparse::Mode::kTraining, *prepared);
  EXPECT_EQ(tables.out_of_range_counts()[0], outside);
  EXPECT_EQ(prepared->ticket.distinct_rows(tables.id("item")), 3);
}

TEST(RankerPrepareTest, ColumnsOfOtherLengthsAreRefused) {
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<Change> changes = {[](ModelConfig& c) { c.additional[0].history = "tags"; },
                                       [](ModelConfig& c) { c.additional[0].candidate = "tags"; },
                                       [](ModelConfig& c) { c.action.history = "tags"; },
                                       [](ModelConfig& c) { c.history_timestamp = "tags"; },
                                       [](ModelConfig& c) { c.candidate_timestamp = "tags"; },
                                       [](ModelConfig& c) { c.candidate_label = "tags"; }};
  for (const Change& change : changes) {
    ModelConfig config = tiny_config();
    config.contextual.clear();  // `tags` is free for something else
    EXPECT_GT(TinyRanker(config).run(tiny_batch()).samples, 0);
    change(config);
    TinyRanker f(config);
    const std::string message =
        base::message_of(ErrorCode::kInvalidArgument, [&] { f.run(tiny_batch()); });
    EXPECT_TRUE(base::contains(message, "column `tags` has other lengths than")) << message;
  }
}

}  // namespace
}  // namespace segue::model
