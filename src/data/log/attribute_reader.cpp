#include "data/log/attribute_reader.h"

#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestAttribute = std::numeric_limits<int32_t>::max();  // of an opened store

void collect(const AttributeFile& attribute, const LogFile& file, const TableOptions& options,
             IdDictionary& dictionary) {
  const auto reader = open_table(file.path, {{attribute.value, ColumnRole::kText}}, options);
  RawBlock block;
  while (reader->read(block)) {
    for (size_t row = 0; row < block.rows; ++row) {
      if (block.columns[0].is_valid(row)) dictionary.add(block.columns[0].text(row));
    }
  }
  dictionary.finish();
}

}  // namespace

void read_attribute(const AttributeFile& attribute, const LogFile& file,
                    const TableOptions& table_options, const IdColumn& owners, int64_t memory_bytes,
                    const IdMaps* known, StoreWriter& store) {
  TableOptions options = table_options;
  options.csv.columns = attribute.csv_columns;
  const bool text = column_is_text(file.path, attribute.value, options);
  const bool text_ids = owners.dictionary && column_is_text(file.path, attribute.item, options);
  const std::unique_ptr<IdDictionary> dictionary =
      make_dictionary(text, attribute.name, attribute.value, memory_bytes, known);
  if (dictionary) collect(attribute, file, options, *dictionary);

  const auto reader =
      open_table(file.path,
                 {{attribute.item, text_ids ? ColumnRole::kText : ColumnRole::kInteger},
                  {attribute.value, text ? ColumnRole::kText : ColumnRole::kInteger}},
                 options);
  RawBlock block;
  std::vector<int64_t> ids, values;
  while (reader->read(block)) {
    ids.clear();
    values.clear();
    const RawColumn& item = block.columns[0];
    const RawColumn& value = block.columns[1];
    for (size_t row = 0; row < block.rows; ++row) {
      const int64_t place = block.first_row + static_cast<int64_t>(row);
      if (!item.is_valid(row)) {
        fail_row(file.path, place, fmt::format("column \"{}\" is empty", attribute.item));
      }
      if (!value.is_valid(row)) continue;
      int64_t id = 0;
      if (owners.dictionary) {
        id = text_ids ? owners.dictionary->find(item.text(row))
                      : owners.dictionary->find(item.integers[row]);
        if (id < 0) continue;  // no event has it
      } else {
        id = item.integers[row];
      }
      const int64_t number = text ? dictionary->find(value.text(row)) + 1 : value.integers[row];
      if (id < 0 || id > StoreWriter::kLargestId || number < 0 || number > kLargestAttribute) {
        fail_row(
            file.path, place,
            fmt::format("{0} {1} has attribute {2}; {0}s are from 0 to {3}, attributes from 0 "
                        "to {4}",
                        attribute.whose(), id, number, StoreWriter::kLargestId, kLargestAttribute));
      }
      ids.push_back(id);
      values.push_back(number);
    }
    store.set_attribute(attribute.name, ids, values);
  }
  if (dictionary) dictionary->save(attribute.name, store);
}

}  // namespace segue::data
