#include "comm/join/launch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/join/handshake.h"
#include "comm/link/socket.h"

namespace segue::comm {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void io_error(const char* what) {
  fail(ErrorCode::kIo, fmt::format("starting ranks: {}: {}", what, std::strerror(errno)));
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nowhere left to complain
    text.remove_prefix(static_cast<size_t>(n));
  }
}

/// Signals arrive as readable bytes instead of handlers, for the time of a launch.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = Socket(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) io_error("signalfd");
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.fd(); }
  const sigset_t& before() const { return before_; }
  /// The next one, or 0.
  int take() const {
    signalfd_siginfo info{};
    return ::read(fd(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, before_{};
  Socket fd_;  // any descriptor
};

struct Process {
  int rank = 0;
  pid_t pid = -1;
  Socket lines;      // reading end of its standard error
  std::string text;  // read, not yet shown
  int64_t came = 0;  // when that began, in the order of all ranks
  std::string last;  // its last line
  bool running = false;
  int code = 0;
};

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options), door_(std::move(listen_on(resolve("127.0.0.1", 0)).front())) {
    processes_.resize(static_cast<size_t>(options.ranks));
    for (int r = 0; r < options.ranks; ++r) start(r);
    door_.close();
  }
  ~Job() {  // only when something was thrown are there any left
    for (Process& p : processes_) {
      if (!p.running) continue;
      ::kill(p.pid, SIGKILL);
      ::waitpid(p.pid, nullptr, 0);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run() {
    while (any_running()) {
      wait_for_news();
      for (int s = signals_.take(); s != 0; s = signals_.take()) {
        if (s != SIGCHLD) send(s);
      }
      reap();
      show();
      if (culprit_ >= 0 && Clock::now() >= kill_at_) send(SIGKILL);
    }
    read_all();
    show();
    for (Process& p : processes_) flush_rest(p);
    if (culprit_ < 0) return 0;
    const Process& p = processes_[static_cast<size_t>(culprit_)];
    write_all(options_.err_fd, fmt::format("segue: rank {} failed first ({}){}{}\n", p.rank,
                                           how(p.code), p.last.empty() ? "" : ": ", p.last));
    return p.code;
  }

 private:
  static std::string how(int code) {
    return code > 128 ? fmt::format("signal {}", code - 128) : fmt::format("exit code {}", code);
  }

  void start(int rank) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) io_error("pipe");
    Process& p = processes_[static_cast<size_t>(rank)];
    p.rank = rank;
    p.lines = Socket(ends[0]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const Socket writing(ends[1]);
    // Everything that allocates happens before fork.
    std::vector<std::string> settings = environment(rank);
    std::vector<char*> argv, env;
    for (const std::string& a : options_.argv) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    for (char** e = environ; *e != nullptr; ++e) {
      // Of a launcher that this one runs under.
      const std::string_view setting(*e);
      const bool theirs =
          std::ranges::any_of(std::array{"SEGUE_RANK", "SEGUE_LOCAL_RANKS", "SEGUE_RENDEZVOUS",
                                         "SEGUE_SECRET", "SEGUE_LISTENER"},
                              [&](const char* name) { return setting.starts_with(name); });
      if (!theirs) env.push_back(*e);
    }
    for (std::string& s : settings) env.push_back(s.data());
    env.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) io_error("fork");
    if (pid == 0) become(rank, writing.fd(), parent, argv, env);
    p.pid = pid;
    p.running = true;
  }

  std::vector<std::string> environment(int rank) const {
    std::vector<std::string> settings{
        fmt::format("SEGUE_RANK={}", rank), fmt::format("SEGUE_RANKS={}", options_.ranks),
        fmt::format("SEGUE_LOCAL_RANKS={}", options_.ranks),
        fmt::format("SEGUE_RENDEZVOUS=tcp:127.0.0.1:{}", local_endpoint(door_).port()),
        "SEGUE_SECRET=" + secret_};
    if (rank == 0) settings.push_back(fmt::format("SEGUE_LISTENER={}", door_.fd()));
    for (const auto& [name, value] : options_.environment) settings.push_back(name + "=" + value);
    return settings;
  }

  [[noreturn]] void become(int rank, int lines, pid_t parent, std::vector<char*>& argv,
                           std::vector<char*>& env) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before the line above
    ::setpgid(0, 0);  // Ctrl-C reaches the launcher alone, which passes it on once
    pthread_sigmask(SIG_SETMASK, &signals_.before(), nullptr);
    ::dup2(rank == 0 ? options_.out_fd : lines, STDOUT_FILENO);
    ::dup2(lines, STDERR_FILENO);
    if (rank == 0) ::fcntl(door_.fd(), F_SETFD, 0);  // stays open there
    ::execve(argv[0], argv.data(), env.data());
    ::_exit(127);
  }

  bool any_running() const {
    return std::ranges::any_of(processes_, [](const Process& p) { return p.running; });
  }

  void wait_for_news() {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    for (const Process& p : processes_) {
      if (p.lines) entries.push_back({p.lines.fd(), POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), 200);
    // What others say about a failure comes a moment after it: show both together, when it is
    // quiet again and the rank that failed has ended.
    constexpr int kMostRounds = 10;
    constexpr useconds_t kQuiet = 20'000;
    bool more = read_all();
    for (int i = 0; i < kMostRounds && more; ++i) {
      ::usleep(kQuiet);
      more = read_all();
    }
  }

  bool read_all() {
    ++news_;
    bool any = false;
    std::array<char, 4096> buffer;
    for (Process& p : processes_) {
      while (p.lines) {
        const ssize_t n = ::read(p.lines.fd(), buffer.data(), buffer.size());
        if (n > 0 && p.text.empty()) p.came = news_;
        if (n > 0) p.text.append(buffer.data(), static_cast<size_t>(n));
        any = any || n > 0;
        if (n == 0) p.lines.close();
        if (n < 0 && errno != EINTR) break;
      }
    }
    return any;
  }

  void send(int signal) {
    for (const Process& p : processes_) {
      if (p.running) ::kill(p.pid, signal);
    }
  }

  void reap() {
    for (Process& p : processes_) {
      int status = 0;
      if (!p.running || ::waitpid(p.pid, &status, WNOHANG) != p.pid) continue;
      p.running = false;
      p.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (p.code == 0) continue;
      const bool killed_by_us = culprit_ >= 0 && Clock::now() >= kill_at_;
      const bool better = culprit_ >= 0 && !killed_by_us && p.code != options_.peer_exit_code &&
                          processes_[static_cast<size_t>(culprit_)].code == options_.peer_exit_code;
      if (culprit_ < 0) {
        kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(options_.grace_seconds));
      }
      if (culprit_ < 0 || better) culprit_ = p.rank;
    }
  }

  /// The lines that have come: those of the rank that failed first, then in the order of coming.
  void show() {
    std::vector<Process*> order;
    for (Process& p : processes_) order.push_back(&p);
    std::ranges::stable_sort(order, {},
                             [&](const Process* p) { return p->rank == culprit_ ? 0 : p->came; });
    for (Process* p : order) show(*p);
  }

  void show(Process& p) {
    const size_t end = p.text.rfind('\n');
    if (end == std::string::npos) return;
    write_lines(p, std::string_view(p.text).substr(0, end + 1));
    p.text.erase(0, end + 1);
  }

  void flush_rest(Process& p) {
    if (p.text.empty()) return;
    p.text += '\n';
    write_lines(p, p.text);
    p.text.clear();
  }

  void write_lines(Process& p, std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(line.size() + 1);
      if (!line.empty()) p.last = line;
      if (p.rank > 0) out += fmt::format("rank {}: ", p.rank);
      out.append(line);
      out += '\n';
    }
    write_all(options_.err_fd, out);
  }

  const LaunchOptions& options_;
  Socket door_;  // where ranks meet: listening before the first one starts, and rank 0 goes on
  std::string secret_ = random_digits(32);
  Signals signals_;
  std::vector<Process> processes_;
  int culprit_ = -1;
  int64_t news_ = 0;
  Clock::time_point kill_at_;
};

}  // namespace

int launch_ranks(const LaunchOptions& options) {
  SEGUE_ASSERT(options.ranks > 0 && !options.argv.empty(), "ranks of a command");
  return Job(options).run();
}

}  // namespace segue::comm
