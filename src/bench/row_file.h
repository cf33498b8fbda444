#pragma once

#include <optional>
#include <string>
#include <vector>

namespace segue::bench {

/// The rows of a long measurement, which may be stopped and goes on with those that are missing.
/// Two rows are of the same thing when name, labels and device agree, whatever was measured, when
/// and by which commit. The file is written anew with every row, so that it is whole at any time.
class RowFile {
 public:
  /// Rows of `path`, which need not exist yet; empty: rows are kept in memory alone.
  /// Error(kCorrupt) with the line of what is no row.
  explicit RowFile(std::string path);

  /// Whether the thing of this row was measured; that it could not be run does not count.
  bool has(const std::string& row) const;
  /// A figure of the row that stands for the same thing.
  std::optional<double> figure(const std::string& row, const std::string& name) const;
  /// In place of the row of the same thing, else behind all others.
  void put(const std::string& row);

 private:
  struct Kept {
    std::string thing, text;
    bool measured = false;
  };
  const Kept* find(const std::string& row) const;
  static Kept parse(const std::string& text);

  std::string path_;
  std::vector<Kept> rows_;
};

}  // namespace segue::bench
