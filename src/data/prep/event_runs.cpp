#include "data/prep/event_runs.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr size_t kBlockEvents = 512;
constexpr size_t kMostEventBytes = 3 * 10 + 5 + 5 + 2;  // varints of all fields
constexpr size_t kHeaderBytes = 12;  // events, bytes, numbers of an event; 32 bits each

size_t most_block_bytes(size_t numbers) {
  return kHeaderBytes + kBlockEvents * (kMostEventBytes + numbers * sizeof(float));
}

bool less_user_time(const Event& a, const Event& b) {
  return a.user != b.user ? a.user < b.user : a.time < b.time;
}

bool less_all(const Event& a, const Event& b) {
  if (a.user != b.user) return a.user < b.user;
  if (a.time != b.time) return a.time < b.time;
  return a < b;
}

uint64_t zigzag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
int64_t unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

uint8_t* put_varint(uint64_t value, uint8_t* p) {
  while (value >= 0x80) {
    *p++ = static_cast<uint8_t>(value | 0x80);
    value >>= 7;
  }
  *p++ = static_cast<uint8_t>(value);
  return p;
}

const uint8_t* get_varint(const uint8_t* p, uint64_t& value) {
  value = *p & 0x7f;
  for (int shift = 7; (*p++ & 0x80) != 0; shift += 7) {
    value |= static_cast<uint64_t>(*p & 0x7f) << shift;
  }
  return p;
}

/// Small whole values, the usual ones, become small integers; any other float keeps its bits.
uint64_t pack_value(float value) {
  constexpr float kMostWhole = 1 << 24;
  if (value == Event::kNoValue) return 0;
  if (value < kMostWhole && value == static_cast<float>(static_cast<uint32_t>(value))) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(value)) + 1) << 1;
  }
  return static_cast<uint64_t>(std::bit_cast<uint32_t>(value)) << 1 | 1;
}
float unpack_value(uint64_t packed) {
  if (packed == 0) return Event::kNoValue;
  if ((packed & 1) != 0) return std::bit_cast<float>(static_cast<uint32_t>(packed >> 1));
  return static_cast<float>((packed >> 1) - 1);
}

uint8_t* put_event(const Event& e, const Event& last, uint8_t* p) {
  p = put_varint(static_cast<uint64_t>(e.user - last.user), p);
  p = put_varint(zigzag(e.time - last.time), p);
  p = put_varint(zigzag(e.item), p);
  p = put_varint(pack_value(e.value), p);
  p = put_varint(zigzag(e.length), p);
  *p++ = e.kind;
  *p++ = static_cast<uint8_t>(e.organic);
  const std::span<const float> numbers = e.numbers();
  if (!numbers.empty()) std::memcpy(p, numbers.data(), numbers.size_bytes());
  return p + numbers.size_bytes();
}

const uint8_t* get_event(const uint8_t* p, const Event& last, std::span<float> numbers, Event& e) {
  uint64_t value = 0;
  p = get_varint(p, value);
  e.user = last.user + static_cast<int64_t>(value);
  p = get_varint(p, value);
  e.time = last.time + unzigzag(value);
  p = get_varint(p, value);
  e.item = unzigzag(value);
  p = get_varint(p, value);
  e.value = unpack_value(value);
  p = get_varint(p, value);
  e.length = static_cast<int32_t>(unzigzag(value));
  e.kind = *p++;
  e.organic = static_cast<int8_t>(*p++);
  if (!numbers.empty()) std::memcpy(numbers.data(), p, numbers.size_bytes());
  e.set_numbers(numbers);
  return p + numbers.size_bytes();
}

}  // namespace

void sort_events(std::span<Event> events, TieOrder ties) {
  if (ties == TieOrder::kFile) {
    std::stable_sort(events.begin(), events.end(), less_user_time);
  } else {
    std::sort(events.begin(), events.end(), less_all);
  }
}

