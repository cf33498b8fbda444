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
  int64_t dim_, tokens_, rows_, distinct_ = 0;
  std::vector<int64_t> ids_;
};

}  // namespace

void bench_embedding(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  EmbeddingBench(settings, report).run();
}

}  // namespace segue::bench
