#include "model/dlrm.h"

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "model/dlrm_test_util.h"
#include "model/model_test_util.h"

namespace segue::model {
namespace {

using base::contains;

struct TinyDlrm {
  explicit TinyDlrm(const ModelConfig& config, DType dtype = DType::kF64)
      : bed(dtype == DType::kF64 ? Precision::kF64 : Precision::kF32),
        tables(tiny_dlrm_tables(), Device::cpu(), dtype, 3),
        model(config, tables.config()) {
    model.allocate(tables, Device::cpu(), dtype, 5);
  }
  Pass run(const Batch& batch, const PassOptions& options = {}) {
    model.parameters().zero_grads();
    return model.run(bed.exec, batch, options);
  }
  ops::test::TestBed bed;
  sparse::Tables tables;
  Dlrm model;
};

TEST(DlrmTest, GradientsMatchFiniteDifferences) {
  for (const Interaction interaction : {Interaction::kConcat, Interaction::kDot}) {
    for (const auto& [dense, numeric] :
         {std::pair(true, false), {false, false}, {false, true}, {true, true}}) {
      ModelConfig c = tiny_dlrm(interaction);
      if (!dense) c.dlrm.dense.clear();
      if (numeric) c.dlrm.numeric = {"price"};
      if (numeric && dense) {
        c.dlrm.forms = {{.column = "price", .shape = NumberShape::kBuckets, .bounds = {-0.2, 0.3}}};
      }
      TinyDlrm f(c);
      expect_gradients(f.model, f.bed.exec, tiny_dlrm_batch());
    }
  }
}

/// One row by hand: concatenated vectors through the top MLP.
TEST(DlrmTest, LogitsAreThoseOfPlainLoops) {
  TinyDlrm f(tiny_dlrm(Interaction::kConcat));
  const Batch batch = tiny_dlrm_batch();
  const Pass pass = f.run(batch, {.training = false});
  const auto layer = [&](const std::string& name, std::vector<double> x, bool relu) {
    const Tensor w = f.model.parameters().get(name + ".weight").value;
    const Tensor b = f.model.parameters().get(name + ".bias").value;
    std::vector<double> y;
    for (int64_t o = 0; o < w.size(0); ++o) {
      double sum = b.span<double>()[static_cast<size_t>(o)];
      for (size_t i = 0; i < x.size(); ++i) sum += w.row<double>(o)[i] * x[i];
      y.push_back(relu ? std::max(0.0, sum) : sum);
    }
    return y;
  };
  int64_t row = 0;
  for (size_t s = 0; s < 5; ++s) {
    const auto range = [&](const char* column) {
      const auto offsets = batch.offsets(batch.column(column));
      return std::pair(offsets[s], offsets[s + 1]);
    };
    const auto add = [&](const char* table, const char* column, int64_t begin, int64_t end,
                         std::vector<double>& to) {
      std::vector<double> sum(4, 0);
      const Tensor rows = f.tables.table(f.tables.id(table)).resident().weights;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t id = batch.column(column).values[i];
        if (id >= rows.size(0)) continue;  // no such row: zeros
        for (size_t c = 0; c < 4; ++c) sum[c] += rows.row<double>(id)[c];
      }
      to.insert(to.end(), sum.begin(), sum.end());
    };
    const auto [begin, end] = range("label");
    for (int64_t r = begin; r < end; ++r, ++row) {
      std::vector<double> x;
      for (size_t i = 0; i < 3; ++i) {
        x.push_back(batch.float_columns[0].values[static_cast<int64_t>(3 * s + i)]);
      }
      x = layer("bottom_mlp.2", layer("bottom_mlp.0", x, true), true);
      const auto [user, user_end] = range("user_id");
      const auto [event, event_end] = range("liked");
      add("user", "user_id", user, user_end, x);
      add("item", "liked", event, event_end, x);
      add("item", "candidate", r, r + 1, x);
      x = layer("top_mlp.4", layer("top_mlp.2", layer("top_mlp.0", x, true), true), false);
      for (size_t k = 0; k < 2; ++k) {
        EXPECT_NEAR(
            pass.logits[k * static_cast<size_t>(pass.num_labels) + static_cast<size_t>(row)], x[k],
            1e-12);
      }
    }
  }
  EXPECT_EQ(row, pass.num_labels);
}

/// Bags of things that have several values each: of the sample, of events and of candidates.
ModelConfig with_values(ModelConfig c) {
  c.dlrm.features.push_back({"taste", "user", FeatureOf::kSample, 3, 2});
  c.dlrm.features.push_back({"genre", "item", FeatureOf::kEvent, 1, 3});
  c.dlrm.features.push_back({"candidate_genre", "item", FeatureOf::kCandidate, 1, 3});
  return c;
}

/// Their columns; of the values from `first` on none is there.
Batch valued_batch(int64_t first = 4) {
  Batch batch = tiny_dlrm_batch();
  const auto add = [&](const std::string& name, const char* of, int64_t values) {
    for (int64_t k = 1; k <= values; ++k) {
      Batch::Column column;
      column.name = name + "_" + std::to_string(k);
      column.group = batch.column(of).group;
      for (const int64_t id : batch.column(of).values.span()) {
        column.values.push_back(k >= first ? 0 : k == 1 ? id % 8 + 1 : (id + 5 * k) % 4);
      }
      batch.columns.push_back(std::move(column));
    }
  };
  add("taste", "user_id", 2);
  add("genre", "liked", 3);
  add("candidate_genre", "candidate", 3);
  return batch;
}

TEST(DlrmTest, GradientsOfSeveralValuesMatchFiniteDifferences) {
  for (const Interaction interaction : {Interaction::kConcat, Interaction::kDot}) {
    TinyDlrm f(with_values(tiny_dlrm(interaction)));
    expect_gradients(f.model, f.bed.exec, valued_batch());
  }
}

TEST(DlrmTest, OneOfSeveralValuesIsAPlainBag) {
  ModelConfig several = with_values(tiny_dlrm(Interaction::kDot)), plain = several;
  for (size_t i = 3; i < 6; ++i) {
    plain.dlrm.features[i].column += "_1";
    plain.dlrm.features[i].values = 1;
  }
  TinyDlrm f(several), g(plain);
  EXPECT_EQ(f.run(valued_batch(2)).logits, g.run(valued_batch(2)).logits);
  const Pass all = f.run(valued_batch());
  EXPECT_NE(all.logits, g.run(valued_batch()).logits) << "the others count";
  Batch other = valued_batch();
  other.column("genre_2").group = other.column("candidate").group;
  other.column("genre_2").values.assign(other.column("candidate").values.span());
  EXPECT_TRUE(contains(base::error_of([&] { f.run(other); })->what(),
                       "column `genre_2` has other lengths than `genre_1`"));
}

TEST(DlrmTest, ThePublishedOneHasItsSize) {
  ModelConfig c;
  c.family = Family::kDlrm;
  c.tasks = {{"like"}};
  c.dlrm.features = {{"user", "user"}, {"item", "item"}, {"occupation", "occupation"}};
  sparse::TablesConfig tables;
  tables.dim = 8;
  tables.tables = {{"user", 943}, {"item", 1682}, {"occupation", 21}};
  const Dlrm model(c, tables);
  EXPECT_EQ(model.parameters().count(), 208 + 1601);
  const std::vector<int64_t> offsets = {0, 3, 6};
  EXPECT_EQ(model.flops(offsets, false), 2 * 3488);
}

TEST(DlrmTest, EmptyBatchesAreLegal) {
  TinyDlrm f(tiny_dlrm(Interaction::kDot));
  const Pass none = f.run(tiny_dlrm_batch(std::vector<std::vector<int64_t>>{}));
  EXPECT_EQ(none.loss, 0);
  EXPECT_EQ(none.num_labels, 0);
  const Pass unlabelled = f.run(tiny_dlrm_batch({{1, 1, 0}}));
  EXPECT_EQ(unlabelled.samples, 1);
  EXPECT_EQ(unlabelled.num_labels, 0);
}

TEST(DlrmTest, BatchesThatDoNotFitAreErrors) {
  TinyDlrm f(tiny_dlrm(Interaction::kConcat));
  Batch batch = tiny_dlrm_batch({{1, 1, 1}}, 2);
  EXPECT_TRUE(
      contains(base::error_of([&] { f.run(batch); })->what(), "2 values in column `dense`"));
  ModelConfig c = tiny_dlrm(Interaction::kConcat);
  c.dlrm.numeric = {"price"};
  TinyDlrm numeric(c);
  batch = tiny_dlrm_batch({{1, 1, 2}});
  batch.float_column("price").group = 0;
  batch.float_column("price").values.resize(1);
  EXPECT_TRUE(contains(base::error_of([&] { numeric.run(batch); })->what(),
                       "column `price` of model.dlrm.numeric has other lengths than `label`"));
}

TEST(DlrmTest, ConfigsThatDoNotFitSayWhatToChange) {
  const auto message = [](ModelConfig c) {
    return std::string(base::error_of([&] { Dlrm model(c, tiny_dlrm_tables()); })->what());
  };
  ModelConfig c = tiny_dlrm(Interaction::kDot);
  c.dlrm.bottom.back() = 3;
  EXPECT_TRUE(contains(message(c), "ends with 3 and table rows have 4"));
  c = tiny_dlrm(Interaction::kConcat);
  c.dlrm.features[1].table = "itm";
  EXPECT_TRUE(contains(message(c), "did you mean `item`?"));
  c.dlrm.features.clear();
  EXPECT_TRUE(contains(message(c), "model.dlrm.features is empty"));
  c = tiny_dlrm(Interaction::kConcat);
  c.dlrm.features[1].column = "user_id";
  EXPECT_TRUE(contains(message(c), "read by two features"));
}

TEST(GpuDlrmTest, FollowsTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Interaction interaction : {Interaction::kConcat, Interaction::kDot}) {
    const ModelConfig c = with_values(tiny_dlrm(interaction));
    TinyDlrm cpu(c, DType::kF32);
    const Pass expected = cpu.run(valued_batch());

    const Device device = Device::cuda();
    sparse::Tables tables(tiny_dlrm_tables(), device, DType::kF32, 3);
    Dlrm model(c, tables.config());
    model.allocate(tables, device, DType::kF32, 5);
    Arena arena(device, int64_t{64} << 20);
    const Stream stream(device);
    Exec exec;
    exec.arena = &arena;
    exec.stream = &stream;
    exec.device = device;
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      exec.precision = precision;
      const double tolerance = precision == Precision::kF32 ? 1e-5 : 3e-2;
      model.parameters().zero_grads(&stream);
      const Arena::Mark mark(arena);
      const Pass pass = model.run(exec, valued_batch(), {});
      EXPECT_NEAR(pass.loss, expected.loss, tolerance);
      ASSERT_EQ(pass.logits.size(), expected.logits.size());
      for (size_t i = 0; i < pass.logits.size(); ++i) {
        EXPECT_NEAR(pass.logits[i], expected.logits[i], tolerance) << i;
      }
      EXPECT_NEAR(std::sqrt(pass.gradient_squares), std::sqrt(expected.gradient_squares),
                  tolerance);
      EXPECT_NEAR(std::sqrt(pass.row_gradient_squares), std::sqrt(expected.row_gradient_squares),
                  tolerance);
    }
  }
}

}  // namespace
}  // namespace segue::model
