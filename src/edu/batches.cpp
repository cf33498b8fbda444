#include "edu/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "edu/key_hash.h"
#include "ops/bags.h"
#include "sparse/dedup.h"

namespace segue::edu {

void rows_of_keys(const Workload& workload, int64_t bag, std::span<const int64_t> keys,
                  std::span<int64_t> rows) {
  constexpr int64_t kGrain = 2048;
  const auto fill = [&](const auto& row_of) {
    base::parallel_for(std::ssize(keys), kGrain, [=](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        rows[i] = keys[i] < 0 ? -1 : row_of(keys[i]);
      }
    });
  };
  if (!workload.hashed()) {
    return fill([first = workload.first_row(bag)](int64_t key) { return first + key; });
  }
  fill([seed = bag_seed(bag), all = workload.rows](int64_t key) {
    return hash_row(key, seed, all);
  });
}

ZipfDraws::ZipfDraws(uint64_t seed, int64_t range, double exponent)
    : draw_(seed, 5), range_(range), exponent_(exponent) {}

/// By the inverse of the distribution's continuous form.
int64_t ZipfDraws::next() {
  if (exponent_ == 0) return draw_.below(range_);
  const double n = static_cast<double>(range_), u = draw_.uniform(), q = 1 - exponent_;
  const double x =
      std::abs(q) < 1e-9 ? std::pow(n, u) : std::pow(1 + u * (std::pow(n, q) - 1), 1 / q);
  return std::clamp<int64_t>(static_cast<int64_t>(x) - 1, 0, range_ - 1);
}

BatchPool::BatchPool(const Workload& workload, Device device, DType dtype)
    : workload_(workload), device_(device), dtype_(dtype), stream_(device) {
  // Address space on the CPU, where only what is touched counts.
  const int64_t bytes = device.is_cpu() ? int64_t{64} << 30 : int64_t{1} << 30;
  arena_ = std::make_unique<Arena>(device, bytes);
  std::vector<int64_t> offsets(static_cast<size_t>(workload.batch) + 1);
  for (size_t b = 0; b < offsets.size(); ++b)
    offsets[b] = static_cast<int64_t>(b) * workload.pooling;
  std::vector<int32_t> bag(static_cast<size_t>(workload.batch * workload.pooling));
  ops::bag_of_each(offsets, bag);
  offsets_ = put(std::span<const int64_t>(offsets));
  bag_ = put(std::span<const int32_t>(bag));
}

template <class T>
Tensor BatchPool::put(std::span<const T> values) {
  const Tensor t = arena_->tensor(kDTypeOf<T>, {static_cast<int64_t>(values.size())});
  copy_bytes(t.data, device_, values.data(), Device::cpu(), values.size_bytes(), &stream_);
  stream_.synchronize();
  return t;
}

Tensor BatchPool::put_real(std::span<const float> values) {
  if (dtype_ == DType::kF32) return put(values);
  const std::vector<double> wide(values.begin(), values.end());
  return put(std::span<const double>(wide));
}

void BatchPool::place(const Host& host) {
  const int64_t ids = workload_.batch * workload_.pooling;
  Batch b;
  b.dense = put_real(host.dense).reshape({workload_.batch, kDense});
  b.labels = put_real(host.labels);
  b.offsets = offsets_;
  b.bag = bag_;
  if (device_.is_cuda()) {
    place_for_gpu(host, b);
  } else {
    b.keys = put(std::span<const int64_t>(host.keys)).reshape({workload_.features, ids});
  }
  batches_.push_back(std::move(b));
  keys_.push_back(host.keys);
}

std::vector<int64_t> BatchPool::rows_of(const std::vector<int64_t>& keys) const {
  std::vector<int64_t> rows(keys.size());
  const size_t ids = keys.size() / static_cast<size_t>(workload_.features);
  for (size_t f = 0; f < static_cast<size_t>(workload_.features); ++f) {
    rows_of_keys(workload_, static_cast<int64_t>(f), std::span(keys).subspan(f * ids, ids),
                 std::span(rows).subspan(f * ids, ids));
  }
  return rows;
}

