#pragma once

#include <memory>
#include <string>

#include "data/synth_output.h"

namespace segue::data {

/// Writes FOLDER/flat/<size>/multi_event.parquet and the mappings, with the types of the public
/// data set: `segue prep` takes one for the other.
std::unique_ptr<RawLogWriter> make_parquet_log_writer(const std::string& folder,
                                                      const std::string& size_name);

}  // namespace segue::data
