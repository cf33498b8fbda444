#pragma once

// For tests of every kind of communicator: calls with inputs that are functions of seed and rank,
// and results checked against what plain arithmetic says.

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace segue::comm::testing {

/// Throws when a check fails: works on any rank of any world, also where gtest does not run.
inline void require(bool good, const std::string& what) {
  if (!good) fail(ErrorCode::kCorrupt, "wrong result: " + what);
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t n) {
    state_ += 1;
    return static_cast<int64_t>(base::splitmix64(state_) % static_cast<uint64_t>(n));
  }

 private:
  uint64_t state_;
};

/// Values whose sum depends on the order of adding.
template <class Real>
std::vector<Real> values_of(uint64_t seed, int rank, int64_t count) {
  std::vector<Real> values(static_cast<size_t>(count));
  Draw draw(base::splitmix64(seed * 1000003 + static_cast<uint64_t>(rank)));
  for (Real& v : values) {
    v = static_cast<Real>(draw.below(2000001) - 1000000) /
        static_cast<Real>(draw.below(3) == 0 ? 7 : 70000);
  }
  return values;
}
template <class Real>
std::vector<Real> sum_in_rank_order(uint64_t seed, int ranks, int64_t count) {
  std::vector<Real> sum = values_of<Real>(seed, 0, count);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<Real> more = values_of<Real>(seed, r, count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// How a test reaches memory of the device that the exchange is about.
struct Memory {
  Device device;
  const Stream* stream = nullptr;

  template <class T>
  Buffer put(const std::vector<T>& host) const {
    Buffer buffer(device, std::max<int64_t>(1, static_cast<int64_t>(host.size() * sizeof(T))),
                  Purpose::kScratch);
    copy_bytes(buffer.data(), device, host.data(), Device::cpu(), host.size() * sizeof(T), stream);
    if (stream != nullptr) stream->synchronize();
    return buffer;
  }
  template <class T>
  std::vector<T> get(Communicator& comm, const Buffer& buffer, int64_t count) const {
    std::vector<T> host(static_cast<size_t>(count));
    copy_bytes(host.data(), Device::cpu(), buffer.data(), device, host.size() * sizeof(T), stream);
    if (stream != nullptr) comm.synchronize(*stream).throw_if_failed();
    return host;
  }
};

/// Rows that rank `from` sends to rank `to`: also none.
inline int64_t rows_between(uint64_t seed, int from, int to, int64_t most) {
  Draw draw(base::splitmix64(seed) + static_cast<uint64_t>(from * 1009 + to));
  const int64_t kind = draw.below(4);
  return kind == 0 ? 0 : draw.below(most + 1);
}

inline void check_all_to_all(Communicator& comm, uint64_t seed, int64_t most,
                             const Memory& memory) {
  const int n = comm.size(), me = comm.rank();
  const int64_t width = 1 + static_cast<int64_t>(seed % 5);
  std::vector<int64_t> send_rows, receive_rows;
  std::vector<float> send, expected;
  const auto rows = [&](int from, int to) {
    return values_of<float>(seed + static_cast<uint64_t>(to) * 17, from,
                            rows_between(seed, from, to, most) * width);
  };
  for (int q = 0; q < n; ++q) {
    const std::vector<float> out = rows(me, q), in = rows(q, me);
    send_rows.push_back(static_cast<int64_t>(out.size()) / width);
    receive_rows.push_back(static_cast<int64_t>(in.size()) / width);
    send.insert(send.end(), out.begin(), out.end());
    expected.insert(expected.end(), in.begin(), in.end());
  }
  const auto total = static_cast<int64_t>(expected.size());
  const Buffer from = memory.put(send);
  const Buffer to = memory.put(std::vector<float>(expected.size(), -1.f));
  const Tensor out(from.data(), DType::kF32, memory.device,
                   {static_cast<int64_t>(send.size()) / width, width});
  const Tensor in(to.data(), DType::kF32, memory.device, {total / width, width});
  comm.all_to_all(out, send_rows, in, receive_rows, memory.stream).throw_if_failed();
  require(same_bits(memory.get<float>(comm, to, total), expected), "all_to_all");
}

template <class Real>
void check_all_reduce(Communicator& comm, uint64_t seed, int64_t count, const Memory& memory) {
  const Buffer values = memory.put(values_of<Real>(seed, comm.rank(), count));
  comm.all_reduce(Tensor(values.data(), kDTypeOf<Real>, memory.device, {count}), memory.stream)
      .throw_if_failed();
  require(same_bits(memory.get<Real>(comm, values, count),
                    sum_in_rank_order<Real>(seed, comm.size(), count)),
          "all_reduce of " + std::to_string(count));
}

inline void check_all_gather(Communicator& comm, uint64_t seed, int64_t most,
                             const Memory& memory) {
  std::vector<int64_t> rows;
  std::vector<double> expected;
  int64_t before = 0;
  for (int q = 0; q < comm.size(); ++q) {
    rows.push_back(rows_between(seed, q, 0, most));
    const std::vector<double> part = values_of<double>(seed, q, rows.back());
    if (q == comm.rank()) before = static_cast<int64_t>(expected.size());
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const int64_t mine = rows[static_cast<size_t>(comm.rank())];
  const auto total = static_cast<int64_t>(expected.size());
  const std::vector<double> part = values_of<double>(seed, comm.rank(), mine);
  const bool in_place = seed % 2 == 0;
  std::vector<double> filled(expected.size(), -1.0);
  if (in_place) std::copy(part.begin(), part.end(), filled.begin() + before);
  const Buffer own = memory.put(part), all = memory.put(filled);
  const Tensor whole(all.data(), DType::kF64, memory.device, {total});
  const Tensor from =
      in_place ? whole.rows(before, mine) : Tensor(own.data(), DType::kF64, memory.device, {mine});
  comm.all_gather(from, whole, rows, memory.stream).throw_if_failed();
  require(same_bits(memory.get<double>(comm, all, total), expected), "all_gather");
}

inline void check_messages(Communicator& comm, uint64_t seed, int64_t most) {
  const auto message = [&](int q) {
    std::vector<std::byte> bytes(static_cast<size_t>(rows_between(seed, q, 1, most)));
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + seed + static_cast<size_t>(q));
    return bytes;
  };
  std::vector<std::vector<std::byte>> all;
  comm.all_gather(message(comm.rank()), all).throw_if_failed();
  require(static_cast<int>(all.size()) == comm.size(), "number of messages");
  for (int q = 0; q < comm.size(); ++q)
    require(all[static_cast<size_t>(q)] == message(q), "message");
}

/// A sequence of collectives, the same on every rank, chosen by the seed.
inline void check_random_calls(Communicator& comm, uint64_t seed, int calls, int64_t most,
                               const Memory& memory = {}) {
  Draw draw(base::splitmix64(seed));
  for (int i = 0; i < calls; ++i) {
    const auto s = static_cast<uint64_t>(draw.below(1 << 30));
    const int64_t kind = draw.below(6);
    const int64_t count = draw.below(4) == 0 ? draw.below(3) : draw.below(most + 1);
    comm.set_step(i);
    if (kind == 0) check_all_to_all(comm, s, count, memory);
    if (kind == 1) check_all_reduce<float>(comm, s, count, memory);
    if (kind == 2) check_all_reduce<double>(comm, s, count, memory);
    if (kind == 3) check_all_gather(comm, s, count, memory);
    if (kind == 4) check_messages(comm, s, count);
    if (kind == 5) comm.barrier().throw_if_failed();
  }
}

}  // namespace segue::comm::testing
