#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

#include "base/error.h"

namespace segue::base {
namespace {

constexpr int kMaxThreads = 1024;

std::atomic<int> g_num_threads{0};  // 0: not decided yet
thread_local bool t_in_chunk = false;

/// Cores that this process may use.
int count_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::clamp(CPU_COUNT(&cores), 1, kMaxThreads);
}

int default_num_threads() {
  // A list such as "4,2" names one number per nesting level; only the first level exists here.
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const long threads = std::strtol(text, nullptr, 10);
    if (threads > 0) return static_cast<int>(std::min<long>(threads, kMaxThreads));
  }
  return count_cores();
}

/// The work of one parallel_for. Each thread has a part of the chunks, as long as any other's, and
/// when it is done with that helps with the others': loops over the same rows, one after another,
/// find them in the caches of the core that had them before.
class Job {
 public:
  Job(int64_t n, int64_t grain, int threads, RangeFunction body)
      : n_(n),
        grain_(grain),
        chunks_(num_chunks(n, grain)),
        count_(std::min(threads, kMaxParts)),
        body_(body),
        limit_(chunks_) {
    for (int p = 0; p < count_; ++p) {
      parts_[p].next.store(part_begin(p), std::memory_order_relaxed);
    }
  }

  bool exhausted() const {
    for (int p = 0; p < count_; ++p) {
      if (parts_[p].next.load(std::memory_order_relaxed) < part_begin(p + 1)) return false;
    }
    return true;
  }

  /// Takes and runs chunks until none is left, first those of the thread's own part. Never throws.
  /// Part 0 is the caller's; there may be more workers than parts.
  void run_chunks(int thread) noexcept {
    t_in_chunk = true;
    const int first = thread == 0 || count_ == 1 ? 0 : 1 + (thread - 1) % (count_ - 1);
    for (int i = 0; i < count_; ++i) run_part((first + i) % count_);
    t_in_chunk = false;
  }

  /// To be called when no thread is inside run_chunks any more.
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  static constexpr int kMaxParts = 64;
  struct alignas(64) Part {
    std::atomic<int64_t> next;
  };

  int64_t part_begin(int p) const {
    const int64_t each = chunks_ / count_, more = chunks_ % count_;
    return p * each + std::min<int64_t>(p, more);
  }

  void run_part(int p) noexcept {
    std::atomic<int64_t>& next = parts_[p].next;
    const int64_t end = part_begin(p + 1);
    // Asked before it is counted up: most threads find most parts done, and reading takes the line
    // from nobody.
    while (next.load(std::memory_order_relaxed) < end) {
      const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= end) return;
      // Once a chunk has thrown, those above it are abandoned, as are the rest of a part that has
      // come so far; those below it are not: the lowest exception is found.
      if (chunk > limit_.load(std::memory_order_relaxed)) {
        next.store(end, std::memory_order_relaxed);
        return;
      }
      const int64_t begin = chunk * grain_;
      try {
        body_(begin, begin + std::min(grain_, n_ - begin));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!exception_ || chunk < limit_.load(std::memory_order_relaxed)) {
          exception_ = std::current_exception();
          limit_.store(chunk, std::memory_order_relaxed);
        }
      }
    }
  }

  int64_t n_;
  int64_t grain_;
  int64_t chunks_;
  int count_;  // of parts
  RangeFunction body_;
  std::atomic<int64_t> limit_;  // the lowest chunk that threw
  std::mutex mutex_;
  std::exception_ptr exception_;
  Part parts_[kMaxParts];
};

void run_serial(int64_t n, int64_t grain, RangeFunction body) {
  struct Mark {
    bool before = t_in_chunk;
    Mark() { t_in_chunk = true; }
    ~Mark() { t_in_chunk = before; }
  } mark;
  for (int64_t begin = 0; begin < n;) {
    const int64_t end = begin + std::min(grain, n - begin);
    body(begin, end);
    begin = end;
  }
}

