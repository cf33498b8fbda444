#include "ops/id_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/gpu_test_util.h"

namespace segue::ops {
namespace {

using test::ModeBed;
using test::Outputs;

/// Places of n ids among `rows`, some of them none; few rows have most of the ids.
std::vector<int32_t> some_places(int64_t n, int64_t rows) {
  std::vector<int32_t> places;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = base::splitmix64(static_cast<uint64_t>(i));
    const double u = static_cast<double>(bits >> 11) * 0x1p-53;
    places.push_back(bits % 17 == 0 ? -1
                                    : static_cast<int32_t>(u * u * u * static_cast<double>(rows)));
  }
  return places;
}

/// Two tables: places 0 ... 39 are rows of the first, the others of the second; one has no slot.
struct Case {
  std::vector<int64_t> first_slots, second_slots;
  Case() : first_slots(40), second_slots(60) {
    for (size_t i = 0; i < first_slots.size(); ++i) first_slots[i] = static_cast<int64_t>(79 - i);
    std::iota(second_slots.begin(), second_slots.end(), int64_t{3});
    first_slots[5] = -1;
  }
};

Outputs gather(ModeBed& bed, int64_t dim, DType wire) {
  const Case c;
  const Tensor first = bed.parameter(1, {80, dim}), second = bed.parameter(2, {70, dim});
  std::vector<int32_t> places = some_places(1001, 40), others = some_places(500, 60);
  for (int32_t& place : others) place += place < 0 ? 0 : 40;
  const Tensor to = bed.parameter(3, {1501, dim});
  const IdRows parts[] = {
      {first, bed.longs(c.first_slots), bed.ints(places), 0, to.rows(0, 1001)},
      {second, bed.longs(c.second_slots), bed.ints(others), 40, to.rows(1001, 500)}};
  gather_id_rows(bed.exec, parts, wire);
  return {{"rows", false, bed.values(to)}};
}

TEST(IdRowsTest, EveryIdGetsItsRow) {
  const Case c;
  ModeBed bed(Device::cpu(), Precision::kF32);
  const std::vector<double> rows = gather(bed, 6, DType::kF32)[0].values;
  const std::vector<double> first = bed.values(bed.parameter(1, {80, 6}));
  const std::vector<int32_t> places = some_places(1001, 40);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t slot = places[i] < 0 ? -1 : c.first_slots[static_cast<size_t>(places[i])];
    for (size_t k = 0; k < 6; ++k) {
      ASSERT_EQ(rows[i * 6 + k], slot < 0 ? 0 : first[static_cast<size_t>(slot) * 6 + k]);
    }
  }
}

Outputs update(ModeBed& bed, RowOptimizer kind, int64_t n, int64_t dim, DType wire, bool is_sorted,
               bool in_one_call, bool is_finite = true) {
  const Case c;
  const int64_t state = row_state_size(kind, dim);
  const std::vector<int32_t> places = some_places(n, 100);
  const Tensor gradients = bed.parameter(7, {n, dim}), index = bed.ints(places);
  std::vector<int32_t> keys(places.size()), items(places.size());
  sort_index(places, 100, keys, items);
  std::vector<int32_t> starts(101);
  for (int32_t row = 0; row <= 100; ++row) {
    starts[static_cast<size_t>(row)] =
        static_cast<int32_t>(std::ranges::lower_bound(keys, row) - keys.begin());
  }
  IdOrder order;
  if (is_sorted) order = {{bed.ints(keys), bed.ints(items)}, bed.ints(starts)};
  std::vector<TableUpdate> parts = {
      {bed.longs(c.first_slots), {}, bed.parameter(1, {80, dim}), bed.parameter(2, {80, state}, 0)},
      {bed.longs(c.second_slots),
       {},
       bed.parameter(3, {70, dim}),
       bed.parameter(4, {70, state}, 0)}};
  RowUpdateParams p;
  p.kind = kind;
  p.lr = 0.1;
  const Tensor finite = bed.scalar(is_finite ? 1 : std::nan(""));
  for (p.t = 1; p.t <= 2; ++p.t) {
    if (in_one_call) {
      update_tables_by_sums(bed.exec, p, gradients, index, order, parts, wire, finite);
      continue;
    }
    const Tensor sums = bed.parameter(8, {100, dim}, 0);
    segment_sum(bed.exec, gradients, index, sums);
    parts[0].gradients = sums.rows(0, 40);
    parts[1].gradients = sums.rows(40, 60);
    update_tables(bed.exec, p, parts, wire, finite);
  }
  Outputs out = {{"first", false, bed.values(parts[0].table)},
                 {"second", false, bed.values(parts[1].table)}};
  if (state > 0) out.push_back({"state", false, bed.values(parts[0].state)});
  return out;
}

constexpr RowOptimizer kAll[] = {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                 RowOptimizer::kSgd, RowOptimizer::kAdam};

TEST(IdRowsTest, AnUpdateBySumsIsASumAndAnUpdate) {
  for (const RowOptimizer kind : kAll) {
    ModeBed one(Device::cpu(), Precision::kF32), two(Device::cpu(), Precision::kF32);
    const Outputs a = update(one, kind, 900, 6, DType::kF16, true, true);
    const Outputs b = update(two, kind, 900, 6, DType::kF16, true, false);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].values, b[i].values) << a[i].name;
  }
}

class GpuIdRowsTest : public test::GpuTest {};

TEST_F(GpuIdRowsTest, GatherHasTheBitsOfTheCpu) {
  for (const DType wire : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const int64_t dim : {1, 6, 8, 128, 136, 264}) {
      test::expect_equal_to_cpu([&](ModeBed& bed) { return gather(bed, dim, wire); },
                                Precision::kF32);
    }
  }
}

/// A single pass (sorted, of many ids, 16 bytes at a time) gives what two ops give, up to how
/// products are rounded within a step, and the same every time.
TEST_F(GpuIdRowsTest, AnUpdateBySumsIsASumAndAnUpdate) {
  for (const RowOptimizer kind : kAll) {
    for (const int64_t n : {900, 5'000, 70'000}) {
      for (const int64_t dim : {6, 128, 264}) {
        for (const bool is_sorted : {true, false}) {
          const auto run = [&](bool in_one_call) {
            return test::run_in(Device::cuda(), Precision::kF32, [&](ModeBed& bed) {
              return update(bed, kind, n, dim, DType::kF32, is_sorted, in_one_call);
            });
          };
          const Outputs a = run(true), again = run(true), b = run(false);
          for (size_t i = 0; i < a.size(); ++i) {
            EXPECT_EQ(a[i].values, again[i].values) << a[i].name;
            double largest = 0;
            for (const double x : b[i].values) largest = std::max(largest, std::abs(x));
            EXPECT_LE(test::largest_difference(a[i].values, b[i].values), 0x1p-20 * largest)
                << a[i].name << ", " << n << " x " << dim << ", optimizer "
                << static_cast<int>(kind);
          }
        }
      }
    }
  }
}

TEST_F(GpuIdRowsTest, NothingChangesUnlessAllIsFinite) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  const std::vector<double> before = bed.values(bed.parameter(1, {80, 64}));
  const Outputs out = update(bed, RowOptimizer::kAdam, 5'000, 64, DType::kF32, true, true, false);
  EXPECT_EQ(out[0].values, before);
}

}  // namespace
}  // namespace segue::ops
