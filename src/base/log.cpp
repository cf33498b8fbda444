#include "base/log.h"

#include <atomic>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

namespace segue::base {
namespace {

// What the process as a whole says to its stderr; nothing here influences a result.
std::atomic<LogLevel> g_lowest{LogLevel::kInfo};
std::atomic<int> g_rank{0};
std::atomic<int> g_num_ranks{1};
std::mutex g_stderr_mutex;
bool g_line_open = false;  // guarded by g_stderr_mutex

std::string_view letter(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
    case LogLevel::kInfo:
      return "";
    case LogLevel::kWarning:
      return "W ";
    case LogLevel::kError:
      return "E ";
  }
  return "";
}

bool wanted(LogLevel level) {
  if (level < g_lowest.load(std::memory_order_relaxed)) return false;
  return level >= LogLevel::kWarning || log_rank() == 0;
}

}  // namespace

namespace detail {

std::string format_log_line(LogLevel level, std::string_view text, int rank, int num_ranks) {
  const std::string who = num_ranks > 1 && rank != 0 ? fmt::format("[rank {}] ", rank) : "";
  return fmt::format("{}{}{}\n", letter(level), who, text);
}

void write_stderr(std::string_view text, bool stays_open) {
  const std::lock_guard lock(g_stderr_mutex);
  std::string bytes = g_line_open ? "\r\033[K" : "";
  bytes += text;
  g_line_open = stays_open;
  // One write keeps lines of several processes apart; a second one happens only if a pipe is full.
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::write(STDERR_FILENO, bytes.data() + sent, bytes.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // nowhere left to complain
    sent += static_cast<size_t>(count);
  }
}

}  // namespace detail

void set_log_level(LogLevel lowest) { g_lowest.store(lowest, std::memory_order_relaxed); }

void set_log_rank(int rank, int num_ranks) {
  g_rank.store(rank, std::memory_order_relaxed);
  g_num_ranks.store(num_ranks, std::memory_order_relaxed);
}

int log_rank() { return g_rank.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view text) {
  if (!wanted(level)) return;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const std::string line =
      detail::format_log_line(level, text, log_rank(), g_num_ranks.load(std::memory_order_relaxed));
  detail::write_stderr(
      fmt::format("{:02}:{:02}:{:02} {}", local.tm_hour, local.tm_min, local.tm_sec, line), false);
}

void log_once(LogLevel level, std::string_view key, std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> said;
  {
    const std::lock_guard lock(mutex);
    if (!said.emplace(key).second) return;
  }
  log(level, text);
}

}  // namespace segue::base
