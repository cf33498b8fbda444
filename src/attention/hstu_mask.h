#pragma once

#include <cstdint>

#include "base/bf16.h"

namespace segue::attention {

/// Who may look at whom inside one sequence of n rows, of which the last `targets` are candidates.
/// One small value shared by every back end (64-bit on the CPU, 32-bit inside GPU kernels).
///
///   history row:  itself and what is before it
///   target row:   all history, itself, and earlier targets of its own group (groups of
///                 `target_group` consecutive targets; 1: targets never see each other)
///   context row (i < contextual_len, if > 0): all context and history, no target
///   window w > 0: of context and history only the w ids before the row are seen, where a target
///                 stands right after history and the context prefix counts as one id: it is seen
///                 whole or not at all. Context rows have no window, nor, if min_full > 0, have the
///                 last `min_full` rows of history and all targets.
///   global_prefix g > 0: rows with a window see the first g columns of context and history, too
///                 (semi-local attention).
///
/// A history shorter than the context prefix is degenerate: every row sees itself and its group
/// only.
template <class Int>
struct BasicHstuMask {
  Int contextual_len = 0;
  Int window = 0;
  Int min_full = 0;
  Int target_group = 1;
  Int global_prefix = 0;

  /// The columns row i may see: [0, prefix) and [lo, hi) of context and history, then [group_lo,
  /// i], its own group up to itself. 0 <= prefix <= lo <= hi <= group_lo, so the parts are in order
  /// and never overlap; only rows that the window cuts have a prefix.
  /// group_lo == i when only the diagonal is left; the second part is empty (group_lo > i) for
  /// context rows, whose first part already holds them.
  struct Row {
    Int lo = 0, hi = 0, group_lo = 0, prefix = 0;

    SEGUE_HOST_DEVICE bool sees(Int i, Int j) const {
      return j < prefix || (j >= lo && j < hi) || (j >= group_lo && j <= i);
    }
  };

  SEGUE_HOST_DEVICE Row row(Int i, Int n, Int targets) const {
    const Int history_end = n - targets;
    const bool is_target = i >= history_end;
    const Int place_in_group = is_target && target_group > 1 ? (i - history_end) % target_group : 0;
    const Int group_lo = i - place_in_group;
    if (history_end < contextual_len) return {0, 0, group_lo};
    if (i < contextual_len) return {0, history_end, history_end};

    const Int hi = is_target ? history_end : i;
    // Column j has id j - shift, and 0 inside the context prefix. So a distance of ids between rows
    // after the prefix is a distance of columns, and a window that reaches id 0 reaches column 0.
    const Int shift = contextual_len > 0 ? contextual_len - 1 : 0;
    const bool full = min_full > 0 && hi >= history_end - min_full;
    const bool cut = window > 0 && !full && hi - shift > window && hi - global_prefix > window;
    return {cut ? hi - window : 0, hi, group_lo, cut ? global_prefix : 0};
  }

  SEGUE_HOST_DEVICE bool allows(Int i, Int j, Int n, Int targets) const {
    return row(i, n, targets).sees(i, j);
  }

  /// Pairs (row, column that it sees) of all n rows; forward FLOPs are 2 * heads * (qk_dim + v_dim)
  /// times as many.
  Int pairs(Int n, Int targets) const {
    const auto sum_to = [](Int last) { return last * (last + 1) / 2; };
    const Int history_end = n - targets;
    const Int rest = targets % target_group;
    const Int own_group = targets / target_group * sum_to(target_group) + sum_to(rest);
    if (history_end < contextual_len) return history_end + own_group;
    const Int history = sum_to(history_end) - sum_to(contextual_len);
    const Int all = (contextual_len + targets) * history_end + history + own_group;
    if (window == 0) return all;
    // Row i loses i - kept columns, from the first that the window cuts to the last.
    const Int shift = contextual_len > 0 ? contextual_len - 1 : 0;
    const Int kept = window + global_prefix;
    Int first = shift + window + 1 > contextual_len ? shift + window + 1 : contextual_len;
    if (first < kept + 1) first = kept + 1;
    const Int end = min_full > 0 ? history_end - min_full : history_end;
    Int lost = first < end ? sum_to(end - kept - 1) - sum_to(first - kept - 1) : 0;
    if (min_full == 0 && first <= history_end) lost += targets * (history_end - kept);
    return all - lost;
  }

