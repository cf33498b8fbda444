#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/log/table_reader.h"

namespace segue::data {

/// How many rows of a log may be left out because they cannot be read.
struct SkipLimit {
  int64_t rows = 0;
  double share = 0;  // of all rows
  std::string text;  // as it was given; empty: none may be

  /// "0.1%" or "25". Error(kInvalidArgument) for anything else.
  static SkipLimit parse(std::string_view text);
  bool allows_any() const { return !text.empty(); }
  bool allows(int64_t skipped, int64_t of_rows) const;
};

/// Rows of a log that were left out: all of them counted by what is wrong, the first ones listed.
class SkippedRows {
 public:
  /// Row `row`, from 0, of the file `file`.
  void add(const std::string& file, int64_t row, const RowFault& fault);

  int64_t count() const { return count_; }
  struct Reason {
    RowFault fault;
    int64_t rows = 0;
    /// `column "user" is empty`, or `the row has another number of fields`.
    std::string words() const;
  };
  std::vector<Reason> reasons() const;  // the commonest first
  /// file,row,column,reason of the first kListed; rows count from 1, a header line is none.
  std::string csv() const;
  const std::string& first() const { return first_; }  // "file: row 7"

  static constexpr int64_t kListed = 10'000;

 private:
  int64_t count_ = 0;
  std::map<std::pair<std::string, std::string>, int64_t> rows_;  // by column and reason
  std::string list_, first_;
};

inline constexpr const char* kSkippedFile = "segue/skipped.csv";

}  // namespace segue::data
