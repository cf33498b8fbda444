#include "data/store/id_maps.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "data/store/file_check.h"

namespace segue::data {
namespace {

constexpr int64_t kBufferBytes = 1 << 20;

[[noreturn]] void corrupt_map(const std::string& path, const std::string& problem) {
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: {}; without it nobody can tell which ids the numbers of the store stand "
                   "for. Bring the file back as it was",
                   path, problem));
}

/// Hands on `file` from `begin` to its end, a buffer at a time; false: somebody has enough.
bool read_through(const base::InputFile& file, int64_t begin,
                  const std::function<bool(std::span<const char>)>& take) {
  std::vector<char> buffer(static_cast<size_t>(kBufferBytes));
  for (int64_t at = begin; at < file.size();) {
    const size_t n = file.read_at(at, buffer.data(), buffer.size());
    if (n == 0) corrupt_map(file.path(), "became shorter while it was read");
    if (!take(std::span<const char>(buffer).first(n))) return false;
    at += static_cast<int64_t>(n);
  }
  return true;
}

bool read_lines(const base::InputFile& file, const std::function<bool(std::string_view)>& each) {
  std::string rest;  // of a line that the next buffer goes on with
  const bool all = read_through(file, 0, [&](std::span<const char> bytes) {
    std::string_view text(bytes.data(), bytes.size());
    for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
      rest.append(text.substr(0, end));
      text.remove_prefix(end + 1);
      if (!each(rest)) return false;
      rest.clear();
    }
    rest.append(text);
    return true;
  });
  if (all && !rest.empty()) corrupt_map(file.path(), "does not end with a line");
  return all;
}

bool read_integers(const base::InputFile& file, int64_t count,
                   const std::function<bool(std::string_view)>& each) {
  // The manifest was checked: the elements are the last bytes of the file.
  const int64_t begin = file.size() - count * int64_t{sizeof(int64_t)};
  return read_through(file, begin, [&](std::span<const char> bytes) {
    for (size_t at = 0; at + sizeof(int64_t) <= bytes.size(); at += sizeof(int64_t)) {
      int64_t value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof(value));
      if (!each(std::to_string(value))) return false;
    }
    return true;
  });
}

}  // namespace

IdMaps::IdMaps(const std::string& store, int64_t segments) : store_(store) {
  columns_ = {"user", "item"};
  if (!base::exists(store + "/" + kManifestFile)) return;
  manifests_ = read_manifests(store, segments);
  const LogSchema schema = read_store_schema(store);
  for (const AttributeFile* const a : schema.all_attributes()) columns_.push_back(a->name);
}

bool IdMaps::has_column(const std::string& column) const {
  return std::ranges::find(columns_, column) != columns_.end();
}

std::vector<IdMaps::Map> IdMaps::maps_of(const std::string& column) const {
  std::vector<Map> maps;
  for (const StoreManifest& m : manifests_) {
    for (const char* kind : {"npy", "txt"}) {
      const base::FileRecord* file = m.find(fmt::format("segue/{}_ids.{}", column, kind));
      if (file == nullptr) continue;
      const int64_t number = m.segment.number;
      maps.push_back({number == 0 ? store_ : store_ + "/" + segment_name(number), file});
    }
  }
  return maps;
}

bool IdMaps::is_numbered(const std::string& column) const { return !maps_of(column).empty(); }

std::string IdMaps::file_name(const std::string& column) const {
  const std::vector<Map> maps = maps_of(column);
  return maps.empty() ? "" : maps.front().file->name;
}

void IdMaps::read(const std::string& column,
                  const std::function<bool(std::string_view)>& each) const {
  for (const Map& map : maps_of(column)) {
    const auto open = [&] { return base::InputFile(map.folder, map.file->name); };
    FileCheck check(open(), map.file->bytes, checksums_of(*map.file));
    check.finish();
    const base::InputFile file = open();
    if (!check.problem().empty()) corrupt_map(file.path(), check.problem());
    const bool integers = map.file->dtype == "<i8";
    if (!(integers ? read_integers(file, map.file->count, each) : read_lines(file, each))) return;
  }
}

IdRecord IdMaps::record(const std::string& column) const {
  for (auto m = manifests_.rbegin(); m != manifests_.rend(); ++m) {
    const auto found = std::ranges::find(m->ids, column, &IdRecord::column);
    if (found != m->ids.end()) return *found;
  }
  IdRecord record{.column = column};
  IdHash hash;
  read(column, [&](std::string_view id) {
    hash.add(id);
    ++record.count;
    return true;
  });
  record.xxh64 = hash.digest();
  return record;
}

uint64_t IdMaps::hash_of_first(const std::string& column, int64_t count) const {
  IdHash hash;
  if (count <= 0) return hash.digest();
  read(column, [&](std::string_view id) {
    hash.add(id);
    return --count > 0;
  });
  return hash.digest();
}

std::vector<std::string> IdMaps::problems() const {
  std::vector<std::string> problems;
  for (const std::string& column : columns_) {
    std::vector<IdRecord> records;  // of piece after piece, each with the ids of those before
    for (const StoreManifest& m : manifests_) {
      std::ranges::copy_if(m.ids, std::back_inserter(records),
                           [&](const IdRecord& r) { return r.column == column; });
    }
    IdHash hash;
    int64_t count = 0;
    auto next = records.begin();
    const auto pass = [&] {
      while (next != records.end() && *next == IdRecord{column, count, hash.digest()}) ++next;
    };
    pass();
    read(column, [&](std::string_view id) {
      hash.add(id);
      ++count;
      if (next != records.end() && next->count == count) pass();
      return true;
    });
    if (next == records.end()) continue;
    problems.push_back(
        fmt::format("the manifest has other ids of `{}` than {}", column, file_name(column)));
  }
  return problems;
}

}  // namespace segue::data
