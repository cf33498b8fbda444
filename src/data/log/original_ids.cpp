#include "data/log/original_ids.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/config_tree.h"
#include "base/error.h"

namespace segue::data {

OriginalIds::OriginalIds(const IdMaps& maps, const std::string& column)
    : store_(maps.store()), column_(column), file_(maps.file_name(column)) {
  dictionary_ = make_dictionary(maps.is_numbered(column), column, column,
                                std::numeric_limits<int64_t>::max(), &maps);
  if (dictionary_) dictionary_->finish();
}

ColumnRequest OriginalIds::request(const std::string& column) const {
  if (dictionary_) return {.name = column, .role = ColumnRole::kText, .exact = true};
  return {.name = column,
          .hint = fmt::format("; {}s of {} are integers", column_, store_),
          .exact = true};
}

void OriginalIds::fail_unknown(std::string_view id, const std::string& where) const {
  fail(ErrorCode::kOutOfRange,
       dictionary_ ? fmt::format("{}: {} \"{}\" is none of the {} that {} has ({})", where, column_,
                                 id, dictionary_->size(), store_, file_)
                   : fmt::format("{}: {} \"{}\" is no integer, as all of {} are", where, column_,
                                 id, store_));
}

int64_t OriginalIds::require(int64_t number, std::string_view id, const std::string& where) const {
  if (number < 0) fail_unknown(id, where);
  return number;
}

int64_t OriginalIds::number(const RawColumn& column, size_t row, const std::string& where) const {
  if (column.type == RawColumn::Type::kText) return number(column.text(row), where);
  const int64_t id = column.integers[row];
  return dictionary_ ? require(dictionary_->find(id), std::to_string(id), where) : id;
}

int64_t OriginalIds::number(std::string_view id, const std::string& where) const {
  if (dictionary_) return require(dictionary_->find_untyped(id), id, where);
  int64_t value = 0;
  if (!parse_canonical_integer(id, value)) fail_unknown(id, where);
  return value;
}

void OriginalIds::require_utf8(const std::string& file) const {
  for (int64_t i = 0; dictionary_ && i < dictionary_->size(); ++i) {
    if (base::detail::is_utf8(dictionary_->text(i))) continue;
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: JSON is UTF-8, and {} \"{}\" of {} is not, so that others could look the "
                     "same there; write .csv, which has ids as they are",
                     file, column_, dictionary_->text(i), store_));
  }
}

std::string OriginalIds::text(int64_t number) const {
  return dictionary_ ? std::string(dictionary_->text(number)) : std::to_string(number);
}

TableColumn OriginalIds::ids_of(std::string name, std::span<const int64_t> numbers) const {
  TableColumn column{.name = std::move(name)};
  if (!dictionary_) {
    column.integers.assign(numbers.begin(), numbers.end());
    return column;
  }
  for (const int64_t number : numbers) {
    if (number < 0 || number >= dictionary_->size()) {
      fail(ErrorCode::kCorrupt, fmt::format("{}: has the {} {}, but {} has {} ids", store_, column_,
                                            number, file_, dictionary_->size()));
    }
    const std::string_view id = dictionary_->text(number);
    int64_t value = 0;
    if (dictionary_->integers() && parse_canonical_integer(id, value)) {
      column.integers.push_back(value);
    } else {
      column.texts.emplace_back(id);
    }
  }
  return column;
}

}  // namespace segue::data
