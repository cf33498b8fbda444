#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/log/event.h"
#include "data/log/id_dictionary.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/log/number_arena.h"
#include "data/log/table_reader.h"

namespace segue::data {

/// Turns counts of a unit ("0.001 s") into whole seconds, exactly; fractions are cut off.
class UnitScale {
 public:
  explicit UnitScale(double unit_seconds);
  /// False if the result does not fit.
  bool to_seconds(int64_t count, int64_t& seconds) const;

 private:
  int64_t multiply_ = 1, divide_ = 1;
};

/// What the ids of a log turned out to be.
struct IdColumn {
  bool pure_text = false;                    // an integer among them is a mistake
  std::unique_ptr<IdDictionary> dictionary;  // null: integers as they are

  /// The column of a file that has such ids; `hint` is for integers that are none.
  ColumnRequest request(const std::string& column, const std::string& hint) const;
  /// Of a dictionary alone: takes in the id of a row, or gives its number; -1: it has none.
  void add(const RawColumn& column, size_t row) const;
  int64_t find(const RawColumn& column, size_t row) const;
};

/// Checks single values of the raw columns that every reader of a log needs: RowError.
class RowChecker {
 public:
  RowChecker(const LogSchema& schema, const std::vector<LogFile>& files)
      : schema_(schema), files_(files), time_unit_(schema.time_unit_seconds) {}

  int64_t seconds(const RawBlock& block, const RawColumn& column, size_t row) const;
  /// Of the column `name`; without a dictionary the id is its own number.
  void check_id(const RawBlock& block, const RawColumn& column, size_t row, const std::string& name,
                const IdColumn& ids) const;
  /// The number of an id that was checked.
  int64_t number_of(const RawBlock& block, const RawColumn& column, size_t row,
                    const IdColumn& ids) const;
  void require(const RawBlock& block, const RawColumn& column, size_t row,
               const std::string& name) const;
  [[noreturn]] void fail_at(const RawBlock& block, size_t row, RowFault fault,
                            const std::string& what) const;

 private:
  const char* option_of(const std::string& name) const;

  const LogSchema& schema_;
  const std::vector<LogFile>& files_;
  UnitScale time_unit_;
};

/// Raw rows to events.
class EventNormalizer {
 public:
  EventNormalizer(const LogSchema& schema, const std::vector<LogFile>& files, const IdColumn& users,
                  const IdColumn& items);

  /// User, time and item, then the others.
  std::vector<ColumnRequest> requests() const { return requests_; }
  /// Adds the rows of `block` to `events`; RowError for one that breaks the schema. Their numbers
  /// last until the next call of any of these.
  void add(const RawBlock& block, std::vector<Event>& events);
  /// The same, but such rows are left out; returns how many.
  size_t add_good(const RawBlock& block, std::vector<Event>& events);
  /// Rows that break the schema, those that the reader has marked among them.
  std::vector<BadRow> find_bad(const RawBlock& block);

 private:
  void check_ids(const RawBlock& block, size_t row) const;
  Event event(const RawBlock& block, size_t row);  // without ids
  void set_ids(const RawBlock& block, size_t row, Event& event) const;
  void map_kinds(const RawColumn& column);
  uint8_t kind(const RawBlock& block, size_t row) const;
  void take_value(const RawBlock& block, size_t row, Event& event) const;
  void take_flags(const RawBlock& block, size_t row, Event& event) const;
  void take_rest(const RawBlock& block, size_t row, Event& event) const;
  void take_numbers(const RawBlock& block, size_t row, Event& event);
  size_t request(ColumnRequest wanted);

  static constexpr size_t kNone = static_cast<size_t>(-1);

  const LogSchema& schema_;
  RowChecker check_;
  const IdColumn& users_;
  const IdColumn& items_;
  UnitScale length_unit_;
  std::vector<ColumnRequest> requests_;
  // Places among the requests.
  size_t user_ = kNone, item_ = kNone, time_ = kNone, kind_ = kNone, value_ = kNone,
         organic_ = kNone, length_ = kNone;
  std::vector<size_t> flags_, numbers_;
  NumberArena kept_numbers_;          // of the events of the last call
  std::vector<int> kind_of_code_;     // of the block at hand; -1: unknown
  std::vector<int> kind_of_integer_;  // of small integers
};

}  // namespace segue::data
