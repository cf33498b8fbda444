#include "edu/machine.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sodium.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "tensor/l2_cache.h"

namespace segue::edu {
namespace {

constexpr int64_t kUnknownLlc = 12 * kMiB;

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "266240K" is 266240 KiB; 0: not understood.
int64_t parse_size(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  const char unit = end == text.data() + text.size() ? 'B' : *end;
  return unit == 'K'   ? number << 10
         : unit == 'M' ? number << 20
         : unit == 'G' ? number << 30
                       : number;
}

}  // namespace

int64_t detect_cache(const std::string& cpu_folder, int level) {
  // level -> (CPUs that share it -> bytes)
  std::map<int, std::map<std::string, int64_t>> caches;
  std::error_code ignored;
  for (const auto& cpu : std::filesystem::directory_iterator(cpu_folder, ignored)) {
    const std::string name = cpu.path().filename();
    if (!name.starts_with("cpu") || name.size() < 4 || std::isdigit(name[3]) == 0) continue;
    for (const auto& index : std::filesystem::directory_iterator(cpu.path() / "cache", ignored)) {
      if (first_line(index.path() / "type") == "Instruction") continue;
      const int64_t bytes = parse_size(first_line(index.path() / "size"));
      const int64_t at = parse_size(first_line(index.path() / "level"));
      if (bytes > 0)
        caches[static_cast<int>(at)][first_line(index.path() / "shared_cpu_list")] = bytes;
    }
  }
  if (level > 0) return caches[level].empty() ? 0 : caches[level].begin()->second;
  if (caches.empty()) return 0;
  int64_t sum = 0;
  for (const auto& [cpus, bytes] : caches.rbegin()->second) sum += bytes;
  return sum;
}

Machine detect_machine(Device device) {
  const std::string cpus = "/sys/devices/system/cpu";
  Machine m;
  m.cpu = bench::cpu_name();
  m.cores = sysconf(_SC_NPROCESSORS_ONLN);
  struct utsname system {};
  if (uname(&system) == 0) m.os = fmt::format("{} {}", system.sysname, system.release);
  if (device.is_cuda()) {
    const CudaFacts card = cuda_facts(device.index);
    m.cpu = card.name;
    m.machine_class = card.name;
    m.llc_bytes = cuda_l2_bytes(device.index);
    m.l2_bytes = m.llc_bytes;
    m.memory_bytes = card.memory_bytes;
    m.available_bytes = card.free_bytes;
    return m;
  }
  m.machine_class = fmt::format("{} with {} CPUs", system.machine, m.cores);
  m.llc_bytes = detect_cache(cpus);
  m.l2_bytes = detect_cache(cpus, 2);
  if (m.llc_bytes == 0) m.llc_bytes = kUnknownLlc;
  if (m.l2_bytes == 0) m.l2_bytes = kMiB;
  m.memory_bytes = sysconf(_SC_PHYS_PAGES) * int64_t{sysconf(_SC_PAGESIZE)};
  m.available_bytes = base::available_memory().value_or(m.memory_bytes / 2);
  return m;
}

std::string Machine::canonical_json() const {
  // A plain object sorts its keys.
  const nlohmann::json facts = {{"cpu", cpu},
                                {"cores", cores},
                                {"llc_bytes", llc_bytes},
                                {"memory_bytes", memory_bytes},
                                {"os", os}};
  return facts.dump();
}

std::string sha256(std::string_view text) {
  unsigned char digest[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(digest, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  std::string out;
  for (const unsigned char byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

std::string Machine::fingerprint() const { return sha256(canonical_json()).substr(0, 12); }

int64_t choose_table_bytes(int64_t llc_bytes, int64_t available_bytes) {
  const int64_t bytes =
      std::min(std::max(16 * llc_bytes, 256 * kMiB), available_bytes / 4) / kMiB * kMiB;
  if (bytes < 4 * llc_bytes || bytes <= 0) {
    fail(ErrorCode::kUnsupported,
         fmt::format("cannot leave the cache on this machine: its last-level cache has {}, so a "
                     "table needs {}, but a quarter of the free memory is {}; free some memory, or "
                     "use --quick to see the program at work",
                     base::format_bytes(static_cast<double>(llc_bytes)),
                     base::format_bytes(4.0 * static_cast<double>(llc_bytes)),
                     base::format_bytes(static_cast<double>(available_bytes) / 4)));
  }
  return bytes;
}

std::vector<int64_t> table_sizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = 64 << 10; bytes < most; bytes *= 2) sizes.push_back(bytes);
  sizes.push_back(most);
  return sizes;
}

int64_t find_knee(std::span<const std::pair<int64_t, double>> curve) {
  std::vector<double> before;
  for (size_t i = 0; i < curve.size(); ++i) {
    if (before.size() >= 2) {
      std::vector<double> sorted = before;
      std::ranges::sort(sorted);
      // The next size, too: one slow measurement is somebody else's work.
      const double least =
          std::min(curve[i].second, curve[std::min(i + 1, curve.size() - 1)].second);
      if (least >= 2 * sorted[sorted.size() / 2]) return curve[i].first;
    }
    before.push_back(curve[i].second);
  }
  return 0;
}

}  // namespace segue::edu
