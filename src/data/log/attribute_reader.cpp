#include "data/log/attribute_reader.h"

#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestAttribute = std::numeric_limits<int32_t>::max();  // of an opened store

/// One attribute, from its files to the store.
class AttributeReader {
 public:
  AttributeReader(const AttributeFile& attribute, const std::vector<LogFile>& files,
                  const TableOptions& options, const IdColumn& owners)
      : attribute_(attribute),
        files_(files),
        options_(options),
        owners_(owners),
        text_(column_is_text(files[0].path, attribute.value, options)),
        text_ids_(owners.dictionary &&
                  (owners.text ? column_has_text(files[0].path, attribute.item, options)
                               : column_is_text(files[0].path, attribute.item, options))) {}

  /// Numbers for values that are texts; those of `known` (may be null) stay.
  void collect(int64_t memory_bytes, const IdMaps* known) {
    dictionary_ = make_dictionary(text_, attribute_.name, attribute_.value, memory_bytes, known);
    if (!dictionary_) return;
    LogReader reader(files_, requests(), options_);
    RawBlock block;
    while (reader.next(block)) {
      for (size_t row = 0, bad = 0; row < block.rows; ++row) {
        // A row that read() leaves out gives no text a number.
        if (is_listed(block.bad, row, bad) || !has_owner(block.columns[0], row)) continue;
        if (block.columns[1].is_valid(row)) dictionary_->add(block.columns[1].text(row));
      }
    }
    dictionary_->finish();
  }

  void read(StoreWriter& store) {
    LogReader reader(files_, requests(), options_);
    RawBlock block;
    while (reader.next(block)) {
      ids_.clear();
      values_.clear();
      rows_ += static_cast<int64_t>(block.rows);
      for (size_t row = 0, bad = 0; row < block.rows; ++row) {
        if (is_listed(block.bad, row, bad)) {
          skip(block, row, block.bad[bad].fault);
          continue;
        }
        try {
          take(block, row);
        } catch (const RowError& error) {
          if (!options_.mark_bad_rows) throw;
          skip(block, row, error.fault());
        }
      }
      store.set_attribute(attribute_.name, ids_, values_);
    }
    if (dictionary_) dictionary_->save(attribute_.name, store);
  }

  /// What whoever trains on it should know, and what is too much.
  void report(const SkipLimit& skip_bad) const {
    const std::string& path = files_[0].path;
    if (zeros_ > 0 && attribute_.zero == ZeroMeaning::kNone) {
      base::log_warning(fmt::format(
          "{}: {} of {} rows have {} = 0, which says that {} has no {}; if 0 is one of its "
          "values, set zero = \"value\" for this attribute in the schema",
          path, zeros_, rows_, attribute_.value, attribute_.of_users ? "a user" : "an item",
          attribute_.name));
    }
    if (skipped_.count() == 0) return;
    const SkippedRows::Reason most = skipped_.reasons().front();
    const std::string text = fmt::format(
        "{}: {} of {} rows cannot be used for attribute \"{}\"; most often {} ({} rows), first is "
        "{}",
        path, skipped_.count(), rows_, attribute_.name, most.words(), most.rows, skipped_.first());
    if (!skip_bad.allows(skipped_.count(), rows_)) {
      fail(ErrorCode::kCorrupt, fmt::format("{}; --skip-bad {} allows fewer", text, skip_bad.text));
    }
    base::log_warning(text);
  }

 private:
  std::vector<ColumnRequest> requests() const {
    return {{attribute_.item, text_ids_ ? ColumnRole::kText : ColumnRole::kInteger},
            {attribute_.value, text_ ? ColumnRole::kText : ColumnRole::kInteger}};
  }
  /// An item, or user, that an event may have.
  bool has_owner(const RawColumn& item, size_t row) const {
    return item.is_valid(row) && (owners_.dictionary || is_id(item.integers[row]));
  }
  static bool is_id(int64_t id) { return id >= 0 && id <= StoreWriter::kLargestId; }

  void take(const RawBlock& block, size_t row) {
    const RawColumn& item = block.columns[0];
    const RawColumn& value = block.columns[1];
    const std::string& path = files_[block.file].path;
    const int64_t place = block.first_row + static_cast<int64_t>(row);
    if (!item.is_valid(row)) {
      fail_row(path, place, {attribute_.item, "is empty"},
               fmt::format("column \"{}\" is empty", attribute_.item));
    }
    if (!value.is_valid(row)) return;
    int64_t id = 0;
    if (owners_.dictionary) {
      id = text_ids_ ? owners_.dictionary->find(item.text(row))
                     : owners_.dictionary->find(item.integers[row]);
      if (id < 0) return;  // no event has it
    } else {
      id = item.integers[row];
    }
    const int64_t number = text_ ? dictionary_->find(value.text(row)) + 1 : value.integers[row];
    const int64_t shift = !text_ && attribute_.zero == ZeroMeaning::kValue ? 1 : 0;
    if (!is_id(id) || number < 0 || number > kLargestAttribute - shift) {
      fail_row(path, place, {attribute_.value, "is out of range"},
               fmt::format("{0} {1} has attribute {2}; {0}s are from 0 to {3}, attributes from 0 "
                           "to {4}",
                           attribute_.whose(), id, number, StoreWriter::kLargestId,
                           kLargestAttribute - shift));
    }
    zeros_ += number == 0 ? 1 : 0;
    ids_.push_back(id);
    values_.push_back(number + shift);
  }
  void skip(const RawBlock& block, size_t row, const RowFault& fault) {
    skipped_.add(files_[block.file].name, block.first_row + static_cast<int64_t>(row), fault);
  }

  const AttributeFile& attribute_;
  const std::vector<LogFile>& files_;
  const TableOptions& options_;
  const IdColumn& owners_;
  bool text_, text_ids_;
  std::unique_ptr<IdDictionary> dictionary_;
  std::vector<int64_t> ids_, values_;  // of a block
  int64_t rows_ = 0, zeros_ = 0;
  SkippedRows skipped_;
};

}  // namespace

void read_attribute(const AttributeFile& attribute, const std::vector<LogFile>& files,
                    const TableOptions& table_options, const SkipLimit& skip_bad,
                    const IdColumn& owners, int64_t memory_bytes, const IdMaps* known,
                    StoreWriter& store) {
  TableOptions options = table_options;
  options.csv.columns = attribute.csv_columns;
  AttributeReader reader(attribute, files, options, owners);
  reader.collect(memory_bytes, known);
  reader.read(store);
  reader.report(skip_bad);
}

}  // namespace segue::data
