#pragma once

#include <string>

namespace segue::data {

/// The cache folder of the store that a path means, itself or below it. Error(kNotFound) where
/// there is none, Error(kInvalidArgument) where there are several.
std::string find_cache_folder(const std::string& path);

}  // namespace segue::data