  /// What a run of rows sees together: every row sees [0, prefix) and [max_lo, min_hi), none sees
  /// anything outside of [0, prefix), [min_lo, max_hi) and [own_lo, last row]. Empty parts have
  /// begin >= end.
  struct Rows {
    Int min_lo = 0, max_lo = 0, min_hi = 0, max_hi = 0, own_lo = 0, prefix = 0;

    SEGUE_HOST_DEVICE bool all_see(Int begin, Int end) const {
      return (begin >= max_lo && end <= min_hi) || end <= prefix;
    }
    /// `last`: one past the last row.
    SEGUE_HOST_DEVICE bool none_sees(Int begin, Int end, Int last) const {
      return begin >= prefix && (end <= min_lo || begin >= max_hi) &&
             (end <= own_lo || begin >= last);
    }
  };

  /// Of rows first .. last - 1, where 0 <= first < last <= n.
  SEGUE_HOST_DEVICE Rows rows(Int first, Int last, Int n, Int targets) const {
    const Int history_end = n - targets;
    if (history_end < contextual_len) return {0, 0, 0, 0, row(first, n, targets).group_lo};
    const bool has_context = first < contextual_len;
    const Int plain = has_context ? contextual_len : first;
    if (plain >= last) return {0, 0, history_end, history_end, last};
    const Row a = row(plain, n, targets);
    const Row z = row(last - 1, n, targets);
    // hi and group_lo never fall from row to row; lo rises until the first row without a window.
    Int max_lo = a.lo > z.lo ? a.lo : z.lo;
    if (window > 0 && min_full > 0) {
      const Int cut = history_end - min_full - 1 < last - 1 ? history_end - min_full - 1 : last - 1;
      if (cut >= plain) {
        const Int lo = row(cut, n, targets).lo;
        max_lo = lo > max_lo ? lo : max_lo;
      }
    }
    const Int min_lo = a.lo < z.lo ? a.lo : z.lo;
    const Int prefix = window == 0 ? 0 : global_prefix < a.hi ? global_prefix : a.hi;
    return {has_context ? 0 : min_lo,         max_lo,     a.hi,
            has_context ? history_end : z.hi, a.group_lo, prefix};
  }

  /// Rows that may see something of columns first .. last - 1: context rows [0, context_end), rows
  /// [near, near_end), and rows [far, n). Rows in none of the three see nothing there.
  struct SeeingRows {
    Int context_end = 0, near = 0, near_end = 0, far = 0;
  };

  SEGUE_HOST_DEVICE SeeingRows rows_that_see(Int first, Int last, Int n, Int targets) const {
    const Int history_end = n - targets;
    const bool degenerate = history_end < contextual_len;
    if (degenerate || first >= history_end) {
      // Nobody but the own group, which ends somewhere after the last column.
      const Int place = last - 1 >= history_end ? (last - 1 - history_end) % target_group : 0;
      const Int own_end = last - 1 >= history_end ? last - place - 1 + target_group : last;
      return {0, first, own_end < n ? own_end : n, n};
    }
    if (window == 0 || first < global_prefix) return {contextual_len, first, n, n};
    const Int shift = contextual_len > 0 ? contextual_len - 1 : 0;
    const Int reach = last - 1 + window > window + shift ? last - 1 + window : window + shift;
    const Int near_end = reach + 1 < history_end ? reach + 1 : history_end;
    Int far = min_full > 0 ? history_end - min_full : history_end;
    if (min_full == 0 && last <= history_end && reach < history_end) far = n;
    return {contextual_len, first, near_end > first ? near_end : first, far > first ? far : first};
  }
};

using HstuMask = BasicHstuMask<int64_t>;

}  // namespace segue::attention
