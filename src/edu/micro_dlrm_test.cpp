#include "edu/micro_dlrm.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "edu/training.h"

namespace segue::edu {
namespace {

/// A small workload with separate tables, or one hashed one with bags of three.
Workload small(bool hashed) {
  if (!hashed) return micro_dlrm(8);
  Workload w = micro_dlrm_dram(Keys::kUniform, 97, 8, 3, 8);
  w.top = 6;
  return w;
}

class EduModelTest : public testing::TestWithParam<bool> {
 protected:
  void make(Precision precision) {
    workload_ = small(GetParam());
    const DType dtype = precision == Precision::kF64 ? DType::kF64 : DType::kF32;
    memory_ = std::make_unique<TableMemory>(
        Device::cpu(), workload_.table_bytes() * size_of(dtype) / 4, false, dtype);
    model_ = std::make_unique<MicroDlrm>(workload_, *memory_, 7, precision);
    fill_table();
    pool_ = std::make_unique<BatchPool>(workload_, Device::cpu(), dtype);
    for (uint64_t seed = 1; seed < 4; ++seed) pool_->add_random(seed, 1000);
  }
  void fill_table() {
    Draws draw(11, 1);
    const Tensor& table = model_->table();
    for (int64_t i = 0; i < table.elements(); ++i) {
      const double value = 0.3 * draw.normal();
      if (table.dtype == DType::kF64)
        table.ptr<double>()[i] = value;
      else
        table.ptr<float>()[i] = static_cast<float>(value);
    }
  }

