#include "balance/config.h"

#include "base/config_checks.h"

namespace segue::balance {

void describe(base::ConfigVisitor& v, BalanceConfig& c) {
  v.field("on", c.on, "samples change ranks until all have the same work");
  v.choice(
      "cost", c.cost, {"calibrated", "reference"},
      "work of a sample: token_ps * tokens + pair_ps * attention pairs, or the public formula");
  v.choice("mode", c.mode, {"refined", "reference"},
           "Karmarkar-Karp followed by swaps, or alone as in the public implementation");
  v.field("token_ps", c.token_ps, "picoseconds per token; with pair_ps 0: those of an H200");
  v.field("pair_ps", c.pair_ps, "picoseconds per attention pair");
  v.field("calibrate", c.calibrate,
          "where both are 0: measured on this device when a run begins, and kept in its config");
}

void BalanceConfig::validate() const {
  base::require_between("balance.token_ps", token_ps, 0, 1e9);
  base::require_between("balance.pair_ps", pair_ps, 0, 1e9);
}

}  // namespace segue::balance
