// A raw log as CSV: read by columns of every role and made into events; the same whatever the size
// of the buffer and of the blocks; written again with every field in quotes. Input: separator,
// whether there is a header line, size of buffer and blocks, then the text.

#include <array>
#include <vector>

#include "data/log/event_normalizer.h"
#include "data/log/log_schema.h"
#include "data/log/table_reader.h"
#include "fuzz.h"

namespace {

using namespace segue;
using data::ColumnRole;

constexpr std::array<const char*, 5> kSeparators = {",", "\t", ";", "::", " "};
const std::vector<std::string> kNames = {"uid", "item_id", "timestamp", "kind", "value"};
constexpr size_t kMostRows = 1 << 15;  // of a block, as production reads

struct Table {
  std::string_view text;
  data::CsvFormat format;
};

/// A buffer for all of it, as a file of this size gets.
size_t whole(std::string_view text) { return std::max<size_t>(text.size() + 1, 4); }

/// All rows of the columns as one block.
data::RawBlock read_all(const Table& table, ColumnRole role, size_t block_rows, size_t buffer) {
  std::vector<data::ColumnRequest> requests;
  for (const std::string& name : kNames) requests.push_back({name, role});
  const auto reader =
      data::open_csv_text(table.text, "fuzz.csv", requests, table.format, block_rows, buffer);
  data::RawBlock all, block;
  all.columns.resize(requests.size());
  while (reader->read(block)) {
    fuzz::require(block.first_row == static_cast<int64_t>(all.rows), "blocks follow each other");
    for (size_t c = 0; c < requests.size(); ++c) {
      data::RawColumn& to = all.columns[c];
      const data::RawColumn& from = block.columns[c];
      for (size_t row = 0; row < block.rows; ++row) {
        to.valid.push_back(from.is_valid(row) ? 1 : 0);
        if (from.type == data::RawColumn::Type::kInteger) to.integers.push_back(from.integers[row]);
        if (from.type == data::RawColumn::Type::kText) to.texts.add(from.text(row));
      }
    }
    all.rows += block.rows;
  }
  return all;
}

bool same(const data::RawBlock& a, const data::RawBlock& b) {
  if (a.rows != b.rows) return false;
  for (size_t c = 0; c < a.columns.size(); ++c) {
    const data::RawColumn& x = a.columns[c];
    const data::RawColumn& y = b.columns[c];
    if (x.valid != y.valid || x.integers != y.integers || x.texts.size() != y.texts.size()) {
      return false;
    }
    for (size_t i = 0; i < x.texts.size(); ++i) {
      if (x.texts[i] != y.texts[i]) return false;
    }
  }
  return true;
}

std::string quoted(std::string_view field) {
  std::string text = "\"";
  for (const char c : field) text.append(c == '"' ? 2 : 1, c);
  return text + '"';
}

/// What was read as text, written in quotes, reads the same.
void check_round_trip(const data::RawBlock& block) {
  std::string text;
  for (size_t row = 0; row < block.rows; ++row) {
    for (size_t c = 0; c < block.columns.size(); ++c) {
      text += (c == 0 ? "" : ",") + quoted(block.columns[c].texts[row]);
    }
    text += '\n';
  }
  const Table table{text, {",", kNames}};
  fuzz::require(same(block, read_all(table, ColumnRole::kText, kMostRows, whole(text))),
                "fields in quotes read as what they were");
}

data::LogSchema schema_of(const data::CsvFormat& format) {
  data::LogSchema schema;
  schema.events = "fuzz.csv";
  schema.kind = "kind";
  schema.value = "value";
  schema.length = "value";
  schema.kinds = {"play", "like", "7"};
  schema.anchor_kinds = {"play"};
  schema.pools = {{.name = "long", .kinds = {"play"}, .min_value = 30},
                  {.name = "liked", .bit = 2, .kinds = {"like", "7"}}};
  schema.csv_separator = format.separator;
  schema.csv_columns = format.columns;
  schema.validate();
  return schema;
}

void make_events(const Table& table, size_t block_rows, size_t buffer) {
  const data::LogSchema schema = schema_of(table.format);
  const std::vector<data::LogFile> files = {{"fuzz.csv", "fuzz.csv", 0}};
  const data::IdColumn users, items;
  data::EventNormalizer normalizer(schema, files, users, items);
  const auto reader = data::open_csv_text(table.text, "fuzz.csv", normalizer.requests(),
                                          table.format, block_rows, buffer);
  data::RawBlock block;
  std::vector<data::Event> events;
  // Rows that cannot be used are left out: no text of a table is an error.
  const auto tolerant = data::open_csv_text(table.text, "fuzz.csv", normalizer.requests(),
                                            table.format, block_rows, buffer, true);
  while (tolerant->read(block)) {
    const size_t before = events.size();
    const size_t bad = normalizer.add_good(block, events);
    fuzz::require(events.size() - before + bad == block.rows, "every row is an event or bad");
  }
  while (reader->read(block)) normalizer.add(block, events);
  const data::EventRules rules(schema);
  for (const data::Event& event : events) {
    for (size_t pool = 0; pool < rules.num_pools(); ++pool) fuzz::touch(rules.in_pool(pool, event));
    fuzz::require(event.user >= 0 && event.item >= 0 && event.time >= 0 && event.kind < 3,
                  "an event is within its limits");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Table table;
  table.format.separator = kSeparators[input.byte() % kSeparators.size()];
  if (input.byte() % 2 == 0) table.format.columns = kNames;
  const size_t buffer = 4 + input.byte() % 60u, block_rows = 1 + input.byte() % 4u;
  table.text = input.rest();

  for (const ColumnRole role : {ColumnRole::kText, ColumnRole::kInteger, ColumnRole::kWhole,
                                ColumnRole::kNumber, ColumnRole::kKind}) {
    const auto small = fuzz::accepted([&] { return read_all(table, role, block_rows, buffer); });
    const auto large =
        fuzz::accepted([&] { return read_all(table, role, kMostRows, whole(table.text)); });
    fuzz::require(small.has_value() == large.has_value(), "a buffer decides nothing");
    if (!small) continue;
    fuzz::require(same(*small, *large), "a buffer changes nothing");
    if (role == ColumnRole::kText) check_round_trip(*small);
  }
  fuzz::accepted_all([&] { make_events(table, block_rows, buffer); });
  return 0;
}
