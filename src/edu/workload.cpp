#include "edu/workload.h"

#include <utility>

#include "base/error.h"

namespace segue::edu {

int64_t Workload::first_row(int64_t bag) const {
  SEGUE_ASSERT(!hashed() && bag >= 0 && bag < 3, "separate tables: user, item, occupation");
  return bag == 0 ? 0 : bag == 1 ? kUserRows : kUserRows + kItemRows;
}

int64_t Workload::bottom_parameters() const {
  return kDense * kBottom + kBottom + kBottom * kBottom + kBottom;
}

int64_t Workload::top_parameters() const {
  const int64_t half = top / 2;
  return concat_width() * top + top + top * half + half + half + 1;
}

double Workload::mlp_multiply_adds() const {
  const int64_t half = top / 2;
  return static_cast<double>(kDense * kBottom + kBottom * kBottom + concat_width() * top +
                             top * half + half);
}

double Workload::forward_flops() const {
  return 2 * mlp_multiply_adds() + static_cast<double>(features * (pooling - 1) * width);
}

double Workload::step_flops(double distinct_rows) const {
  // Backward multiplies twice as often, except that nobody asks for the gradient of the dense
  // features; gradients of rows are summed; row-wise Adagrad takes four operations an element.
  const double mlp = 6 * mlp_multiply_adds() - 2 * static_cast<double>(kDense * kBottom);
  const auto sums = static_cast<double>(features * (2 * pooling - 1) * width);
  // AdamW: about a dozen for each parameter, once a step.
  return static_cast<double>(batch) * (mlp + sums) +
         4 * distinct_rows * static_cast<double>(width) +
         12 * static_cast<double>(mlp_parameters());
}

double Workload::activation_bytes(double cache_bytes) const {
  const int64_t floats = kDense + 2 * kBottom + concat_width() + top + top / 2 + 1;
  const double bytes = 4.0 * static_cast<double>(batch * floats);
  return bytes > cache_bytes ? 2 * bytes : 0;  // written, then read
}

double Workload::forward_bytes(double cache_bytes) const {
  return gathered_bytes() + 4.0 * static_cast<double>(mlp_parameters()) +
         activation_bytes(cache_bytes);
}

double Workload::step_bytes(double distinct_rows, double cache_bytes) const {
  const double row = 4.0 * static_cast<double>(width);
  // Forward reads a row for each lookup; the update reads and writes each distinct one.
  return gathered_bytes() + distinct_rows * (2 * row + 8) +
         4.0 * 7 * static_cast<double>(mlp_parameters()) + 2 * activation_bytes(cache_bytes);
}

Workload micro_dlrm(int64_t batch) {
  Workload w;
  w.name = "micro-dlrm";
  w.batch = batch;
  return w;
}

Workload micro_dlrm_dram(Keys keys, int64_t rows, int64_t width, int64_t pooling, int64_t batch) {
  Workload w;
  w.name = keys == Keys::kCross ? "micro-dlrm-dram/cross" : "micro-dlrm-dram/uniform";
  w.keys = keys;
  w.rows = rows;
  w.width = width;
  w.pooling = pooling;
  w.batch = batch;
  return w;
}

Workload micro_dlrm_faithful(Keys keys, int64_t batch) {
  Workload w = micro_dlrm_dram(keys, 2'000'000, 256, 1, batch);
  w.name = keys == Keys::kHashedIds ? "micro-dlrm-dram/faithful" : "micro-dlrm-dram/uniform";
  return w;
}

double pooled_intensity(double top, double pooling) { return 0.25 + top / (2 * pooling); }

}  // namespace segue::edu
