#pragma once

#include "balance/cost.h"
#include "balance/partition.h"
#include "base/config.h"

namespace segue::balance {

/// Section `balance` of a run's config.
struct BalanceConfig {
  bool on = true;  // one rank has nothing to balance
  CostKind cost = CostKind::kCalibrated;
  PartitionMode mode = PartitionMode::kRefined;
  /// Both 0: as the caller thinks. Only their ratio changes who gets what.
  double token_ps = 0;
  double pair_ps = 0;
  bool calibrate = false;  // both 0: the caller measures them when a run begins

  bool has_weights() const { return token_ps > 0 || pair_ps > 0; }
  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, BalanceConfig& c);

}  // namespace segue::balance
