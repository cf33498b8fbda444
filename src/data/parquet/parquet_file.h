#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "base/error.h"

namespace parquet {
class ParquetFileReader;
}

namespace segue::data {

[[noreturn]] void fail_damaged_parquet(const std::string& path, const std::exception& error);

/// Runs `action`; what Arrow throws becomes an Error that names the file.
template <class Action>
auto translated(const std::string& path, Action action) {
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_damaged_parquet(path, error);
  }
}

std::unique_ptr<parquet::ParquetFileReader> open_parquet_file(const std::string& path);

}  // namespace segue::data
