#include "model/number_forms.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"

namespace segue::model {
namespace {

using base::fail_config;

constexpr size_t kMostBounds = 1024;

NumberForm form_of(const std::string& column, std::span<const NumberForm> forms) {
  const auto found = std::ranges::find(forms, column, &NumberForm::column);
  return found == forms.end() ? NumberForm{.column = column} : *found;
}

void validate_form(const NumberForm& form) {
  const std::string name = fmt::format("the form of `{}`", form.column);
  if (!std::isfinite(form.offset) || !std::isfinite(form.scale) || form.scale == 0) {
    fail_config(fmt::format("{}: offset = {} and scale = {} must be finite, and scale not 0", name,
                            form.offset, form.scale));
  }
  const bool buckets = form.shape == NumberShape::kBuckets;
  if (buckets != !form.bounds.empty()) {
    fail_config(fmt::format("{}: {}", name,
                            buckets ? "shape = \"buckets\" needs bounds, such as [1, 10, 100]"
                                    : "bounds are those of shape = \"buckets\""));
  }
  if (form.bounds.size() > kMostBounds) {
    fail_config(
        fmt::format("{}: {} bounds; at most {} make sense", name, form.bounds.size(), kMostBounds));
  }
  const bool rise =
      std::ranges::adjacent_find(form.bounds, std::greater_equal<>()) == form.bounds.end();
  if (!rise || !std::ranges::all_of(form.bounds, [](double b) { return std::isfinite(b); })) {
    fail_config(fmt::format("{}: bounds must rise: [{}]", name, fmt::join(form.bounds, ", ")));
  }
}

}  // namespace

int64_t NumberForm::width() const {
  return shape == NumberShape::kBuckets ? std::ssize(bounds) + 1 : 1;
}

void describe(base::ConfigVisitor& v, NumberForm& c) {
  v.field("column", c.column, "one of the columns of numbers");
  v.choice("shape", c.shape, {"identity", "log", "buckets"},
           "(x - offset) * scale; the same of sign(x) log(1 + |x|); or 1 for the bucket of x and 0 "
           "for the others");
  v.field("offset", c.offset, "taken off first");
  v.field("scale", c.scale, "factor");
  v.field("bounds", c.bounds, "of buckets, rising; one bucket more than bounds");
}

void validate_forms(std::span<const NumberForm> forms, std::span<const std::string> columns) {
  std::set<std::string> seen;
  for (const NumberForm& form : forms) {
    if (std::ranges::find(columns, form.column) == columns.end()) {
      const std::string nearest = base::nearest_name(form.column, columns);
      fail_config(fmt::format(
          "a form is of column `{}`, which the model does not read as a number; {}", form.column,
          nearest.empty() ? fmt::format("it reads: {}", fmt::join(columns, ", "))
                          : fmt::format("did you mean `{}`?", nearest)));
    }
    if (!seen.insert(form.column).second) {
      fail_config(fmt::format("column `{}` has two forms", form.column));
    }
    validate_form(form);
  }
}

int64_t numbers_width(std::span<const std::string> columns, std::span<const NumberForm> forms) {
  int64_t width = 0;
  for (const std::string& column : columns) width += form_of(column, forms).width();
  return width;
}

NumberEncoder::NumberEncoder(std::span<const std::string> columns,
                             std::span<const NumberForm> forms) {
  for (const std::string& column : columns) forms_.push_back(form_of(column, forms));
}

template <class T>
T* NumberEncoder::put(size_t column, float value, T* to) const {
  const NumberForm& form = forms_[column];
  T* const end = to + form.width();
  std::fill(to, end, T{0});
  if (std::isnan(value)) return end;
  if (form.shape == NumberShape::kBuckets) {
    to[std::ranges::upper_bound(form.bounds, static_cast<double>(value)) - form.bounds.begin()] = 1;
    return end;
  }
  double x = value;
  if (form.shape == NumberShape::kLog) x = std::copysign(std::log1p(std::abs(x)), x);
  *to = static_cast<T>((x - form.offset) * form.scale);
  return end;
}

template float* NumberEncoder::put(size_t, float, float*) const;
template double* NumberEncoder::put(size_t, float, double*) const;

}  // namespace segue::model
