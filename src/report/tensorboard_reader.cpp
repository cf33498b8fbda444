#include "report/tensorboard_reader.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/file.h"
#include "report/tensorboard_format.h"

namespace segue::report {
namespace {

namespace fs = std::filesystem;

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

/// Takes the next whole record off `rest`; nullopt: what follows was cut off or is damaged.
std::optional<std::string_view> next_record(std::string_view& rest) {
  constexpr size_t kLength = 8, kCrc = 4;
  if (rest.size() < kLength + kCrc) return std::nullopt;
  const std::string_view length = rest.substr(0, kLength);
  const uint64_t size = little_endian(length);
  if (little_endian(rest.substr(kLength, kCrc)) != detail::masked_crc(length)) return std::nullopt;
  rest.remove_prefix(kLength + kCrc);
  if (rest.size() < kCrc || rest.size() - kCrc < size) return std::nullopt;
  const std::string_view record = rest.substr(0, size);
  if (little_endian(rest.substr(size, kCrc)) != detail::masked_crc(record)) return std::nullopt;
  rest.remove_prefix(size + kCrc);
  return record;
}

/// Walks over the fields of a message, up to the first that is no field.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  bool next() {
    uint64_t key = 0;
    bits = 0;
    bytes = {};
    if (!take_varint(key)) return false;
    number = key >> 3;
    switch (key & 7) {
      case detail::kVarint:
        return take_varint(bits);
      case detail::kFixed64:
        return take(sizeof(uint64_t));
      case detail::kFixed32:
        return take(sizeof(uint32_t));
      case detail::kBytes:
        return take_varint(key) && take(key);
      default:
        return false;
    }
  }

  uint64_t number = 0;
  uint64_t bits = 0;       // of a varint
  std::string_view bytes;  // of any other field

 private:
  bool take_varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7fu) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool take(uint64_t size) {
    if (size > rest_.size()) return false;
    bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

bool is_start(std::string_view session) {
  for (Fields field(session); field.next();) {
    if (field.number == detail::kSessionStatus) {
      return static_cast<int64_t>(field.bits) == detail::kSessionStart;
    }
  }
  return false;
}

std::optional<ScalarPoint> scalar_of(std::string_view value, int64_t step) {
  std::optional<float> number;
  ScalarPoint point{.step = step};
  for (Fields field(value); field.next();) {
    if (field.number == detail::kValueTag) point.tag = field.bytes;
    if (field.number == detail::kValueSimple && field.bytes.size() == sizeof(float)) {
      number = std::bit_cast<float>(static_cast<uint32_t>(little_endian(field.bytes)));
    }
  }
  if (!number) return std::nullopt;  // an image, a text
  point.value = *number;
  return point;
}

void take_event(std::string_view record, int64_t from, std::vector<ScalarPoint>& points) {
  int64_t step = 0;
  std::string_view summary, session;
  for (Fields field(record); field.next();) {
    if (field.number == detail::kEventStep) step = static_cast<int64_t>(field.bits);
    if (field.number == detail::kEventSummary) summary = field.bytes;
    if (field.number == detail::kEventSessionLog) session = field.bytes;
  }
  if (is_start(session)) {
    std::erase_if(points, [&](const ScalarPoint& p) { return p.step >= step; });
  }
  if (step < from) return;
  for (Fields field(summary); field.next();) {
    if (field.number != detail::kSummaryValue) continue;
    if (auto point = scalar_of(field.bytes, step)) points.push_back(std::move(*point));
  }
}

}  // namespace

std::vector<std::string> detail::event_files(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(kEventFilePrefix)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

std::vector<ScalarPoint> read_tensorboard(const std::string& folder, int64_t from) {
  std::vector<ScalarPoint> points;
  for (const std::string& name : detail::event_files(folder)) {
    const base::MappedFile file(folder + "/" + name);
    std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    while (const auto record = next_record(rest)) take_event(*record, from, points);
  }
  return points;
}

}  // namespace segue::report
