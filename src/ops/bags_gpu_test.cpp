#include "ops/bags.h"
#include "ops/gpu_test_util.h"
#include "ops/interaction.h"

namespace segue::ops {
namespace {

using test::expect_equal_to_cpu;
using test::expect_like_cpu;
using test::ModeBed;
using test::Outputs;
using GpuBagsTest = test::GpuTest;
using GpuInteractionTest = test::GpuTest;

struct Bags {
  std::vector<int32_t> index, bag;
  std::vector<int64_t> offsets = {0};
};

/// Every third bag is empty, others have up to `longest` ids in [-1, rows).
Bags make_bags(int64_t bags, int64_t rows, uint64_t longest) {
  Bags made;
  for (int64_t b = 0; b < bags; ++b) {
    const uint64_t bits = base::splitmix64(static_cast<uint64_t>(b));
    const uint64_t length = b % 3 == 2 ? 0 : bits % longest + 1;
    for (uint64_t i = 0; i < length; ++i) {
      const uint64_t id = base::splitmix64(bits + i) % static_cast<uint64_t>(rows + 1);
      made.index.push_back(static_cast<int32_t>(id) - 1);
    }
    made.offsets.push_back(static_cast<int64_t>(made.index.size()));
  }
  made.bag.resize(made.index.size());
  bag_of_each(made.offsets, made.bag);
  return made;
}

TEST_F(GpuBagsTest, SumsInTheOrderOfTheCpu) {
  for (const int64_t columns : {512, 24, 7, 1}) {
    for (const int64_t count : {0, 1, 700}) {
      for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
        const Bags bags = make_bags(count, 40, 30);
        expect_equal_to_cpu(
            [&](ModeBed& bed) -> Outputs {
              const Tensor from = bed.activation(1, {40, 2 * columns}).columns(columns, columns);
              const Tensor rows = bed.parameter(2, {40, columns});
              const Tensor y = bed.activation(3, {count, columns + 8}).columns(8, columns);
              const Tensor from_floats = bed.activation(4, {count, columns});
              const Tensor index = bed.ints(bags.index), offsets = bed.longs(bags.offsets);
              bag_sum_forward(bed.exec, from, index, offsets, y);
              bag_sum_forward(bed.exec, rows, index, offsets, from_floats);
              return {{"y", false, bed.values(y)}, {"from floats", false, bed.values(from_floats)}};
            },
            precision);
      }
    }
  }
}

TEST_F(GpuBagsTest, Backward) {
  for (const int64_t columns : {64, 7}) {
    for (const int64_t count : {0, 900}) {
      const Bags bags = make_bags(count, 40, 12);
      expect_like_cpu([&](ModeBed& bed) -> Outputs {
        const Tensor dy = bed.activation(1, {count, columns});
        const Tensor dfrom = bed.parameter(2, {40, columns});
        bag_sum_backward(bed.exec, dy, bed.ints(bags.index), bed.ints(bags.bag), dfrom);
        return {{"dfrom", true, bed.values(dfrom)}};
      });
    }
  }
}

TEST_F(GpuInteractionTest, DotProducts) {
  for (const int64_t vectors : {1, 2, 4, 27}) {
    for (const int64_t dim : {8, 13, 128}) {
      for (const int64_t rows : {0, 1, 600}) {
        expect_like_cpu([&](ModeBed& bed) -> Outputs {
          const int64_t in = vectors * dim, out = dot_interaction_columns(vectors, dim);
          const Tensor x = bed.activation(1, {rows, in + 3}).columns(3, in);
          const Tensor y = bed.activation(2, {rows, out + 1}).columns(1, out);
          const Tensor dy = bed.activation(3, {rows, out}), dx = bed.activation(4, {rows, in});
          dot_interaction_forward(bed.exec, x, vectors, y);
          dot_interaction_backward(bed.exec, dy, x, vectors, dx);
          return {{"y", false, bed.values(y)}, {"dx", true, bed.values(dx)}};
        });
      }
    }
  }
}

}  // namespace
}  // namespace segue::ops
