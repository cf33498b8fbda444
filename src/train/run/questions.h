#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/log/original_ids.h"
#include "data/log/table_reader.h"
#include "data/sample/gather.h"
#include "train/run/scoring.h"

namespace segue::train {

/// What somebody asks of a trained model, by the ids of the log. Histories end at the time of a
/// question, which is just after the last event of its user unless there is one; warns of times
/// that are legal and yet hardly meant. Error(kOutOfRange) for an id that the store does not have.
class Questions {
 public:
  /// `parquet` may be null. The scorer must live longer.
  Questions(const StoreScorer& scorer, const data::ParquetSupport* parquet);

  const data::OriginalIds& users() const { return users_; }
  const data::OriginalIds& items() const { return items_; }

  /// The rows of a CSV or Parquet file with columns user and item and, if it has them, time and the
  /// numbers of the log that the model reads of candidates; those that it has not are missing.
  std::vector<data::CandidateQuery> pairs(const std::string& path) const;
  /// One for every user that is named, then for those of a file with a column user, if a path is
  /// given; items come with the answers.
  std::vector<data::CandidateQuery> of_users(std::span<const std::string> users,
                                             const std::string& path,
                                             std::optional<int64_t> time) const;

 private:
  std::vector<data::CandidateQuery> read_pairs(const std::string& path) const;
  void read_numbers(const std::string& path, std::vector<data::CandidateQuery>& questions) const;
  int64_t require_item(int64_t item, const std::string& where) const;
  void settle(const std::string& where, data::CandidateQuery& question) const;
  void doubt(const std::string& where, std::span<const data::CandidateQuery> questions) const;

  static constexpr int64_t kAnyItem = std::numeric_limits<int64_t>::max();

  const StoreScorer& scorer_;
  data::EventLog log_;
  data::TableOptions tables_;
  data::OriginalIds users_, items_;
  int64_t last_item_ = kAnyItem;  // that the store knows
};

}  // namespace segue::train