void encode_events(std::span<const Event> events, std::vector<uint8_t>& bytes) {
  while (!events.empty()) {
    const std::span<const Event> block = events.first(std::min(events.size(), kBlockEvents));
    const size_t begin = bytes.size();
    const size_t numbers = block.front().num_numbers;
    bytes.resize(begin + most_block_bytes(numbers));
    uint8_t* p = bytes.data() + begin + kHeaderBytes;
    Event last;
    for (const Event& e : block) {
      SEGUE_ASSERT(e.num_numbers == numbers, "events of a run have equally many numbers");
      p = put_event(e, last, p);
      last = e;
    }
    const uint32_t header[3] = {static_cast<uint32_t>(block.size()),
                                static_cast<uint32_t>(p - (bytes.data() + begin + kHeaderBytes)),
                                static_cast<uint32_t>(numbers)};
    std::memcpy(bytes.data() + begin, header, kHeaderBytes);
    bytes.resize(begin + kHeaderBytes + header[1]);
    events = events.subspan(block.size());
  }
}

RunCursor::RunCursor(const EventRun& run, size_t buffer_bytes)
    : file_(*run.file), offset_(run.offset), end_(run.offset + run.bytes) {
  buffer_.resize(
      std::min(std::max(buffer_bytes, most_block_bytes(0)), static_cast<size_t>(run.bytes)));
  load_block();
}

void RunCursor::fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, size_);
  begin_ = 0;
  const size_t wanted = std::min(buffer_.size() - size_, static_cast<size_t>(end_ - offset_));
  if (file_.read_at(offset_, buffer_.data() + size_, wanted) != wanted) {
    fail(ErrorCode::kIo, fmt::format("{}: is shorter than what was written to it", file_.path()));
  }
  offset_ += static_cast<int64_t>(wanted);
  size_ += wanted;
}

void RunCursor::load_block() {
  events_.clear();
  numbers_.clear();
  next_ = 0;
  if (size_ == 0 && offset_ == end_) return;
  uint32_t header[3] = {};
  if (size_ < kHeaderBytes) fill();
  std::memcpy(header, buffer_.data() + begin_, kHeaderBytes);
  buffer_.resize(std::max(buffer_.size(), kHeaderBytes + header[1]));
  if (size_ < kHeaderBytes + header[1]) fill();
  const uint8_t* p = buffer_.data() + begin_ + kHeaderBytes;
  events_.resize(header[0]);
  Event last;
  for (Event& e : events_) {
    p = get_event(p, last, numbers_.add(header[2]), e);
    last = e;
  }
  begin_ += kHeaderBytes + header[1];
  size_ -= kHeaderBytes + header[1];
}

RunMerger::RunMerger(std::span<const EventRun> runs, size_t buffer_bytes, TieOrder ties)
    : ties_(ties) {
  for (const EventRun& run : runs) {
    cursors_.push_back(std::make_unique<RunCursor>(run, buffer_bytes));
  }
  // Every leaf plays its way up; a node that nobody has reached yet keeps the first comer.
  constexpr size_t kNobody = static_cast<size_t>(-1);
  const size_t n = cursors_.size();
  tree_.assign(std::max<size_t>(n, 1), kNobody);
  for (size_t leaf = 0; leaf < n; ++leaf) {
    size_t winner = leaf;
    for (size_t node = (leaf + n) / 2; node > 0 && winner != kNobody; node /= 2) {
      if (tree_[node] == kNobody || before(tree_[node], winner)) std::swap(tree_[node], winner);
    }
    if (winner != kNobody) tree_[0] = winner;
  }
}

bool RunMerger::before(size_t a, size_t b) const {
  const RunCursor& x = *cursors_[a];
  const RunCursor& y = *cursors_[b];
  if (x.at_end() || y.at_end()) return !x.at_end();
  const Event& e = x.front();
  const Event& f = y.front();
  if (e.user != f.user) return e.user < f.user;
  if (e.time != f.time) return e.time < f.time;
  return ties_ == TieOrder::kFile ? a < b : e < f;
}

void RunMerger::replay(size_t leaf) {
  size_t winner = leaf;
  for (size_t node = (leaf + cursors_.size()) / 2; node > 0; node /= 2) {
    if (before(tree_[node], winner)) std::swap(tree_[node], winner);
  }
  tree_[0] = winner;
}

bool RunMerger::next(EventBlock& block, size_t most) {
  block.clear();
  if (cursors_.empty()) return false;
  while (block.events.size() < most) {
    RunCursor& winner = *cursors_[tree_[0]];
    if (winner.at_end()) break;
    block.events.push_back(winner.front());
    block.numbers.take(block.events.back());
    winner.pop();
    replay(tree_[0]);
  }
  return !block.events.empty();
}

}  // namespace segue::data
