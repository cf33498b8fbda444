#pragma once

#include <cstdint>

#include "base/bf16.h"

namespace segue::attention {

/// Who may look at whom inside one sequence of n rows, of which the last `targets` are candidates.
/// One small value shared by every back end.
///
///   history row:  itself and what is before it
///   target row:   all history, itself, and earlier targets of its own group (groups of
///                 `target_group` consecutive targets; 1: targets never see each other)
///   context row (i < contextual_len, if > 0): all context and history, no target
///   window w > 0: of context and history only the w ids before the row are seen, where a target
///                 stands right after history and the context prefix counts as one id: it is seen
///                 whole or not at all. Context rows have no window, nor, if min_full > 0, have the
///                 last `min_full` rows of history and all targets.
///
/// A history shorter than the context prefix is degenerate: every row sees itself and its group
/// only.
struct HstuMask {
  int64_t contextual_len = 0;
  int64_t window = 0;
  int64_t min_full = 0;
  int64_t target_group = 1;

  /// The columns row i may see: [lo, hi) of context and history, then [group_lo, i], its own group
  /// up to itself. 0 <= lo <= hi <= group_lo, so the two parts are in order and never overlap.
  /// group_lo == i when only the diagonal is left; the second part is empty (group_lo > i) for
  /// context rows, whose first part already holds them.
  struct Row {
    int64_t lo = 0, hi = 0, group_lo = 0;

    SEGUE_HOST_DEVICE bool sees(int64_t i, int64_t j) const {
      return (j >= lo && j < hi) || (j >= group_lo && j <= i);
    }
  };

  SEGUE_HOST_DEVICE Row row(int64_t i, int64_t n, int64_t targets) const {
    const int64_t history_end = n - targets;
    const bool is_target = i >= history_end;
    const int64_t place_in_group =
        is_target && target_group > 1 ? (i - history_end) % target_group : 0;
    const int64_t group_lo = i - place_in_group;
    if (history_end < contextual_len) return {0, 0, group_lo};
    if (i < contextual_len) return {0, history_end, history_end};

    const int64_t hi = is_target ? history_end : i;
    // Column j has id j - shift, and 0 inside the context prefix. So a distance of ids between rows
    // after the prefix is a distance of columns, and a window that reaches id 0 reaches column 0.
    const int64_t shift = contextual_len > 0 ? contextual_len - 1 : 0;
    const bool full = min_full > 0 && hi >= history_end - min_full;
    const bool cut = window > 0 && !full && hi - shift > window;
    return {cut ? hi - window : 0, hi, group_lo};
  }

  SEGUE_HOST_DEVICE bool allows(int64_t i, int64_t j, int64_t n, int64_t targets) const {
    return row(i, n, targets).sees(i, j);
  }
};

}  // namespace segue::attention
