#include "batch/batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"

namespace segue {
namespace {

template <class Item>
auto find_by_name(std::vector<Item>& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const Item& i) { return i.name == name; });
}
template <class Item>
auto find_by_name(const std::vector<Item>& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const Item& i) { return i.name == name; });
}

template <class Item>
[[noreturn]] void fail_not_found(const char* what, std::string_view name,
                                 const std::vector<Item>& items) {
  std::string names;
  for (const Item& item : items) names += (names.empty() ? "`" : ", `") + item.name + "`";
  fail(ErrorCode::kNotFound, fmt::format("the batch has no {} `{}`; it has {}", what, name,
                                         names.empty() ? "none" : names));
}

/// Appends to `to` and returns where the new part starts.
int64_t* extend(HostArray<int64_t>& to, int64_t count) {
  const int64_t size = to.size();
  to.resize(size + count);
  return to.data() + size;
}

void append(HostArray<int64_t>& to, std::span<const int64_t> values) {
  std::copy(values.begin(), values.end(), extend(to, static_cast<int64_t>(values.size())));
}

/// Appends samples [begin, begin + count) of `from` to `to`, which has the same schema.
void append_samples(Batch& to, const Batch& from, int64_t begin, int64_t count) {
  const auto first = static_cast<size_t>(begin);
  const auto samples = static_cast<size_t>(count);
  append(to.sample_index, from.sample_index.span().subspan(first, samples));
  for (size_t g = 0; g < from.groups.size(); ++g) {
    HostArray<int64_t>& offsets = to.groups[g].offsets;
    const int64_t shift = offsets[offsets.size() - 1] - from.groups[g].offsets[begin];
    int64_t* out = extend(offsets, count);
    for (int64_t i = 0; i < count; ++i) out[i] = from.groups[g].offsets[begin + i + 1] + shift;
  }
  for (size_t c = 0; c < from.columns.size(); ++c) {
    const std::span<const int64_t> offsets = from.offsets(from.columns[c]);
    const auto value = static_cast<size_t>(offsets[first]);
    append(to.columns[c].values, from.columns[c].values.span().subspan(
                                     value, static_cast<size_t>(offsets[first + samples]) - value));
  }
}

bool same_schema(const Batch& a, const Batch& b) {
  const auto equal_group = [](const Batch::Group& x, const Batch::Group& y) {
    return x.name == y.name;
  };
  const auto equal_column = [](const Batch::Column& x, const Batch::Column& y) {
    return x.name == y.name && x.group == y.group;
  };
  return std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    equal_group) &&
         std::equal(a.columns.begin(), a.columns.end(), b.columns.begin(), b.columns.end(),
                    equal_column);
}

Batch with_schema_of(const Batch& from) {
  Batch batch;
  for (const Batch::Group& group : from.groups) batch.add_group(group.name);
  for (const Batch::Column& column : from.columns) batch.add_column(column.name, column.group);
  return batch;
}

}  // namespace

int Batch::add_group(std::string name) {
  SEGUE_ASSERT(num_samples() == 0, "the schema of a filled batch is fixed");
  if (find_by_name(groups, name) != groups.end()) {
    fail(ErrorCode::kInvalidArgument, fmt::format("the batch already has a group `{}`", name));
  }
  groups.push_back({std::move(name), {}});
  groups.back().offsets.set_memory(memory_);
  groups.back().offsets.push_back(0);
  return static_cast<int>(groups.size()) - 1;
}

void Batch::use_pinned_memory() {
  memory_ = HostMemory::kPinned;
  sample_index.set_memory(memory_);
  for (Group& group : groups) group.offsets.set_memory(memory_);
  for (Column& column : columns) column.values.set_memory(memory_);
}

int Batch::add_column(std::string name, int group) {
  SEGUE_ASSERT(num_samples() == 0, "the schema of a filled batch is fixed");
  SEGUE_ASSERT(group >= 0 && group < static_cast<int>(groups.size()), "no such group");
  if (find_column(name) != nullptr) {
    fail(ErrorCode::kInvalidArgument, fmt::format("the batch already has a column `{}`", name));
  }
  columns.push_back({std::move(name), group, {}});
  columns.back().values.set_memory(memory_);
  return static_cast<int>(columns.size()) - 1;
}

void Batch::clear() {
  for (Group& group : groups) {
    group.offsets.resize(1);
    group.offsets[0] = 0;
  }
  for (Column& column : columns) column.values.resize(0);
  sample_index.resize(0);
  global_samples = 0;
}

