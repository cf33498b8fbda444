#include "base/error.h"
#include "sparse/hash_index_rules.h"
namespace segue::sparse::detail {
std::unique_ptr<HashIndex> make_cuda_hash_index(const HashIndexConfig&, Device) {
  fail(ErrorCode::kUnsupported, "stub");
}
}  // namespace segue::sparse::detail
