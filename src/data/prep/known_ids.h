#pragma once

#include <string>

#include "data/log/log_schema.h"
#include "data/store/id_maps.h"

namespace segue::data {

/// The ids of a store whose numbers a log with `schema` keeps. Error(kNotFound) for what is no
/// store, Error(kInvalidArgument) if its ids are integers that stayed as they are, Error(kConfig)
/// names the key in which `schema` reads ids from another column.
IdMaps open_known_ids(const std::string& store, const LogSchema& schema);

}  // namespace segue::data
