#include "data/log/id_dictionary.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_io.h"
#include "base/hash.h"
#include "data/log/table_reader.h"

namespace segue::data {
namespace {

constexpr size_t kFirstSlots = 1 << 10;
constexpr size_t kLongText = 1 << 12;  // a thousand shorter ones fit into any memory
constexpr size_t kMostValues = std::numeric_limits<int32_t>::max();

/// Decimal text of an integer, without allocating.
class IntegerText {
 public:
  explicit IntegerText(int64_t value) {
    size_ = static_cast<size_t>(std::to_chars(text_, text_ + sizeof(text_), value).ptr - text_);
  }
  operator std::string_view() const { return {text_, size_}; }

 private:
  char text_[24];
  size_t size_;
};

int64_t as_integer(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

IdDictionary::IdDictionary(std::string column, int64_t memory_bytes)
    : column_(std::move(column)), memory_bytes_(memory_bytes), slots_(kFirstSlots) {}

std::string_view IdDictionary::value(uint32_t index) const {
  const uint64_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(chars_).substr(begin, ends_[index] - begin);
}

size_t IdDictionary::slot_of(std::string_view value_wanted) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = base::xxh64(value_wanted) & mask;
  while (slots_[slot] != 0 && value(slots_[slot] - 1) != value_wanted) slot = (slot + 1) & mask;
  return slot;
}

void IdDictionary::check_memory() const {
  // What finish() and find() will need comes on top: 8 bytes per value.
  const size_t bytes = chars_.capacity() + ends_.capacity() * sizeof(uint64_t) +
                       slots_.size() * sizeof(uint32_t) + ends_.size() * 8;
  if (static_cast<int64_t>(bytes) > memory_bytes_ || ends_.size() >= kMostValues) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("column \"{}\": its first {} distinct values take more than the {} MiB set "
                     "aside for them; allow more memory",
                     column_, ends_.size(), memory_bytes_ >> 20));
  }
}

void IdDictionary::grow_table() {
  std::vector<uint32_t>(slots_.size() * 2).swap(slots_);
  for (uint32_t i = 0; i < ends_.size(); ++i) slots_[slot_of(value(i))] = i + 1;
}

void IdDictionary::add(std::string_view text) {
  const size_t slot = slot_of(text);
  if (slots_[slot] != 0) return;
  if (text.find_first_of("\r\n") != std::string_view::npos) {
    fail(ErrorCode::kCorrupt, fmt::format("column \"{}\": an id with a line end in it", column_));
  }
  chars_.append(text);
  ends_.push_back(chars_.size());
  slots_[slot] = static_cast<uint32_t>(ends_.size());
  if ((ends_.size() & 1023) == 0 || text.size() > kLongText) check_memory();
  if (ends_.size() * 2 > slots_.size()) grow_table();
}

void IdDictionary::add(int64_t number) { add(IntegerText(number)); }

void IdDictionary::add_untyped(std::string_view text) {
  int64_t value = 0;
  const bool point = text.ends_with('0') || text.ends_with('.');
  if (point && parse_whole_integer(text, value) && slots_[slot_of(text)] == 0) return add(value);
  add(text);
}

void IdDictionary::keep(const IdMaps& maps, const std::string& name) {
  int64_t read = 0;
  maps.read(name, [&](std::string_view id) {
    add(id);
    ++read;
    return true;
  });
  if (read != size()) {
    fail(ErrorCode::kCorrupt, fmt::format("{}/{}: has an id twice, which would have two numbers",
                                          maps.store(), maps.file_name(name)));
  }
  kept_ = ends_.size();
}

bool IdDictionary::all_integers(size_t first) const {
  int64_t ignored = 0;
  return std::all_of(order_.begin() + static_cast<std::ptrdiff_t>(first), order_.end(),
                     [&](uint32_t i) { return parse_canonical_integer(value(i), ignored); });
}

void IdDictionary::finish() {
  order_.resize(ends_.size());
  std::iota(order_.begin(), order_.end(), 0);
  integers_ = all_integers(0);
  std::sort(order_.begin() + static_cast<std::ptrdiff_t>(kept_), order_.end(),
            [this](uint32_t a, uint32_t b) {
              return integers_ ? as_integer(value(a)) < as_integer(value(b)) : value(a) < value(b);
            });
  numbers_.resize(order_.size());
  for (uint32_t i = 0; i < order_.size(); ++i) numbers_[order_[i]] = i;
}

int64_t IdDictionary::find(std::string_view text) const {
  const uint32_t index = slots_[slot_of(text)];
  return index == 0 ? -1 : int64_t{numbers_[index - 1]};
}

int64_t IdDictionary::find(int64_t number) const { return find(IntegerText(number)); }

int64_t IdDictionary::find_untyped(std::string_view text) const {
  const int64_t number = find(text);
  int64_t value = 0;
  return number < 0 && parse_whole_integer(text, value) ? find(value) : number;
}

IdRecord IdDictionary::record(const std::string& name) const {
  IdHash hash;
  for (const uint32_t i : order_) hash.add(value(i));
  return {name, size(), hash.digest()};
}

base::FileRecord IdDictionary::write(const StoreStage& stage, const std::string& name,
                                     int64_t first) const {
  const auto begin = static_cast<size_t>(first);
  const std::span<const uint32_t> written = std::span(order_).subspan(begin);
  const bool integers = all_integers(begin);
  const std::string file = fmt::format("segue/{}_ids.{}", name, integers ? "npy" : "txt");
  const std::string path = stage.path(file);
  base::FileRecord record;
  if (integers) {
    base::ColumnFile out(path, "<i8");
    for (const uint32_t i : written) out.append(as_integer(value(i)));
    record = out.finish();
  } else {
    base::HashedFile out(path);
    for (const uint32_t i : written) {
      out.write(value(i));
      out.write("\n");
    }
    record = out.finish();
  }
  record.name = file;
  return record;
}

void IdDictionary::save(const std::string& name, StoreWriter& store) const {
  const int64_t first = store.is_segment() ? kept() : 0;
  if (first == 0 || has_new()) store.add_file(write(store.stage(), name, first));
  store.add_ids(record(name));
}

std::unique_ptr<IdDictionary> make_dictionary(bool numbered, const std::string& name,
                                              const std::string& column, int64_t memory_bytes,
                                              const IdMaps* known) {
  if (known != nullptr && known->has_column(name) && known->is_numbered(name) != numbered) {
    fail(ErrorCode::kConfig,
         numbered
             ? fmt::format(
                   "column \"{}\" has ids that get numbers, but in {} they are integers "
                   "that stayed as they are; prepare the whole log, without --append or --ids-from",
                   column, known->store())
             : fmt::format("column \"{}\" has integers that stay as they are, but {} has numbers "
                           "for such ids ({}); is it of the same log, and {} the right column?",
                           column, known->store(), known->file_name(name), column));
  }
  if (!numbered) return nullptr;
  auto dictionary = std::make_unique<IdDictionary>(column, memory_bytes);
  if (known != nullptr && known->is_numbered(name)) dictionary->keep(*known, name);
  return dictionary;
}

}  // namespace segue::data
