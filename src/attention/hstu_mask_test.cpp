#include "attention/hstu_mask.h"

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"

namespace segue::attention {
namespace {

/// All masks of small sizes: calls visit(mask, n, targets).
template <class Visit>
void for_all_small_masks(Visit&& visit) {
  for (int64_t n = 0; n <= 9; ++n) {
    for (int64_t targets = 0; targets <= n; ++targets) {
      for (int64_t context = 0; context <= 4; ++context) {
        for (int64_t window = 0; window <= 4; ++window) {
          for (int64_t min_full = 0; min_full <= 3; ++min_full) {
            for (int64_t group = 1; group <= 3; ++group) {
              for (const int64_t prefix : {0, 2, 5}) {
                if (prefix > 0 && window == 0) continue;  // would change nothing
                visit(HstuMask{context, window, min_full, group, prefix}, n, targets);
              }
            }
          }
        }
      }
    }
  }
}

TEST(HstuMask, RowIsTheRuleForAllSmallCases) {
  int64_t cases = 0;
  for_all_small_masks([&](const HstuMask& mask, int64_t n, int64_t targets) {
    for (int64_t i = 0; i < n; ++i) {
      const HstuMask::Row row = mask.row(i, n, targets);
      ASSERT_TRUE(0 <= row.prefix && row.prefix <= row.lo && row.lo <= row.hi &&
                  row.hi <= row.group_lo && row.hi <= n);
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(mask.allows(i, j, n, targets), hstu_mask_reference(mask, i, j, n, targets))
            << "i " << i << " j " << j << " n " << n << " targets " << targets << " context "
            << mask.contextual_len << " window " << mask.window << " min_full " << mask.min_full
            << " group " << mask.target_group << " prefix " << mask.global_prefix;
        ++cases;
      }
    }
  });
  EXPECT_EQ(cases, 693000 / 5 * 13);
}

TEST(HstuMask, EveryRowSeesItself) {
  for_all_small_masks([](const HstuMask& mask, int64_t n, int64_t targets) {
    for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(mask.allows(i, i, n, targets));
  });
}

TEST(HstuMask, RunsOfRowsAndColumnsAreSummedUp) {
  for_all_small_masks([](const HstuMask& mask, int64_t n, int64_t targets) {
    for (int64_t first = 0; first < n; ++first) {
      for (int64_t last = first + 1; last <= n; ++last) {
        const HstuMask::Rows rows = mask.rows(first, last, n, targets);
        const HstuMask::SeeingRows seeing = mask.rows_that_see(first, last, n, targets);
        for (int64_t a = 0; a < n; ++a) {
          for (int64_t b = first; b < last; ++b) {
            const bool row_sees = mask.allows(b, a, n, targets);
            ASSERT_TRUE(row_sees || !rows.all_see(a, a + 1));
            ASSERT_TRUE(!row_sees || !rows.none_sees(a, a + 1, last));
            const bool is_seer = a < seeing.context_end ||
                                 (a >= seeing.near && a < seeing.near_end) || a >= seeing.far;
            const bool seen = mask.allows(a, b, n, targets);
            ASSERT_TRUE(is_seer || !seen);
            ASSERT_TRUE(last > first + 1 || is_seer == seen) << "one column leaves no doubt";
          }
        }
      }
    }
  });
}

TEST(HstuMask, PairsAreCountedOneByOne) {
  for_all_small_masks([](const HstuMask& mask, int64_t n, int64_t targets) {
    int64_t expected = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) expected += mask.allows(i, j, n, targets) ? 1 : 0;
    }
    ASSERT_EQ(mask.pairs(n, targets), expected)
        << "n " << n << " targets " << targets << " context " << mask.contextual_len << " window "
        << mask.window << " min_full " << mask.min_full << " group " << mask.target_group
        << " prefix " << mask.global_prefix;
  });
}

/// Too many for one by one: row by row.
TEST(HstuMask, PairsOfLongSequences) {
  for (const HstuMask mask :
       {HstuMask{}, HstuMask{.contextual_len = 6},
        HstuMask{.contextual_len = 6, .window = 700, .target_group = 3},
        HstuMask{.window = 700, .min_full = 90}, HstuMask{.window = 700, .global_prefix = 300},
        HstuMask{6, 700, 90, 1, 300}}) {
    for (const int64_t targets : {0, 1, 200}) {
      const int64_t n = 5000;
      int64_t expected = 0;
      for (int64_t i = 0; i < n; ++i) {
        const HstuMask::Row row = mask.row(i, n, targets);
        expected += row.prefix + row.hi - row.lo + std::max<int64_t>(0, i + 1 - row.group_lo);
      }
      EXPECT_EQ(mask.pairs(n, targets), expected) << mask.window << ", " << targets;
    }
  }
}

/// The published operation count is 4 N D pairs less half the diagonal of the history.
TEST(HstuMask, PairsAgreeWithThePublishedCount) {
  const HstuMask mask{.contextual_len = 6};
  const int64_t history = 1000 - 6 - 200;
  const double pairs = static_cast<double>(mask.pairs(1000, 200));
  const double attention = 4.0 * 4 * 128 * (pairs - static_cast<double>(history) / 2);
  EXPECT_EQ(attention * 3.5, 3'476'350'976.0);
}

}  // namespace
}  // namespace segue::attention
