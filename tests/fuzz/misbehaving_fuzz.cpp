// A target that does what none may, by the first letter of its input: shows that a replay fails
// then (tests/scripts/fuzz_replay_test.sh).

#include <new>

#include "fuzz.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const char what = size > 0 ? static_cast<char>(data[0]) : '\0';
  fuzz::accepted_all([what] {
    if (what == 'e') fail(ErrorCode::kCorrupt, "refused, as it may be");
    if (what == 'm') fail(ErrorCode::kCorrupt, "");
    if (what == 't') throw std::bad_alloc();
    SEGUE_ASSERT(what != 'a', "asked to fail");
  });
  fuzz::require(what != 'r', "asked to be broken");
  return 0;
}
