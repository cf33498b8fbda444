#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "edu/micro_dlrm.h"
#include "tensor/device.h"

namespace segue::edu {

inline constexpr int64_t kMiB = int64_t{1} << 20;

/// What the system says of itself.
struct Machine {
  std::string cpu, os;
  std::string machine_class;  // "x86-64, 2 cores", or the card
  int64_t cores = 0;
  int64_t llc_bytes = 0;  // largest cache of one kind that the threads share or have each
  int64_t l2_bytes = 0;   // of one core
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  // that could be taken now

  /// {CPU model, cores, last-level cache, memory, system}: what the fingerprint is of, always
  /// written in the same way.
  std::string canonical_json() const;
  std::string fingerprint() const;  // first 12 digits of its SHA-256
};
Machine detect_machine(Device device);

/// Bytes of the largest cache level below a folder like /sys/devices/system/cpu, summed over the
/// caches that its CPUs do not share; level 2 alone if asked. 0: it does not tell.
int64_t detect_cache(const std::string& cpu_folder, int level = 0);

std::string sha256(std::string_view text);  // 64 digits

/// What the machine was measured to do, by the same threads that train.
struct Ceilings {
  double stream_bytes = 0;       // per second: triad, 12 bytes an element, best of several
  double gather_bytes = 0;       // per second: random rows read, nothing done with them
  double flops = 0;              // per second: our product at 1024^3 (a GPU: larger), best of 5
  double dispatch_floor_us = 0;  // an empty parallel region
  int64_t knee_bytes = 0;        // table from which on look-ups are slow

  double ridge() const { return flops / stream_bytes; }
};

/// Bytes per second of the triad over three arrays of so many bytes each; the best of `repeats`.
double measure_stream(const Exec& exec, const TableMemory& memory, int64_t array_bytes,
                      int repeats);
/// Bytes per second of one pass over `lookups` rows of `width` floats, drawn evenly from all of the
/// memory, with the threads and pages of the tables: the rows are read and nothing is done with
/// them. On a GPU they are copied, and what is written counts as well. Another `draw`, other rows.
double measure_gather_pass(const Exec& exec, const TableMemory& memory, int64_t width,
                           int64_t lookups, int64_t draw);
double measure_gemm_peak(const Exec& exec);
double measure_dispatch_floor_us(Device device);

/// Seconds that pooled look-ups take (`pooling` rows of `width` a bag), evenly drawn from
/// `table_bytes` of the memory; the fastest of `repeats`.
double measure_lookups(const Exec& exec, const TableMemory& memory, int64_t table_bytes,
                       int64_t width, int64_t pooling, int64_t lookups, int repeats);

/// First size whose look-up takes at least twice as long as those before it (their median); 0:
/// none.
int64_t find_knee(std::span<const std::pair<int64_t, double>> seconds_by_bytes);

/// Sizes from 64 KiB on in factors of two, up to `most`.
std::vector<int64_t> table_sizes(int64_t most);

/// Table bytes: 16 times the cache, at least 256 MiB and at most a quarter of what is free.
/// Error(kUnsupported) where that is less than 4 times the cache.
int64_t choose_table_bytes(int64_t llc_bytes, int64_t available_bytes);

}  // namespace segue::edu