  Workload workload_;
  std::unique_ptr<TableMemory> memory_;
  std::unique_ptr<MicroDlrm> model_;
  std::unique_ptr<BatchPool> pool_;
};

double value_at(const Tensor& t, int64_t i) {
  return static_cast<double>(static_cast<const float*>(t.data)[i]);
}

/// x W^T + b, ReLU if asked, in double.
std::vector<double> layer(const std::vector<double>& x, const model::Parameter& weight,
                          const model::Parameter& bias, bool relu) {
  std::vector<double> y;
  for (int64_t o = 0; o < weight.shape[0]; ++o) {
    double sum = value_at(bias.value, o);
    for (size_t i = 0; i < x.size(); ++i) {
      sum += value_at(weight.value, o * weight.shape[1] + static_cast<int64_t>(i)) * x[i];
    }
    y.push_back(relu ? std::max(sum, 0.0) : sum);
  }
  return y;
}

TEST_P(EduModelTest, ForwardIsThatOfPlainLoopsInDouble) {
  make(Precision::kF32);
  const Batch& batch = (*pool_)[0];
  std::vector<float> predictions(static_cast<size_t>(workload_.batch));
  model_->predict(batch, predictions);
  model::Parameters& p = model_->parameters();
  for (int64_t s = 0; s < workload_.batch; ++s) {
    std::vector<double> x;
    for (int64_t d = 0; d < kDense; ++d)
      x.push_back(static_cast<double>(batch.dense.row<float>(s)[d]));
    x = layer(x, p.get("bottom.0.weight"), p.get("bottom.0.bias"), true);
    x = layer(x, p.get("bottom.2.weight"), p.get("bottom.2.bias"), true);
    for (int64_t bag = 0; bag < workload_.features; ++bag) {
      std::vector<double> sum(static_cast<size_t>(workload_.width), 0.0);
      const int64_t* keys = batch.keys.row<int64_t>(bag) + s * workload_.pooling;
      std::vector<int64_t> rows(static_cast<size_t>(workload_.pooling));
      rows_of_keys(workload_, bag, {keys, rows.size()}, rows);
      for (const int64_t row : rows) {
        for (size_t c = 0; c < sum.size(); ++c) {
          sum[c] += static_cast<double>(model_->table().row<float>(row)[c]);
        }
      }
      x.insert(x.end(), sum.begin(), sum.end());
    }
    x = layer(x, p.get("top.0.weight"), p.get("top.0.bias"), true);
    x = layer(x, p.get("top.2.weight"), p.get("top.2.bias"), true);
    x = layer(x, p.get("top.4.weight"), p.get("top.4.bias"), false);
    EXPECT_NEAR(static_cast<double>(predictions[static_cast<size_t>(s)]), 1 / (1 + std::exp(-x[0])),
                1e-5);
  }
}

TEST_P(EduModelTest, GradientsAreThoseOfFiniteDifferences) {
  make(Precision::kF64);
  const Batch& batch = (*pool_)[0];
  const Tensor& table = model_->table();
  std::vector<double> rows(static_cast<size_t>(table.elements()), 0);
  const Tensor row_gradients(rows.data(), DType::kF64, Device::cpu(),
                             {table.size(0), table.size(1)});
  model_->parameters().zero_grads();
  const auto samples = static_cast<double>(workload_.batch);
  const double loss = model_->accumulate(batch, samples, row_gradients);
  EXPECT_NEAR(loss, model_->loss(batch), 1e-12);

  constexpr double kStep = 1e-5;
  const auto check = [&](double* values, const double* gradients, int64_t count, int64_t stride) {
    for (int64_t i = 0; i < count; i += stride) {
      const double before = values[i];
      values[i] = before + kStep;
      const double up = model_->loss(batch);
      values[i] = before - kStep;
      const double down = model_->loss(batch);
      values[i] = before;
      EXPECT_NEAR(gradients[i], (up - down) / (2 * kStep), 1e-7) << i;
    }
  };
  const Tensor values = model_->parameters().values(), grads = model_->parameters().grads();
  check(values.ptr<double>(), grads.ptr<double>(), values.elements(), 7);
  // Rows that were looked up, and some that were not.
  int64_t touched = 0;
  for (size_t i = 0; i < rows.size(); ++i) touched += rows[i] != 0 ? 1 : 0;
  EXPECT_GT(touched, workload_.width);
  check(table.ptr<double>(), rows.data(), table.elements(), GetParam() ? 3 : 31);
}

TEST_P(EduModelTest, AStepIsItsTwoParts) {
  make(Precision::kF32);
  model_->step((*pool_)[0], {});
  const Tensor& table = model_->table();
  const std::vector<float> whole(table.ptr<float>(), table.ptr<float>() + table.elements());
  const std::vector<float> dense(model_->parameters().values().span<float>().begin(),
                                 model_->parameters().values().span<float>().end());
  make(Precision::kF32);
  std::vector<float> rows(whole.size(), 0);
  const Tensor row_gradients(rows.data(), DType::kF32, Device::cpu(),
                             {model_->table().size(0), model_->table().size(1)});
  model_->parameters().zero_grads();
  model_->accumulate((*pool_)[0], static_cast<double>(workload_.batch), row_gradients);
  model_->apply(row_gradients, {});
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(model_->table().ptr<float>()[i], whole[i]) << i;
  }
  for (size_t i = 0; i < dense.size(); ++i) {
    EXPECT_EQ(model_->parameters().values().span<float>()[i], dense[i]) << i;
  }
}

TEST_P(EduModelTest, BitsDoNotDependOnThreads) {
  std::vector<double> losses[2];
  for (const int threads : {1, 3}) {
    base::set_num_threads(threads);
    make(Precision::kF32);
    for (size_t i = 0; i < 9; ++i) losses[threads / 3].push_back(model_->step((*pool_)[i], {}));
  }
  base::set_num_threads(0);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_LT(losses[0].back(), losses[0].front());
}

INSTANTIATE_TEST_SUITE_P(Tables, EduModelTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Hashed" : "Separate"; });

TEST(EduTrainingTest, RanksTrainAsOneDoes) {
  const Dataset data = make_dataset(make_ratings(1, 20'000), 1);
  const DistributedResult r = compare_distributed(data, 4, 100, 256, 1);
  EXPECT_LT(r.largest_difference, 1e-5);
  EXPECT_NEAR(r.loss_ranks, r.loss_one, 1e-5);
  EXPECT_LT(r.loss_one, 0.69);
  EXPECT_EQ(r.parameters, 22'977);
}

TEST(EduTrainingTest, MadeUpDataIsLearnedToItsTruth) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Dataset data = make_dataset(make_ratings(seed), seed);
    const Workload w = micro_dlrm(512);
    const TableMemory memory(Device::cpu(), w.table_bytes(), false);
    MicroDlrm model(w, memory, seed);
    const TrainResult r = train(model, w, data, {.seed = seed});
    EXPECT_GE(r.way(), 0.95) << r.accuracy << " of " << r.majority << " to " << r.bayes;
    EXPECT_LE(r.accuracy, r.bayes + 0.01);
    EXPECT_GT(r.cpu_seconds, 0);
  }
}

TEST(EduBatchesTest, ZipfDrawsAreSkewed) {
  ZipfDraws even(1, 1000, 0), skewed(1, 1000, 1.1);
  int64_t of_even = 0, of_skewed = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int64_t a = even.next(), b = skewed.next();
    ASSERT_TRUE(a >= 0 && a < 1000 && b >= 0 && b < 1000);
    of_even += a < 10 ? 1 : 0;
    of_skewed += b < 10 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(of_even) / 20'000, 0.01, 0.004);
  EXPECT_GT(of_skewed, 30 * of_even);
}

TEST(EduBatchesTest, DistinctRowsAreCountedOnce) {
  const Workload w = micro_dlrm_faithful(Keys::kHashedIds, 1000);
  const Dataset data = make_dataset(make_ratings(1, 20'000), 1);
  BatchPool pool(w, Device::cpu());
  pool.add_epoch(data.train, 1);
  EXPECT_EQ(pool.size(), 16U);
  EXPECT_LE(pool.distinct(), 2'643);
  EXPECT_GT(pool.distinct(), 2'000);
}

}  // namespace
}  // namespace segue::edu
