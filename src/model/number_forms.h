#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace segue::model {

enum class NumberShape { kIdentity, kLog, kBuckets };

/// How a number enters the model. A column without a form enters as it is; where a number is
/// missing (NaN) everything that it becomes is 0.
struct NumberForm {
  std::string column;  // as model.numeric or model.dlrm.numeric calls it
  NumberShape shape = NumberShape::kIdentity;
  // identity: (x - offset) * scale; log: (sign(x) log(1 + |x|) - offset) * scale
  double offset = 0, scale = 1;
  /// buckets: one number for each, 1 for the one that x is in: below the first bound, from there to
  /// below the second, ..., from the last on.
  std::vector<double> bounds;

  int64_t width() const;
};
void describe(base::ConfigVisitor& v, NumberForm& c);

/// Error(kConfig) for a form that cannot be, or of a column that is none of `columns`.
void validate_forms(std::span<const NumberForm> forms, std::span<const std::string> columns);

/// Numbers that rows of such columns become.
int64_t numbers_width(std::span<const std::string> columns, std::span<const NumberForm> forms);

/// What a row of columns becomes, number behind number.
class NumberEncoder {
 public:
  NumberEncoder(std::span<const std::string> columns, std::span<const NumberForm> forms);

  size_t columns() const { return forms_.size(); }
  /// Writes what a value of `column` becomes behind `to`, and returns the end of it. T is float or
  /// double.
  template <class T>
  T* put(size_t column, float value, T* to) const;

 private:
  std::vector<NumberForm> forms_;  // of each column
};

}  // namespace segue::model
