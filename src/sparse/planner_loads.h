#pragma once

#include "sparse/planner.h"

namespace segue::sparse {

/// Where the config asks a table to lie; kAuto: on the device, as long as it fits.
Tier tier_of(TierChoice choice);
/// Error(kConfig): contradictions.
void check_input(const PlannerInput& input);

// What tables take where they lie; the planner's arithmetic.

/// Weights and optimizer state.
double table_bytes(const PlannerInput& input, size_t table);

/// Ids, rows and gradients of one rank's batch when all of them travel.
double table_traffic(const PlannerInput& input, size_t table);

/// Rows in an owner's cache that batches in flight may need at once.
int64_t least_cache_rows(const PlannerInput& input, size_t table, Sharding sharding,
                         int64_t owners);

/// Adds a table that lies as `placement` says to the loads of its owners.
void add_memory(const PlannerInput& input, size_t table, const TablePlacement& placement,
                PlannedTables& loads);

/// Adds what travels in one step, and the buffers for it.
void add_exchange(const PlannerInput& input, size_t table, const TablePlacement& placement,
                  PlannedTables& loads);

}  // namespace segue::sparse
