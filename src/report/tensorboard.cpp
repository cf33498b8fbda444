#include "report/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "report/tensorboard_format.h"
#include "report/tensorboard_reader.h"

namespace segue::report {
namespace {

// Castagnoli polynomial, reflected; one step per byte is plenty for a few scalars per second.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

template <class Unsigned>
void put_little_endian(std::string& out, Unsigned value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xffu);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
void put_key(std::string& out, uint64_t field, detail::WireType type) {
  put_varint(out, field << 3 | type);
}
void put_double(std::string& out, uint64_t field, double value) {
  put_key(out, field, detail::kFixed64);
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}
void put_float(std::string& out, uint64_t field, float value) {
  put_key(out, field, detail::kFixed32);
  put_little_endian(out, std::bit_cast<uint32_t>(value));
}
void put_integer(std::string& out, uint64_t field, int64_t value) {
  put_key(out, field, detail::kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}
void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_key(out, field, detail::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

double wall_time_now() { return static_cast<double>(base::unix_time_ms()) / 1000.0; }

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != 0 ? name : "localhost";
}

/// Of the name; 0: not one of ours.
int64_t seconds_of(std::string_view name) {
  constexpr size_t kDigits = 10;
  const std::string_view digits = name.substr(detail::kEventFilePrefix.size()).substr(0, kDigits);
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  return error == std::errc() && end == digits.data() + kDigits ? seconds : 0;
}

/// Readers take files in the order of their names. So the seconds of a new one are later than those
/// of all before, also after a restart within a second, on another host, or of the clock.
int open_new(const std::string& folder, std::string& path) {
  int64_t seconds = base::unix_time_ms() / 1000;
  for (const std::string& name : detail::event_files(folder)) {
    seconds = std::max(seconds, seconds_of(name) + 1);
  }
  path = fmt::format("{}/{}{}.{}.{}", folder, detail::kEventFilePrefix, seconds, host_name(),
                     ::getpid());
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor >= 0) return descriptor;
  fail(ErrorCode::kIo, fmt::format("{}: cannot create: {}", path, std::strerror(errno)));
}

}  // namespace

namespace detail {

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  }
  return ~crc;
}

uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string tf_record(std::string_view bytes) {
  std::string out;
  put_little_endian(out, static_cast<uint64_t>(bytes.size()));
  put_little_endian(out, masked_crc(out));
  out += bytes;
  put_little_endian(out, masked_crc(bytes));
  return out;
}

std::string version_event(double wall_time) {
  std::string event;
  put_double(event, kEventWallTime, wall_time);
  put_bytes(event, kEventFileVersion, "brain.Event:2");
  return event;
}

std::string restart_event(double wall_time, int64_t step) {
  std::string session, event;
  put_integer(session, kSessionStatus, kSessionStart);
  put_double(event, kEventWallTime, wall_time);
  put_integer(event, kEventStep, step);
  put_bytes(event, kEventSessionLog, session);
  return event;
}

std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value) {
  std::string entry, summary, event;
  put_bytes(entry, kValueTag, tag);
  put_float(entry, kValueSimple, value);
  put_bytes(summary, kSummaryValue, entry);
  put_double(event, kEventWallTime, wall_time);
  put_integer(event, kEventStep, step);
  put_bytes(event, kEventSummary, summary);
  return event;
}

}  // namespace detail

TensorboardWriter::TensorboardWriter(const std::string& folder, int64_t last_step,
                                     base::WhenFull when_full)
    : last_step_(last_step) {
  base::make_folders(folder);
  for (const ScalarPoint& point : read_tensorboard(folder, last_step)) {
    if (point.step == last_step) kept_.insert(point.tag);
  }
  const int descriptor = open_new(folder, path_);
  file_ = std::make_unique<base::AppendFile>(path_, descriptor, when_full);
  append(detail::version_event(wall_time_now()));
  append(detail::restart_event(wall_time_now(), last_step + 1));
  flush();
}

TensorboardWriter::~TensorboardWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor has nobody to tell; who wants to know calls flush().
  }
}

void TensorboardWriter::scalar(std::string_view tag, int64_t step, double value) {
  if (step == last_step_ && kept_.contains(tag)) return;
  append(detail::scalar_event(wall_time_now(), step, tag, static_cast<float>(value)));
}

void TensorboardWriter::append(const std::string& record) { buffer_ += detail::tf_record(record); }

void TensorboardWriter::flush() {
  const std::string records = std::exchange(buffer_, {});
  if (!records.empty()) file_->append(records);
}

}  // namespace segue::report
