#include "comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "base/stage.h"
#include "base/time.h"
#include "comm/deadline.h"
#include "comm/sum_parts.h"

namespace segue::comm {
namespace {

// Up to here, sending everything to everybody costs less than a second exchange.
constexpr int64_t kSmallReduceBytes = 16 * 1024;

// What one rank may have all others take memory for on its word alone.
constexpr int64_t kMaxGathered = int64_t{4} << 30;

int64_t row_bytes(const Tensor& t) {
  int64_t bytes = size_of(t.dtype);
  for (int d = 1; d < t.rank; ++d) bytes *= t.size(d);
  return bytes;
}

/// Consecutive pieces of `memory`, `rows[q] * unit` bytes each.
template <class Span>
std::vector<Span> cut(Span memory, std::span<const int64_t> rows, int64_t unit) {
  std::vector<Span> pieces;
  pieces.reserve(rows.size());
  size_t at = 0;
  for (const int64_t n : rows) {
    SEGUE_ASSERT(n >= 0, "a negative number of rows");
    const auto bytes = static_cast<size_t>(n * unit);
    SEGUE_ASSERT(at + bytes <= memory.size(), "more rows than the tensor has");
    pieces.push_back(memory.subspan(at, bytes));
    at += bytes;
  }
  SEGUE_ASSERT(at == memory.size(), "fewer rows than the tensor has");
  return pieces;
}

Bytes bytes_of(const Tensor& t) {
  SEGUE_ASSERT(t.is_contiguous(), "ranks exchange contiguous tensors");
  return {static_cast<std::byte*>(t.data), static_cast<size_t>(t.bytes())};
}

template <class Span>
int64_t total_bytes(std::span<const Span> pieces) {
  int64_t bytes = 0;
  for (const Span& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  return bytes;
}

}  // namespace

const char* to_string(Op op) {
  switch (op) {
    case Op::kOpen:
      return "open";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kAllGather:
      return "all_gather";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kBarrier:
      return "barrier";
    case Op::kSynchronize:
      return "synchronize";
  }
  return "unknown operation";
}

std::string Group::peer(int q) const {
  return fmt::format("rank {}", members[static_cast<size_t>(q)]);
}

Communicator::Communicator(Group group, std::unique_ptr<Link> link,
                           std::shared_ptr<WorldFailure> failure)
    : group_(std::move(group)),
      link_(std::move(link)),
      failure_(std::move(failure)),
      flight_(failure_->flight().add_group(group_.name, group_.rank, group_.members)),
      sent_to_(group_.members.size()) {
  SEGUE_ASSERT(link_ != nullptr || group_.size() == 1, "a group of several ranks needs a link");
}

Communicator::~Communicator() {
  // A peer that waits for this rank learns why, not only that the connection is closed.
  if (link_ != nullptr && broken_.ok() && failure_->is_set()) link_->abort(failure_->reason());
}

std::byte* Communicator::Scratch::take(Device device, int64_t bytes, HostMemory kind) {
  if (bytes == 0) return nullptr;
  if (buffer.bytes() < bytes || buffer.device() != device) {
    // Messages grow by and by; what sums take on a GPU is the same in every step, and planned.
    const bool grows = device.is_cpu() && buffer.device() == device;
    const int64_t grown = grows ? std::max(bytes, buffer.bytes() * 3 / 2) : bytes;
    buffer = Buffer();  // first, so that old and new are never there together
    buffer = Buffer(device, grown, Purpose::kComm, kind);
  }
  return static_cast<std::byte*>(buffer.data());
}

void Communicator::listen() {
  if (link_ != nullptr) static_cast<void>(link_->listen(false));
}

Call Communicator::next_call(Op op) {
  return {op,           step_, ++sequence_, after(group_.timeout_seconds), group_.timeout_seconds,
          flight_.get()};
}

Status Communicator::failed(const Call& call, const Status& status) {
  const std::string where =
      fmt::format("group `{}`, {}, step {}", name(), to_string(call.op), call.step);
  failure_->set(fmt::format("{} gave up ({}): {}", group_.peer(rank()), where, status.message()));
  broken_ = status.with(where);
  if (link_ != nullptr) link_->abort(failure_->reason());
  failure_->flight().write_failure(broken_.message(), /*own=*/false);  // the peers know by now
  return broken_;
}

void Communicator::count(std::span<const ConstBytes> send) {
  for (size_t q = 0; q < send.size(); ++q) {
    if (static_cast<int>(q) == rank()) continue;
    const auto bytes = static_cast<int64_t>(send[q].size());
    traffic_.bytes_sent += bytes;
    sent_to_[q] += bytes;
    traffic_.bytes_to_most = std::max(traffic_.bytes_to_most, sent_to_[q]);
  }
}

Status Communicator::exchange(Op op, int64_t bytes, std::span<const ConstBytes> send,
                              std::span<const Bytes> receive, CallMemory at) {
  SEGUE_ASSERT(static_cast<int>(send.size()) == size() && send.size() == receive.size(),
               "one piece per rank");
  if (!broken_.ok()) return broken_;
  const Call call = next_call(op);
  if (failure_->is_set()) return failed(call, failure_->status());

  const base::Stage stage(to_string(op));  // a watchdog says where a rank waits
  const base::Stopwatch watch;
  flight_->begin(op, call.step, call.sequence, bytes, total_bytes(receive));
  CallState ended = CallState::kDone;
  const auto self = static_cast<size_t>(rank());
  SEGUE_ASSERT(send[self].size() == receive[self].size(), "a rank expects what it sends itself");
  if (send[self].data() != receive[self].data()) {
    copy_bytes(receive[self].data(), at.device, send[self].data(), at.device, send[self].size(),
               at.stream);
  }
  Status status;
  if (link_ != nullptr) {
    if (at.device.is_cpu()) {
      status = link_->exchange(call, send, receive);
    } else if (link_->reaches(at.device)) {
      SEGUE_ASSERT(at.stream != nullptr, "an exchange of device memory needs a stream");
      status = link_->exchange_on_device(call, send, receive, *at.stream);
      ended = CallState::kQueued;
    } else {
      status = exchange_staged(call, send, receive, at);
    }
  }
  flight_->end(status.ok() ? ended : CallState::kFailed);
  traffic_.collectives += 1;
  traffic_.seconds += watch.seconds();
  if (!status.ok()) return failed(call, status);
  count(send);
  return {};
}

Status Communicator::exchange_staged(const Call& call, std::span<const ConstBytes> send,
                                     std::span<const Bytes> receive, CallMemory at) {
  std::byte* out = staged_send_.take(Device::cpu(), total_bytes(send), HostMemory::kPinned);
  std::byte* in = staged_receive_.take(Device::cpu(), total_bytes(receive), HostMemory::kPinned);
  std::vector<ConstBytes> host_send(send.size());
  std::vector<Bytes> host_receive(receive.size());
  for (size_t q = 0; q < send.size(); ++q) {
    if (static_cast<int>(q) == rank()) continue;
    copy_bytes(out, Device::cpu(), send[q].data(), at.device, send[q].size(), at.stream);
    host_send[q] = {out, send[q].size()};
    host_receive[q] = {in, receive[q].size()};
    out += send[q].size();
    in += receive[q].size();
  }
  if (at.stream != nullptr) at.stream->synchronize();
  Status status = link_->exchange(call, host_send, host_receive);
  if (!status.ok()) return status;
  for (size_t q = 0; q < receive.size(); ++q) {
    copy_bytes(receive[q].data(), at.device, host_receive[q].data(), Device::cpu(),
               host_receive[q].size(), at.stream);
  }
  // The staging memory may serve another stream next.
  if (at.stream != nullptr) at.stream->synchronize();
  return {};
}

Status Communicator::all_to_all(std::span<const ConstBytes> send, std::span<const Bytes> receive,
                                Device device, const Stream* stream) {
  return exchange(Op::kAllToAll, total_bytes(send), send, receive, {device, stream});
}

Status Communicator::all_to_all(const Tensor& send, std::span<const int64_t> send_rows,
                                const Tensor& receive, std::span<const int64_t> receive_rows,
                                const Stream* stream) {
  SEGUE_ASSERT(send.dtype == receive.dtype && row_bytes(send) == row_bytes(receive) &&
                   send.device == receive.device,
               "rows that are sent and received have one type");
  const std::vector<ConstBytes> out = cut(ConstBytes(bytes_of(send)), send_rows, row_bytes(send));
  const std::vector<Bytes> in = cut(bytes_of(receive), receive_rows, row_bytes(receive));
  return exchange(Op::kAllToAll, send.bytes(), out, in, {send.device, stream});
}

Status Communicator::gather(Op op, int64_t bytes, ConstBytes mine, std::span<const Bytes> all,
                            CallMemory at) {
  const std::vector<ConstBytes> send(all.size(), mine);
  return exchange(op, bytes, send, all, at);
}

Status Communicator::all_gather(const Tensor& mine, const Tensor& all,
                                std::span<const int64_t> rows, const Stream* stream) {
  SEGUE_ASSERT(
      mine.dtype == all.dtype && row_bytes(mine) == row_bytes(all) && mine.device == all.device,
      "rows that are gathered have one type");
  const std::vector<Bytes> pieces = cut(bytes_of(all), rows, row_bytes(all));
  return gather(Op::kAllGather, all.bytes(), bytes_of(mine), pieces, {all.device, stream});
}

Status Communicator::all_gather(ConstBytes mine, std::vector<std::vector<std::byte>>& all) {
  const auto n = static_cast<size_t>(size());
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(n);
  const std::vector<int64_t> ones(n, 1);
  const std::vector<Bytes> places =
      cut(std::as_writable_bytes(std::span(lengths)), ones, sizeof(int64_t));
  Status status = gather(Op::kAllGather, static_cast<int64_t>(n * sizeof(int64_t)),
                         std::as_bytes(std::span(&length, 1)), places, CallMemory{});
  if (!status.ok()) return status;

  all.resize(n);
  std::vector<Bytes> pieces(n);
  for (size_t q = 0; q < n; ++q) {
    if (lengths[q] < 0 || lengths[q] > kMaxGathered) {
      return failed(next_call(Op::kAllGather),
                    {ErrorCode::kPeer, fmt::format("{} announces {} bytes",
                                                   group_.peer(static_cast<int>(q)), lengths[q])});
    }
    all[q].resize(static_cast<size_t>(lengths[q]));
    pieces[q] = all[q];
  }
  return gather(Op::kAllGather, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), mine,
                pieces, CallMemory{});
}

Status Communicator::reduce_small(const Tensor& values, CallMemory at) {
  const auto n = static_cast<size_t>(size());
  const auto bytes = static_cast<size_t>(values.bytes());
  std::byte* parts = parts_.take(at.device, size() * values.bytes());
  std::vector<Bytes> pieces(n);
  for (size_t q = 0; q < n; ++q) pieces[q] = {parts + q * bytes, bytes};
  Status status = gather(Op::kAllReduce, values.bytes(), bytes_of(values), pieces, at);
  if (!status.ok()) return status;
  sum_parts(values.data, parts, size(), values.elements(), values.dtype, at.device, at.stream);
  return {};
}

Status Communicator::all_reduce(const Tensor& values, const Stream* stream) {
  SEGUE_ASSERT(values.dtype == DType::kF32 || values.dtype == DType::kF64,
               "sums over ranks are of f32 or f64");
  const CallMemory at{values.device, stream};
  if (size() == 1) return {};
  if (values.bytes() <= kSmallReduceBytes) return reduce_small(values, at);

  // Every rank adds up one piece of all ranks, then hands it out.
  const int64_t unit = size_of(values.dtype), each = values.elements() / size();
  std::vector<int64_t> counts(static_cast<size_t>(size()), each);
  for (int64_t q = 0; q < values.elements() % size(); ++q) counts[static_cast<size_t>(q)] += 1;
  const int64_t mine = counts[static_cast<size_t>(rank())];

  const std::vector<Bytes> pieces = cut(bytes_of(values), counts, unit);
  const std::vector<ConstBytes> send(pieces.begin(), pieces.end());
  std::byte* parts = parts_.take(at.device, size() * mine * unit);
  const std::vector<int64_t> equal(static_cast<size_t>(size()), mine);
  const std::vector<Bytes> receive =
      cut(Bytes(parts, static_cast<size_t>(size() * mine * unit)), equal, unit);
  Status status = exchange(Op::kAllReduce, values.bytes(), send, receive, at);
  if (!status.ok()) return status;
  const Bytes sum = pieces[static_cast<size_t>(rank())];
  sum_parts(sum.data(), parts, size(), mine, values.dtype, at.device, stream);
  return gather(Op::kAllReduce, values.bytes(), sum, pieces, at);
}

Status Communicator::barrier() {
  const auto n = static_cast<size_t>(size());
  constexpr std::byte kHere{1};
  std::vector<std::byte> there(n);
  std::vector<Bytes> places(n);
  for (size_t q = 0; q < n; ++q) places[q] = {&there[q], 1};
  return gather(Op::kBarrier, static_cast<int64_t>(n), {&kHere, 1}, places, CallMemory{});
}

Status Communicator::synchronize(const Stream& stream) {
  if (!broken_.ok()) return broken_;
  if (link_ == nullptr) {
    stream.synchronize();
    return {};
  }
  Call call = next_call(Op::kSynchronize);
  --sequence_;  // nothing travels: ranks need not agree on it
  flight_->begin(call.op, call.step, sequence_, 0, 0);
  const Status status = link_->synchronize(call, stream);
  flight_->end(status.ok() ? CallState::kDone : CallState::kFailed);
  return status.ok() ? status : failed(call, status);
}

}  // namespace segue::comm