/// Waiting without sleep: asks `ready` again and again for a short time; true when it said yes.
/// Putting a thread to sleep and waking it takes 10 to 50 us, on a virtual machine more than most
/// loops; what is bounded by about as much costs a busy machine little.
template <class Ready>
bool spin_until(const Ready& ready) {
  constexpr std::chrono::microseconds kPatience{50};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

/// Workers that live as long as the program. Several threads may have jobs here at once (ranks as
/// threads): each caller works on its own job, idle workers help whichever job still wants hands.
/// A pool of our own instead of OpenMP: threads of libgomp wait for each other and spin for long,
/// which on a machine that is busy with anything else made training ten times slower, and
/// ThreadSanitizer cannot see into it. Here nobody waits for a worker that has not begun, and who
/// waits spins for a moment only before it sleeps: the loops of a step follow one another closely.
class Pool {
 public:
  static Pool& instance() {
    static Pool pool;
    return pool;
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void run(Job& job, int threads) {
    Ticket ticket{&job, threads - 1};
    const bool spins = threads <= cores_;
    int sleepers = 0;
    {
      const std::unique_lock lock = lock_soon();
      while (static_cast<int>(workers_.size()) < threads - 1) {
        const int number = static_cast<int>(workers_.size()) + 1;
        workers_.emplace_back([this, number] { serve(number); });
      }
      tickets_.push_back(&ticket);
      spins_ = spins;
      // Not all: a thread that wakes up for nothing costs more than many chunks do, and who spins
      // comes by itself.
      sleepers = std::min(threads - 1 - spinning_, sleeping_);
    }
    posted_.fetch_add(1, std::memory_order_release);
    for (int i = 0; i < sleepers; ++i) work_.notify_one();
    job.run_chunks(0);
    {
      const std::unique_lock lock = lock_soon();
      std::erase(tickets_, &ticket);
    }
    const auto done = [&ticket] { return ticket.helpers.load() == 0; };
    if (done() || (spins && spin_until(done))) return;
    ++waiting_;
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, done);
    }
    --waiting_;
  }

 private:
  struct Ticket {
    Job* job;
    int wanted;                   // further helpers that may join
    std::atomic<int> helpers{0};  // inside run_chunks
  };

  /// The mutex is held for moments, and a thread that finds it taken would be put to sleep.
  std::unique_lock<std::mutex> lock_soon() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() && !spin_until([&lock] { return lock.try_lock(); })) lock.lock();
    return lock;
  }

  Ticket* find_work() const {
    for (Ticket* ticket : tickets_) {
      if (ticket->wanted > 0 && !ticket->job->exhausted()) return ticket;
    }
    return nullptr;
  }

  /// With the lock held, which is released meanwhile: until there may be work.
  void wait_for_work(std::unique_lock<std::mutex>& lock, bool& spun) {
    if (spun || !spins_) {
      ++sleeping_;
      work_.wait(lock);
      --sleeping_;
      return;
    }
    const uint64_t seen = posted_.load(std::memory_order_relaxed);
    ++spinning_;
    lock.unlock();
    spun = !spin_until([&] { return posted_.load(std::memory_order_acquire) != seen; });
    lock = lock_soon();
    --spinning_;
  }

  void serve(int number) {
    // Handlers are for the threads of the caller: work that uses the stack pointer for its own ends
    // (matrix products of oneDNN) must not be interrupted by one.
    sigset_t signals;
    sigemptyset(&signals);
    for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, s);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::unique_lock lock(mutex_);
    for (bool spun = false;;) {
      Ticket* ticket = nullptr;
      while (!stopping_ && (ticket = find_work()) == nullptr) wait_for_work(lock, spun);
      if (stopping_) return;
      --ticket->wanted;
      ++ticket->helpers;
      // Several callers may have counted on this one.
      const bool more = tickets_.size() > 1 && sleeping_ > 0 && find_work() != nullptr;
      lock.unlock();
      if (more) work_.notify_one();
      ticket->job->run_chunks(number);
      // The ticket is gone once nobody helps; a caller counts itself as waiting before it looks.
      if (--ticket->helpers == 0 && waiting_.load() > 0) {
        { const std::lock_guard waiting(mutex_); }
        done_.notify_all();
      }
      spun = false;
      lock = lock_soon();
    }
  }

  const int cores_ = count_cores();
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::vector<std::thread> workers_;
  std::vector<Ticket*> tickets_;
  bool stopping_ = false;
  bool spins_ = false;               // there is a core for each thread of the last job
  int sleeping_ = 0, spinning_ = 0;  // workers
  std::atomic<int> waiting_{0};      // callers that sleep until their helpers are done
  std::atomic<uint64_t> posted_{0};  // jobs so far
};

}  // namespace

int num_threads() {
  int threads = g_num_threads.load(std::memory_order_relaxed);
  if (threads == 0) {
    threads = default_num_threads();
    g_num_threads.store(threads, std::memory_order_relaxed);
  }
  return threads;
}

void set_num_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument, "number of threads must be between 0 and " +
                                          std::to_string(kMaxThreads) + ", not " +
                                          std::to_string(threads));
  }
  g_num_threads.store(threads == 0 ? default_num_threads() : threads, std::memory_order_relaxed);
}

bool in_parallel() { return t_in_chunk; }

void parallel_for(int64_t n, int64_t grain, RangeFunction body) {
  SEGUE_ASSERT(n >= 0 && grain > 0, "parallel_for needs n >= 0 and grain > 0");
  if (n == 0) return;
  // A single chunk leaves all threads to loops inside it.
  if (n <= grain) return body(0, n);
  if (num_threads() == 1 || in_parallel()) return run_serial(n, grain, body);
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), num_chunks(n, grain)));
  Job job(n, grain, threads, body);
  Pool::instance().run(job, threads);
  job.rethrow();
}

}  // namespace segue::base
