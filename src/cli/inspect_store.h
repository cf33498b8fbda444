#pragma once

#include <string>

#include "data/inspect/inspect.h"

namespace segue::cli {

struct InspectArguments {
  std::string path;
  std::string table;  // of a run or checkpoint; empty: all
  bool json = false;
  bool verify = false;     // checksums and every event
  bool baselines = false;  // also without truth
  std::string truth;       // folder of the raw log that a store was prepared from
  std::string index;       // where a read-only store's derived files go
  data::InspectConfig config;
};

/// Prints what is in an event store and how good simple predictions of it are. Throws
/// Error(kCorrupt) after printing when the store is damaged.
void inspect_store(const InspectArguments& arguments);

}  // namespace segue::cli