const Batch::Group& Batch::group(std::string_view name) const {
  const auto found = find_by_name(groups, name);
  if (found == groups.end()) fail_not_found("group", name, groups);
  return *found;
}

Batch::Group& Batch::group(std::string_view name) {
  return const_cast<Group&>(std::as_const(*this).group(name));
}

const Batch::Column& Batch::column(std::string_view name) const {
  const Column* found = find_column(name);
  if (found == nullptr) fail_not_found("column", name, columns);
  return *found;
}

Batch::Column& Batch::column(std::string_view name) {
  return const_cast<Column&>(std::as_const(*this).column(name));
}

const Batch::Column* Batch::find_column(std::string_view name) const {
  const auto found = find_by_name(columns, name);
  return found == columns.end() ? nullptr : &*found;
}

void Batch::validate() const {
  for (const Group& group : groups) {
    const std::span<const int64_t> offsets = group.offsets.span();
    if (group.offsets.size() != num_samples() + 1) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("group `{}` of the batch has {} offsets; {} samples need {}", group.name,
                       offsets.size(), num_samples(), num_samples() + 1));
    }
    if (offsets.front() != 0) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("the offsets of group `{}` of the batch start at {}, not at 0", group.name,
                       offsets.front()));
    }
    const auto drop = std::adjacent_find(offsets.begin(), offsets.end(), std::greater<>());
    if (drop != offsets.end()) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("the offsets of group `{}` of the batch fall from {} to {} at sample {}",
                       group.name, drop[0], drop[1], drop - offsets.begin()));
    }
  }
  for (const Column& column : columns) {
    if (column.group < 0 || column.group >= static_cast<int>(groups.size())) {
      fail(ErrorCode::kInvalidArgument, fmt::format("column `{}` of the batch names group {} of {}",
                                                    column.name, column.group, groups.size()));
    }
    const int64_t expected = offsets(column).back();
    if (column.values.size() != expected) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("column `{}` of the batch has {} values; the offsets of its group `{}` end "
                       "at {}",
                       column.name, column.values.size(),
                       groups[static_cast<size_t>(column.group)].name, expected));
    }
  }
}

Batch Batch::slice(int64_t begin, int64_t count) const {
  SEGUE_ASSERT(begin >= 0 && count >= 0 && count <= num_samples() - begin,
               "slice beyond the samples of the batch");
  Batch part = with_schema_of(*this);
  append_samples(part, *this, begin, count);
  part.global_samples = global_samples;
  return part;
}

Batch Batch::concatenate(std::span<const Batch* const> parts) {
  if (parts.empty()) return {};
  Batch whole = with_schema_of(*parts.front());
  for (const Batch* part : parts) {
    if (!same_schema(whole, *part)) {
      fail(ErrorCode::kInvalidArgument,
           "batches with different groups or columns cannot be put together");
    }
    append_samples(whole, *part, 0, part->num_samples());
    // Parts of one step agree on this number, except that one which was never filled says 0.
    whole.global_samples = std::max(whole.global_samples, part->global_samples);
  }
  return whole;
}

// ---- message -----------------------------------------------------------------------------------
//
// A sequence of little-endian 64-bit words; texts are padded with zeros to whole words:
//   magic, message bytes, XXH64 of everything behind these three words,
//   samples, global samples, number of groups, number of columns,
//   per group:  bytes of its name, name
//   per column: bytes of its name, name, group, number of values
//   sample_index [samples], offsets [samples + 1] per group, values per column

namespace {

constexpr uint64_t kMagic = 0x3148435441424753ull;  // "SGBATCH1"
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kHeaderBytes = 3 * kWord;

size_t padded(size_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

uint64_t checksum(std::span<const std::byte> message) {
  const std::span<const std::byte> body = message.subspan(kHeaderBytes);
  return base::xxh64(body.data(), body.size());
}

class Writer {
 public:
  explicit Writer(size_t bytes) : message_(bytes) {}

  void word(int64_t value) { bytes(&value, sizeof(value)); }
  void text(std::string_view text) {
    word(static_cast<int64_t>(text.size()));
    bytes(text.data(), text.size());
    at_ = padded(at_);
  }
  void words(std::span<const int64_t> values) { bytes(values.data(), values.size_bytes()); }

  std::vector<std::byte> finish() {
    SEGUE_ASSERT(at_ == message_.size(), "a packed batch is as long as planned");
    const uint64_t header[3] = {kMagic, message_.size(), checksum(message_)};
    std::memcpy(message_.data(), header, sizeof(header));
    return std::move(message_);
  }

 private:
  void bytes(const void* data, size_t count) {
    SEGUE_ASSERT(count <= message_.size() - at_, "a packed batch is as long as planned");
    if (count > 0) std::memcpy(message_.data() + at_, data, count);
    at_ += count;
  }

  std::vector<std::byte> message_;
  size_t at_ = kHeaderBytes;
};

/// Trusts nothing: every count is checked against what is left before it is used.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : left_(message) {
    if (message.size() < kHeaderBytes || message.size() % kWord != 0) {
      fail_corrupt("it is cut off");
    }
    if (static_cast<uint64_t>(word()) != kMagic) fail_corrupt("it does not start like one");
    if (static_cast<uint64_t>(word()) != message.size()) fail_corrupt("it is cut off");
    if (static_cast<uint64_t>(word()) != checksum(message)) fail_corrupt("its checksum is wrong");
  }

