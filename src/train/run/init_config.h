#pragma once

#include <string>

namespace segue::train {

/// A commented config that trains on the store as it is: its columns as features, tables with the
/// rows that its ids need, its label bits with their shares, windows of a length that suits the
/// log, a model of a size that suits the number of samples. Reads every event once.
std::string config_for_store(const std::string& store);

}  // namespace segue::train
