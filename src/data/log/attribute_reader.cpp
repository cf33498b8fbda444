#include "data/log/attribute_reader.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestAttribute = std::numeric_limits<int32_t>::max();  // of an opened store

/// The values of a field, one after the other, without blanks around them; empty ones are none.
template <class Each>
void for_values(std::string_view field, std::string_view separator, const Each& each) {
  constexpr std::string_view kBlanks = " \t";
  if (separator.empty()) return each(field);
  for (size_t begin = 0; begin <= field.size();) {
    const size_t end = std::min(field.find(separator, begin), field.size());
    std::string_view value = field.substr(begin, end - begin);
    value.remove_prefix(std::min(value.find_first_not_of(kBlanks), value.size()));
    value = value.substr(0, value.find_last_not_of(kBlanks) + 1);
    if (!value.empty()) each(value);
    begin = end + separator.size();
  }
}

/// Which rows of files are rows of the log that it had to leave out.
class LeftOutRows {
 public:
  LeftOutRows(const ScannedLog& log, const std::vector<LogFile>& files)
      : of_log_(shared_files(log.files, files)),
        normalizer_(log.schema, of_log_, log.users, log.items) {
    for (const LogFile& file : files) {
      is_of_log_.push_back(std::ranges::find(of_log_, file.path, &LogFile::path) != of_log_.end());
    }
    if (!of_log_.empty()) reader_.emplace(of_log_, normalizer_.requests(), log.options);
  }

  /// Of every block of the files, in their order.
  const std::vector<BadRow>& of(const RawBlock& block) {
    bad_.clear();
    if (!is_of_log_[block.file]) return bad_;
    if (!reader_->next(block_) || block_.first_row != block.first_row ||
        block_.rows != block.rows) {
      fail(ErrorCode::kCorrupt, "the log changed while it was being read");
    }
    return bad_ = normalizer_.find_bad(block_);
  }

 private:
  static std::vector<LogFile> shared_files(const std::vector<LogFile>& log,
                                           std::vector<LogFile> files) {
    const auto place = [](const LogFile& file) {
      return std::filesystem::path(file.path).lexically_normal();
    };
    std::erase_if(files, [&](const LogFile& file) {
      return std::ranges::find(log, place(file), place) == log.end();
    });
    return files;
  }

  std::vector<LogFile> of_log_;
  EventNormalizer normalizer_;
  std::vector<bool> is_of_log_;
  std::optional<LogReader> reader_;
  RawBlock block_;
  std::vector<BadRow> bad_;
};

/// One attribute, from its files to the store.
class AttributeReader {
 public:
  AttributeReader(const AttributeFile& attribute, const std::vector<LogFile>& files,
                  const ScannedLog& log, const TableOptions& options)
      : attribute_(attribute),
        files_(files),
        log_(log),
        options_(options),
        owners_(attribute.of_users ? log.users : log.items),
        columns_(attribute.columns()),
        values_(columns_.size()) {}

  /// Numbers for values, unless all are integers; those of `known` (may be null) stay.
  void collect(int64_t memory_bytes, const IdMaps* known) {
    const bool in_known = known != nullptr && known->is_numbered(attribute_.name);
    const bool numbered = in_known || !all_integers();
    dictionary_ = make_dictionary(numbered, attribute_.name, attribute_.value, memory_bytes, known);
    if (!dictionary_) return;
    for_texts([this](std::string_view text) {
      dictionary_->add(text);
      return true;
    });
    dictionary_->finish();
  }

  void read(StoreWriter& store) {
    shift_ = !dictionary_ && attribute_.zero == ZeroMeaning::kValue ? 1 : 0;
    for_blocks([&](const RawBlock& block, const std::vector<BadRow>& left_out) {
      ids_.clear();
      for (std::vector<int64_t>& values : values_) values.clear();
      rows_ += static_cast<int64_t>(block.rows);
      for (size_t row = 0, bad = 0, left = 0; row < block.rows; ++row) {
        if (is_listed(left_out, row, left)) continue;
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
      for (size_t k = 0; k < columns_.size(); ++k) {
        store.set_attribute(columns_[k], ids_, values_[k]);
      }
      return true;
    });
    if (dictionary_) dictionary_->save(attribute_.name, store);
  }

  bool has_new_owners() const { return new_owners_; }

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
    if (const auto cut = std::ranges::count(cut_, true); cut > 0) {
      base::log_info(fmt::format(
          "{}: {}s with more than {} values of {}: {}; the first {} of each are kept (max_values)",
          path, attribute_.whose(), columns_.size(), attribute_.name, cut, columns_.size()));
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
      id = owners_.find(item, row);
      if (id < 0) return;  // no event has it
      new_owners_ = new_owners_ || id >= owners_.dictionary->kept();
    } else {
      id = item.integers[row];
    }
    const auto check = [&](int64_t number) {
      if (is_id(id) && number >= 0 && number <= kLargestAttribute - shift_) return;
      fail_row(path, place, {attribute_.value, "is out of range"},
               fmt::format("{0} {1} has attribute {2}; {0}s are from 0 to {3}, attributes from 0 "
                           "to {4}",
                           attribute_.whose(), id, number, StoreWriter::kLargestId,
                           kLargestAttribute - shift_));
    };
    kept_.clear();
    bool more = false;
    const auto keep = [&](int64_t number) {
      check(number);
      zeros_ += number == 0 ? 1 : 0;
      number += shift_;
      if (number == 0 || std::ranges::find(kept_, number) != kept_.end()) return;
      if (kept_.size() == columns_.size()) {
        more = true;
      } else {
        kept_.push_back(number);
      }
    };
    if (value.type == RawColumn::Type::kText) {
      for_values(value.text(row), attribute_.separator,
                 [&](std::string_view text) { keep(number_of(text)); });
    } else {
      const int64_t number = value.integers[row];
      keep(dictionary_ ? dictionary_->find(number) + 1 : number);
    }
    if (kept_.empty()) check(0);
    ids_.push_back(id);
    kept_.resize(columns_.size());  // 0: none
    for (size_t k = 0; k < kept_.size(); ++k) values_[k].push_back(kept_[k]);
    if (!attribute_.several()) return;
    const auto of = static_cast<size_t>(id);
    if (of >= cut_.size()) cut_.resize(of + 1);
    cut_[of] = more;
  }

