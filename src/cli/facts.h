#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace segue::cli {

/// A number or a word of a report, shown to people in one way and to programs in another.
class Fact {
 public:
  Fact(int64_t count) : kind_(Kind::kCount), count_(count) {}
  Fact(std::string text) : kind_(Kind::kText), text_(std::move(text)) {}
  Fact(const char* text) : Fact(std::string(text)) {}
  static Fact real(double value, int decimals);
  static Fact share(double value);           // 0.613 is shown as 61.3 %
  Fact with_words(std::string words) const;  // for people; programs still get the number

  std::string text() const;
  bool is_text() const { return kind_ == Kind::kText; }

 private:
  friend class FactSheet;
  enum class Kind { kCount, kReal, kShare, kText };
  Kind kind_ = Kind::kCount;
  int64_t count_ = 0;
  double real_ = 0;
  int decimals_ = 1;
  std::string text_;  // of a number: what is shown in its place, if anything
};

/// Named tables of facts; one content, two faces. Without columns a table is a list of names and
/// values.
struct FactTable {
  std::string title;
  std::vector<std::string> columns;
  struct Row {
    std::string name;
    std::vector<Fact> facts;  // one per column; one if there are no columns
  };
  std::vector<Row> rows;
};

class FactSheet {
 public:
  FactTable& table(std::string title, std::vector<std::string> columns = {});
  std::string text() const;  // aligned, with a blank line between tables
  /// One object per table and row on one line; spaces in names become underscores.
  std::string json() const;

 private:
  std::deque<FactTable> tables_;  // tables stay where they are while others are added
};

}  // namespace segue::cli
