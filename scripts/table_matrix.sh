#!/usr/bin/env bash
# Trains every combination of kinds of tables, tiers, batches ahead, candidates, precision, ranks and
# runs in two parts, on the CPU and, where there is one, on a GPU; all must train the same model.
# Usage: scripts/table_matrix.sh [BUILD]
set -euo pipefail
cd "$(dirname "$0")/.."
SEGUE_MATRIX=all "${1:-build}/segue_train_test" --gtest_filter='*TableMatrix*'