  /// Of a text of the files: in the dictionary, or an integer.
  int64_t number_of(std::string_view text) const {
    if (dictionary_) return dictionary_->find(text) + 1;
    int64_t number = 0;
    parse_whole_integer(text, number);
    return number;
  }

  std::vector<ColumnRequest> requests() const {
    const std::string hint = fmt::format("; {}s of the log are integers", attribute_.whose());
    return {owners_.request(attribute_.item, hint), value_request()};
  }
  /// Texts, or integers of a file that says so.
  ColumnRequest value_request() const {
    ColumnRequest request = {.name = attribute_.value, .role = ColumnRole::kText, .exact = true};
    if (!attribute_.several()) return request;
    request.exact = false;
    request.hint = fmt::format(
        "; several values of attribute \"{}\" are one text, such as \"a{}b\": write the column so, "
        "or leave separator and max_values out if it has one value",
        attribute_.name, attribute_.separator);
    return request;
  }

  /// An item, or user, that an event may have.
  bool has_owner(const RawColumn& item, size_t row) const {
    return item.is_valid(row) && (owners_.dictionary || is_id(item.integers[row]));
  }
  static bool is_id(int64_t id) { return id >= 0 && id <= StoreWriter::kLargestId; }

  /// Every block, and its rows that the log left out, until `each` returns false.
  template <class Each>
  void for_blocks(const Each& each) const {
    std::optional<LeftOutRows> left_out;
    if (options_.mark_bad_rows) left_out.emplace(log_, files_);
    LogReader reader(files_, requests(), options_);
    RawBlock block;
    while (reader.next(block)) {
      if (!each(block, left_out ? left_out->of(block) : std::vector<BadRow>())) return;
    }
  }
  /// Every value, as text, of rows that read() takes, until `each` has enough and returns false.
  template <class Each>
  void for_texts(const Each& each) const {
    for_blocks([&](const RawBlock& block, const std::vector<BadRow>& left_out) {
      bool more = true;
      for (size_t row = 0, bad = 0, left = 0; more && row < block.rows; ++row) {
        if (is_listed(left_out, row, left) || is_listed(block.bad, row, bad)) continue;
        if (!has_owner(block.columns[0], row) || !block.columns[1].is_valid(row)) continue;
        const RawColumn& value = block.columns[1];
        if (value.type == RawColumn::Type::kInteger) {
          more = each(std::to_string(value.integers[row]));
          continue;
        }
        for_values(value.text(row), attribute_.separator,
                   [&](std::string_view text) { more = more && each(text); });
      }
      return more;
    });
  }
  /// By the types of files that have them, else by all values: the first may be like a number, and
  /// another one tell that it is none.
  bool all_integers() const {
    bool by_type = !attribute_.several();
    for (const LogFile& file : files_) {
      const bool typed = is_parquet(file.path);
      const bool decides = typed && !attribute_.several();
      if (decides && column_is_text({&file.path, 1}, attribute_.value, options_)) return false;
      by_type = by_type && typed;
    }
    if (by_type) return true;
    bool all = true;
    for_texts([&all](std::string_view text) {
      int64_t ignored = 0;
      return all = parse_whole_integer(text, ignored);
    });
    return all;
  }

  void skip(const RawBlock& block, size_t row, const RowFault& fault) {
    skipped_.add(files_[block.file].name, block.first_row + static_cast<int64_t>(row), fault);
  }

  const AttributeFile& attribute_;
  const std::vector<LogFile>& files_;
  const ScannedLog& log_;
  const TableOptions& options_;
  const IdColumn& owners_;
  std::vector<std::string> columns_;          // of the store
  std::vector<int64_t> ids_, kept_;           // of a block, of a row
  std::vector<std::vector<int64_t>> values_;  // of a block, for each column
  std::vector<bool> cut_;                     // items that have more values than columns
  bool new_owners_ = false;
  int64_t shift_ = 0;
  std::unique_ptr<IdDictionary> dictionary_;
  int64_t rows_ = 0, zeros_ = 0;
  SkippedRows skipped_;
};

}  // namespace

bool read_attribute(const AttributeFile& attribute, const std::vector<LogFile>& files,
                    const ScannedLog& log, const SkipLimit& skip_bad, int64_t memory_bytes,
                    const IdMaps* known, StoreWriter& store) {
  TableOptions options = log.options;
  options.csv.columns = attribute.csv_columns;
  AttributeReader reader(attribute, files, log, options);
  reader.collect(memory_bytes, known);
  reader.read(store);
  reader.report(skip_bad);
  return reader.has_new_owners();
}

}  // namespace segue::data
