#include "base/sealed_json.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"

namespace segue::base {
namespace {

constexpr size_t kHexDigits = 16;

/// The last member and what closes the object; `body` is everything before it.
std::string ending(std::string_view body) {
  return fmt::format(",\n  \"checksum\": \"{}\"\n}}\n", hex64(xxh64(body)));
}
constexpr size_t kEndingBytes = 37;

std::string_view body_of(std::string_view text) {
  return text.substr(0, text.size() - std::min(text.size(), kEndingBytes));
}

}  // namespace

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex64(const std::string& text) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value, 16);
  if (error != std::errc() || end != last || text.size() != kHexDigits) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}` is not a checksum", text));
  }
  return value;
}

std::string seal_json(const CheckedJson& object) {
  std::string body = object.dump(2);
  body.resize(body.size() - 2);  // "\n}" comes back with the ending
  const std::string end = ending(body);
  SEGUE_ASSERT(end.size() == kEndingBytes, "the ending of a manifest has another size");
  return body + end;
}

uint64_t seal_of(const std::string& sealed) { return xxh64(body_of(sealed)); }

void unseal_json(const std::string& text, const std::string& path,
                 const std::function<void(const CheckedJson&)>& use) {
  const std::string_view body = body_of(text);
  if (std::string_view(text).substr(body.size()) != ending(body)) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: checksum is wrong; the file was changed or cut", path));
  }
  try {
    use(parse_checked(text));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    fail(ErrorCode::kCorrupt, fmt::format("{}: broken manifest: {}", path, error.what()));
  }
}

CheckedJson to_json(std::span<const FileRecord> files) {
  CheckedJson list = CheckedJson::array();
  for (const FileRecord& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", hex64(file.xxh64)}});
  }
  return list;
}

std::vector<FileRecord> files_from_json(const CheckedJson& manifest) {
  std::vector<FileRecord> files;
  std::set<std::string> names;
  int64_t total = 0;
  for (const CheckedJson& file : list_of(manifest, "files")) {
    FileRecord record;
    record.name = text_of(file, "name");
    record.bytes = whole_number(file, "bytes", 0, kMostCounted - total);
    record.xxh64 = from_hex64(text_of(file, "xxh64"));
    total += record.bytes;
    if (!names.insert(record.name).second) {
      fail(ErrorCode::kCorrupt, fmt::format("file `{}` is there twice", record.name));
    }
    files.push_back(std::move(record));
  }
  return files;
}

}  // namespace segue::base
