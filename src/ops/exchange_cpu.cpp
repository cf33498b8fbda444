#include "ops/exchange.h"

#include <cstring>

#include "ops/cuda_forms.h"
#include "ops/row_loop.h"

namespace segue::ops {

void exchange_rows(const Exec& exec, const RowExchange& rows, std::span<const RowPair> pairs) {
  const int64_t n = rows.slots.size(0);
  SEGUE_ASSERT(rows.out.size(0) == n && rows.in.size(0) == n, "exchange_rows: lists differ");
  for (const auto& [near, far] : pairs) {
    SEGUE_ASSERT(near.rank == 2 && far.rank == 2 && near.dtype == far.dtype &&
                     near.size(1) == far.size(1) && near.is_contiguous() && far.is_contiguous(),
                 "exchange_rows: rows are alike and contiguous");
  }
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::exchange_rows(exec, rows, pairs);
  }
  require_cpu(exec, "exchange_rows");
  const auto* slots = rows.slots.ptr<int64_t>();
  const auto* out = rows.out.ptr<int64_t>();
  const auto* in = rows.in.ptr<int64_t>();
  for (const RowPair& pair : pairs) {
    const int64_t row_bytes = pair.near.size(1) * size_of(pair.near.dtype);
    if (row_bytes == 0) continue;
    const auto bytes = static_cast<size_t>(row_bytes);
    const auto row = [&](const Tensor& t, int64_t i, int64_t r) {
      check_row("exchange_rows", i, r, t.size(0));
      return static_cast<std::byte*>(t.data) + r * row_bytes;
    };
    for_rows(n, pair.near.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::byte* const slot = row(pair.near, i, slots[i]);
        if (out[i] != -1) std::memcpy(row(pair.far, i, out[i]), slot, bytes);
        if (in[i] != -1) std::memcpy(slot, row(pair.far, i, in[i]), bytes);
      }
    });
  }
}

}  // namespace segue::ops
