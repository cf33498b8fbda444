#include "ops/row_loop.h"

namespace segue::ops {

void fail_row(const char* op, int64_t item, int64_t row, int64_t rows) {
  fail(ErrorCode::kOutOfRange, std::string(op) + ": index " + std::to_string(row) +
                                   " at position " + std::to_string(item) + " is outside the " +
                                   std::to_string(rows) + " rows");
}

}  // namespace segue::ops
