#include <limits>

#include "base/rng.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "data/synth/distribution.h"
#include "ops/optimizer.h"
#include "ops/rows.h"
#include "sparse/dedup.h"

namespace segue::bench {
namespace {

constexpr double kZipf = 1.2;

int64_t table_rows(const Settings& settings, Device device) {
  if (settings.table_rows > 0) return settings.table_rows;
  return device.is_cuda() ? int64_t{8} << 20 : int64_t{1} << 17;  // 17 GB and 0.3 GB at width 512
}

/// One id for every token of the batch, by Zipf's law over permuted ranks.
std::vector<int64_t> token_ids(int64_t tokens, int64_t rows) {
  const data::Sampler sampler({data::DistributionKind::kZipfBounded, 0, rows, 0, 0, kZipf});
  std::vector<int64_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = sampler(1, i);
  return ids;
}

/// As a hash gives them: every id all over 64 bits, as often as Zipf's law says.
std::vector<int64_t> hashed_ids(int64_t count) {
  std::vector<int64_t> ids = token_ids(count, int64_t{1} << 30);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(id)));
  }
  return ids;
}

class EmbeddingBench {
 public:
  EmbeddingBench(const Settings& settings, Report& report)
      : repeats_(settings.repeats),
        report_(report),
        w_(report.device()),
        dim_(settings.layer.dim),
        tokens_(settings.layer.offsets().back()),
        rows_(table_rows(settings, report.device())),
        ids_(token_ids(tokens_, rows_)) {}

  void run() {
    dedup();
    if (w_.exec.device.is_cuda()) {
      dedup_on_device("dedup on the device", ids_, {0, rows_ - 1});
      for (const int64_t n : {int64_t{1} << 20, int64_t{1} << 22}) {
        const sparse::IdRange all{std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max()};
        dedup_on_device("dedup on the device, ids of 64 bits", hashed_ids(n), all);
      }
    }
    const sparse::Distinct found = sparse::distinct(ids_);
    distinct_ = found.values.size();
    const Tensor table = w_.zero_parameter({rows_, dim_});
    const Tensor state = w_.zero_parameter({rows_, 1});
    const Tensor ids = w_.placed<int64_t>(found.values.span());
    const Tensor inverse = w_.placed<int32_t>(found.inverse.span());
    const Tensor token_gradients = w_.random({tokens_, dim_}, "gradients", 1e-3);
    const Tensor gathered = w_.zeros({distinct_, dim_});
    const Tensor sums = w_.zero_parameter({distinct_, dim_});
    const int64_t element = size_of(w_.exec.dtype()), wide = size_of(w_.exec.parameter_dtype());

    add("gather of distinct rows", distinct_, distinct_ * dim_ * (wide + element),
        [&] { ops::gather_rows(w_.exec, table, ids, gathered); });
    add("sum of token gradients", tokens_, dim_ * (tokens_ * element + 2 * distinct_ * wide),
        [&] { ops::segment_sum(w_.exec, token_gradients, inverse, sums); });
    ops::RowUpdateParams p;
    p.lr = 1e-3;
    // Gradient in, row in and out; the state of a row is one number.
    add("row-wise Adagrad", distinct_, distinct_ * (3 * dim_ + 2) * wide, [&] {
      ops::rowwise_update(w_.exec, p, {ids, sums, table, state});
    });
  }

 private:
  /// On the host, by all threads, wherever the rest runs.
  void dedup() {
    Result r = result("dedup on the host", tokens_, tokens_ * (8 + 4));
    r.item_name = "ids";
    r.timing = measure(repeats_, [&] { sparse::distinct(ids_); });
    distinct_ = 0;
    report_.add(r);
  }

  void dedup_on_device(const char* name, std::span<const int64_t> ids,
                       const sparse::IdRange& range) {
    const auto n = std::ssize(ids);
    const Tensor input = dedup_.input(n, w_.exec.device);
    copy_bytes(input.data, input.device, ids.data(), Device::cpu(), ids.size_bytes(),
               w_.exec.stream);
    w_.exec.stream->synchronize();
    Result r = result(name, n, n * (8 + 4));
    r.item_name = "ids";
    r.timing = measure(w_.exec, repeats_, [&] {
      dedup_.find(input, range, /*skip_negative=*/false, *w_.exec.stream);
    });
    r.shape = {{"table_rows", 0}, {"dim", 0}, {"tokens", n}, {"distinct", dedup_.count()}};
    report_.add(r);
  }

  template <class Run>
  void add(const char* name, int64_t rows, int64_t bytes, Run run) {
    Result r = result(name, rows, bytes);
    r.timing = measure(w_.exec, repeats_, run);
    report_.add(r);
  }
  Result result(const char* name, int64_t rows, int64_t bytes) const {
    Result r;
    r.name = name;
    r.shape = {{"table_rows", rows_}, {"dim", dim_}, {"tokens", tokens_}, {"distinct", distinct_}};
    r.items = static_cast<double>(rows);
    r.bytes = static_cast<double>(bytes);
    return r;
  }

  Repeats repeats_;
  Report& report_;
  Workspace w_;
  sparse::DeviceDedup dedup_;
  int64_t dim_, tokens_, rows_, distinct_ = 0;
  std::vector<int64_t> ids_;
};

}  // namespace

void bench_embedding(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  EmbeddingBench(settings, report).run();
}

}  // namespace segue::bench