  int64_t word() {
    int64_t value = 0;
    std::memcpy(&value, take(1).data(), sizeof(value));
    return value;
  }
  /// A number of things that take at least `words_each` words further on.
  int64_t count(int64_t words_each) {
    const int64_t value = word();
    if (value < 0 || value > words_left() / words_each) fail_corrupt("a count is too large");
    return value;
  }
  std::string text() {
    const int64_t bytes = word();
    if (bytes < 0 || bytes > static_cast<int64_t>(left_.size())) {
      fail_corrupt("a name is too long");
    }
    const auto size = static_cast<size_t>(bytes);
    const std::span<const std::byte> part = take(static_cast<int64_t>(padded(size) / kWord));
    return {reinterpret_cast<const char*>(part.data()), size};
  }
  void words(int64_t count, HostArray<int64_t>& to) {
    const std::span<const std::byte> part = take(count);
    to.resize(count);
    if (count > 0) std::memcpy(to.data(), part.data(), part.size());
  }
  void finish() const {
    if (!left_.empty()) fail_corrupt("it is longer than it says");
  }

  [[noreturn]] static void fail_corrupt(std::string_view why) {
    fail(ErrorCode::kCorrupt, fmt::format("damaged batch message: {}", why));
  }

 private:
  int64_t words_left() const { return static_cast<int64_t>(left_.size() / kWord); }
  std::span<const std::byte> take(int64_t words) {
    if (words > words_left()) fail_corrupt("it ends early");
    const size_t bytes = static_cast<size_t>(words) * kWord;
    const std::span<const std::byte> part = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return part;
  }

  std::span<const std::byte> left_;
};

}  // namespace

std::vector<std::byte> Batch::pack() const {
  validate();
  size_t bytes = kHeaderBytes + 4 * kWord + sample_index.span().size_bytes();
  for (const Group& group : groups) {
    bytes += kWord + padded(group.name.size()) + group.offsets.span().size_bytes();
  }
  for (const Column& column : columns) {
    bytes += 3 * kWord + padded(column.name.size()) + column.values.span().size_bytes();
  }

  Writer out(bytes);
  out.word(num_samples());
  out.word(global_samples);
  out.word(static_cast<int64_t>(groups.size()));
  out.word(static_cast<int64_t>(columns.size()));
  for (const Group& group : groups) out.text(group.name);
  for (const Column& column : columns) {
    out.text(column.name);
    out.word(column.group);
    out.word(column.values.size());
  }
  out.words(sample_index.span());
  for (const Group& group : groups) out.words(group.offsets.span());
  for (const Column& column : columns) out.words(column.values.span());
  return out.finish();
}

Batch Batch::unpack(std::span<const std::byte> message) {
  Reader in(message);
  const int64_t samples = in.count(1);
  Batch batch;
  batch.global_samples = in.word();
  const int64_t num_groups = in.count(1);
  const int64_t num_columns = in.count(3);
  try {
    for (int64_t g = 0; g < num_groups; ++g) batch.add_group(in.text());
    std::vector<int64_t> num_values;
    for (int64_t c = 0; c < num_columns; ++c) {
      std::string name = in.text();
      const int64_t group = in.word();
      if (group < 0 || group >= num_groups) Reader::fail_corrupt("a column has no group");
      batch.add_column(std::move(name), static_cast<int>(group));
      num_values.push_back(in.count(1));
    }
    in.words(samples, batch.sample_index);
    for (Group& group : batch.groups) in.words(samples + 1, group.offsets);
    for (size_t c = 0; c < batch.columns.size(); ++c) {
      in.words(num_values[c], batch.columns[c].values);
    }
    in.finish();
    batch.validate();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) throw;
    Reader::fail_corrupt(error.what());  // two columns of one name, offsets that fall, ...
  }
  return batch;
}

}  // namespace segue