void BatchPool::place_for_gpu(const Host& host, Batch& batch) {
  const auto ids = static_cast<size_t>(workload_.batch * workload_.pooling);
  const std::vector<int64_t> rows = rows_of(host.keys);
  const sparse::Distinct found = sparse::distinct(rows, /*skip_negative=*/true);
  const std::span<const int32_t> inverse = found.inverse.span();
  batch.rows =
      put(std::span<const int64_t>(rows)).reshape({workload_.features, static_cast<int64_t>(ids)});
  batch.distinct = put(std::span<const int64_t>(found.values.span()));
  std::vector<int32_t> keys(ids), items(ids);
  for (size_t f = 0; f < static_cast<size_t>(workload_.features); ++f) {
    const std::span<const int32_t> of_bag = inverse.subspan(f * ids, ids);
    ops::sort_index(of_bag, batch.distinct.size(0), keys, items);
    batch.inverse.push_back(put(of_bag));
    batch.sorted.push_back(
        {put(std::span<const int32_t>(keys)), put(std::span<const int32_t>(items))});
  }
}

void BatchPool::add(const Samples& samples, std::span<const int64_t> which) {
  SEGUE_ASSERT(static_cast<int64_t>(which.size()) == workload_.batch, "a batch of other samples");
  const bool crossed = workload_.keys == Keys::kCross;
  SEGUE_ASSERT(!crossed || samples.history == workload_.pooling, "histories of another length");
  const std::vector<int64_t>& from = crossed ? samples.crosses : samples.ids;
  const int64_t each = workload_.pooling;
  Host host;
  for (const int64_t s : which) {
    const auto dense = samples.dense.begin() + s * kDense;
    host.dense.insert(host.dense.end(), dense, dense + kDense);
    host.labels.push_back(samples.labels[static_cast<size_t>(s)]);
  }
  for (int64_t f = 0; f < workload_.features; ++f) {
    for (const int64_t s : which) {
      const auto key = from.begin() + (f * samples.count() + s) * each;
      host.keys.insert(host.keys.end(), key, key + each);
    }
  }
  place(host);
}

void BatchPool::add_epoch(const Samples& samples, uint64_t seed, int64_t most) {
  std::vector<int64_t> order(static_cast<size_t>(samples.count()));
  std::iota(order.begin(), order.end(), int64_t{0});
  Draws draw(seed, 6);
  draw.shuffle(order);
  const int64_t whole = samples.count() / workload_.batch;
  for (int64_t b = 0; b < (most > 0 ? std::min(most, whole) : whole); ++b) {
    add(samples, std::span(order).subspan(static_cast<size_t>(b * workload_.batch),
                                          static_cast<size_t>(workload_.batch)));
  }
}

void BatchPool::add_random(uint64_t seed, int64_t range, double exponent) {
  Host host;
  Draws draw(seed, 7);
  for (int64_t i = 0; i < workload_.batch * kDense; ++i) {
    host.dense.push_back(static_cast<float>(draw.uniform() - 0.5));
  }
  for (int64_t i = 0; i < workload_.batch; ++i)
    host.labels.push_back(draw.uniform() < 0.5 ? 0.0F : 1.0F);
  ZipfDraws ids(seed, range, exponent);
  const int64_t limits[] = {kUserRows, kItemRows, kOccupationRows};
  for (int64_t i = 0; i < workload_.lookups(); ++i) {
    const int64_t key = ids.next();
    // Separate tables have rows of their own number.
    const int64_t bag = i / (workload_.batch * workload_.pooling);
    host.keys.push_back(workload_.hashed() ? key : key % limits[bag]);
  }
  place(host);
}

double BatchPool::lookups_per_batch() const {
  int64_t count = 0;
  for (const std::vector<int64_t>& keys : keys_) {
    count += std::ranges::count_if(keys, [](int64_t key) { return key >= 0; });
  }
  return static_cast<double>(count) / static_cast<double>(keys_.size());
}

double BatchPool::distinct_per_batch() const {
  double sum = 0;
  // A few of them say it.
  const size_t looked_at = std::min<size_t>(4, keys_.size());
  for (size_t i = 0; i < looked_at; ++i) {
    sum += static_cast<double>(sparse::distinct(rows_of(keys_[i]), true).values.size());
  }
  return sum / static_cast<double>(looked_at);
}

int64_t BatchPool::distinct() const {
  std::vector<bool> touched(static_cast<size_t>(workload_.rows), false);
  int64_t count = 0;
  for (const std::vector<int64_t>& keys : keys_) {
    for (const int64_t row : rows_of(keys)) {
      if (row < 0 || touched[static_cast<size_t>(row)]) continue;
      touched[static_cast<size_t>(row)] = true;
      ++count;
    }
  }
  return count;
}

}  // namespace segue::edu
