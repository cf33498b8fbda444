#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/safetensors.h"

namespace segue::golden {

/// The settings of one case: the JSON object beside its tensors. Getters throw Error(kCorrupt) that
/// names the key; those with a fallback use it when the key is absent.
class Settings {
 public:
  explicit Settings(const std::string& json_text);

  bool has(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t fallback) const;
  int64_t positive(std::string_view key) const;                 // a size
  int64_t count(std::string_view key, int64_t fallback) const;  // a size or 0
  bool flag(std::string_view key, bool fallback) const;         // 0, 1, true or false
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string fallback) const;
  /// Lists; a single value counts as a list of one.
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  /// An object of strings, in the order of the file.
  std::vector<std::pair<std::string, std::string>> pairs(std::string_view key) const;
  /// Anything, as JSON text.
  std::string json(std::string_view key) const;
  /// "2*3.14" or a number: the product.
  double product(std::string_view key, double fallback) const;

  /// Error(kUnsupported) unless the value is the one that Segue has built in.
  void require_number(std::string_view key, double built_in) const;
  void require_text(std::string_view key, std::string_view built_in) const;

 private:
  const nlohmann::ordered_json* find(std::string_view key) const;
  const nlohmann::ordered_json& get(std::string_view key) const;

  std::shared_ptr<const nlohmann::ordered_json> values_;
};

using Shape = std::vector<int64_t>;
std::string to_string(const Shape& shape);

/// A stored tensor as doubles.
struct Values {
  std::vector<double> data;
  Shape shape;
  bool is_f64 = false;  // the float64 run of the reference
};

/// One case: its settings and its view of the file's tensors, which are named case/tensor.
class Case {
 public:
  Case(const base::SafetensorsFile& file, std::string name);

  const std::string& name() const { return name_; }
  const std::string& op() const { return op_; }
  const Settings& settings() const { return settings_; }

  bool has(std::string_view tensor) const;
  /// Inputs. Error(kNotFound) names the nearest tensor, Error(kCorrupt) both shapes when they
  /// differ or the element that is not finite.
  Values values(std::string_view tensor) const;
  Values values(std::string_view tensor, const Shape& expected_shape) const;
  std::vector<int64_t> ints(std::string_view tensor) const;  // any shape
  std::vector<int64_t> ints(std::string_view tensor, const Shape& expected_shape) const;
  std::vector<int64_t> int_list(std::string_view tensor) const;  // one dimension of any length
  Shape shape(std::string_view tensor) const;
  void check_shape(std::string_view tensor, const Shape& expected_shape) const;
  /// What a result is compared with: tensor_f64 if present, else tensor. Not checked further.
  Values reference(std::string_view tensor) const;
  /// Names that start with `prefix`, without the ending _f64, each once, sorted.
  std::vector<std::string> names(std::string_view prefix) const;

  /// The same settings over the tensors of the case that `key` refers to ("params": "same as case
  /// X"), or of this one if there is no such key.
  Case sharing(std::string_view key) const;

  /// Tensors of this case that nobody asked for.
  std::vector<std::string> untouched() const;

 private:
  const base::SafetensorsEntry& entry(std::string_view tensor) const;
  Values read(std::string_view tensor) const;

  const base::SafetensorsFile* file_;
  std::string name_;  // of the case whose tensors are read
  Settings settings_;
  std::string op_;
  std::shared_ptr<std::set<std::string>> touched_;  // full names
};

/// The golden vectors of one file. Error(kCorrupt) when the file is damaged; is_golden() is false
/// for a safetensors file of another kind.
class CaseFile {
 public:
  explicit CaseFile(const std::string& path) : file_(path) {}

  bool is_golden() const;
  std::vector<std::string> case_names() const;  // Error(kCorrupt) without a list of cases
  Case open(const std::string& name) const { return Case(file_, name); }
  /// Its op before anything else is checked; "?" if it cannot be read.
  std::string op_of(const std::string& name) const;
  const std::string& path() const { return file_.path(); }

  static constexpr std::string_view kFormat = "hstu-golden-1";

 private:
  base::SafetensorsFile file_;
};

/// Row ranges of packed sequences: from 0, never falling, ending at `rows`. Error(kCorrupt) if not.
void check_offsets(std::span<const int64_t> offsets, int64_t rows);
/// 0 <= targets <= length for every sequence.
void check_targets(std::span<const int64_t> offsets, std::span<const int64_t> num_targets);

/// Tensors `seq_offsets` and, unless has_num_targets is 0, `num_targets`, both checked.
struct Geometry {
  std::vector<int64_t> offsets, num_targets;
};
Geometry read_geometry(const Case& golden, int64_t rows);

/// The shape of `x`; Error(kCorrupt) unless it is [tokens, dim].
Shape token_shape(const Case& golden, int64_t dim);

}  // namespace segue::golden
