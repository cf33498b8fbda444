#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "comm/world.h"

namespace segue::comm {
namespace {

struct Letter {
  Op op = Op::kBarrier;
  int64_t step = 0;
  uint64_t sequence = 0;
  std::vector<std::byte> payload;
};

/// What the ranks of a group share.
struct PostOffice {
  explicit PostOffice(std::string group, std::vector<int> ranks)
      : name(std::move(group)),
        members(std::move(ranks)),
        boxes(members.size() * members.size()),
        left(members.size(), Clock::time_point::max()) {}

  void stop(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (broken.empty()) broken = reason;
    news.notify_all();
  }
  std::deque<Letter>& box(int from, int to) {
    return boxes[static_cast<size_t>(from) * members.size() + static_cast<size_t>(to)];
  }

  const std::string name;
  const std::vector<int> members;
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::deque<Letter>> boxes;  // guarded, as all below
  std::vector<Clock::time_point> left;    // when a rank was gone
  std::string broken;
};

class ThreadLink final : public Link {
 public:
  ThreadLink(Group group, std::shared_ptr<PostOffice> office, std::shared_ptr<WorldFailure> failure)
      : group_(std::move(group)), office_(std::move(office)), failure_(std::move(failure)) {}

  ~ThreadLink() override {
    // While an exception unwinds this rank, its reason is on its way and says more.
    constexpr auto kReasonTakes = std::chrono::seconds(1);
    const bool unwinding = std::uncaught_exceptions() > 0;
    const std::lock_guard lock(office_->mutex);
    office_->left[static_cast<size_t>(group_.rank)] =
        Clock::now() + (unwinding ? kReasonTakes : Clock::duration::zero());
    office_->news.notify_all();
  }

  Status exchange(const Call& call, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive) override {
    for (int q = 0; q < group_.size(); ++q) {
      if (q != group_.rank && !receive[static_cast<size_t>(q)].empty()) call.set_due(q);
    }
    post(call, send);
    for (int q = 0; q < group_.size(); ++q) {
      const Bytes to = receive[static_cast<size_t>(q)];
      if (q == group_.rank || to.empty()) continue;
      Letter letter;
      Status status = fetch(call, q, letter);
      if (status.ok()) status = check(call, q, letter, to.size());
      if (!status.ok()) return status;
      call.set_settled(q);
      std::memcpy(to.data(), letter.payload.data(), to.size());
    }
    return {};
  }

  void abort(const std::string& reason) noexcept override { office_->stop(reason); }

 private:
  void post(const Call& call, std::span<const ConstBytes> send) {
    std::vector<Letter> letters(send.size());
    for (size_t q = 0; q < send.size(); ++q) {
      letters[q] = {call.op, call.step, call.sequence, {send[q].begin(), send[q].end()}};
    }
    const std::lock_guard lock(office_->mutex);
    for (int q = 0; q < group_.size(); ++q) {
      Letter& letter = letters[static_cast<size_t>(q)];
      if (q == group_.rank || letter.payload.empty()) continue;
      office_->box(group_.rank, q).push_back(std::move(letter));
    }
    office_->news.notify_all();
  }

  Status fetch(const Call& call, int from, Letter& letter) {
    // Another group of this rank may break meanwhile; nobody signals that here.
    constexpr auto kLookAround = std::chrono::milliseconds(50);
    std::unique_lock lock(office_->mutex);
    std::deque<Letter>& box = office_->box(from, group_.rank);
    while (box.empty()) {
      if (!office_->broken.empty()) failure_->set(office_->broken);
      if (failure_->is_set()) return failure_->status();
      const auto now = Clock::now();
      if (now >= office_->left[static_cast<size_t>(from)]) {
        call.set_gone(from);
        return {ErrorCode::kPeer, group_.peer(from) + " has left the group"};
      }
      if (now >= call.deadline) {
        return {ErrorCode::kPeer, fmt::format("{} did not answer within {} s", group_.peer(from),
                                              call.timeout_seconds)};
      }
      office_->news.wait_until(lock, std::min(call.deadline, now + kLookAround));
    }
    letter = std::move(box.front());
    box.pop_front();
    return {};
  }

  Status check(const Call& call, int from, const Letter& letter, size_t bytes) const {
    if (letter.op == call.op && letter.sequence == call.sequence &&
        letter.payload.size() == bytes) {
      return {};
    }
    return {ErrorCode::kPeer,
            fmt::format("{} is in {} (call {}, step {}) and sent {} bytes where {} (call {}) "
                        "expects {}",
                        group_.peer(from), to_string(letter.op), letter.sequence, letter.step,
                        letter.payload.size(), to_string(call.op), call.sequence, bytes)};
  }

  Group group_;
  std::shared_ptr<PostOffice> office_;
  std::shared_ptr<WorldFailure> failure_;
};

/// What the ranks of a thread world share.
struct Town {
  explicit Town(int n, double timeout) : ranks(n), timeout_seconds(timeout) {}

  /// The `index`-th group that the world opens.
  std::shared_ptr<PostOffice> office(size_t index, const std::string& name,
                                     std::span<const int> members) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<PostOffice>& office = offices[index];
    if (office == nullptr) {
      office = std::make_shared<PostOffice>(name, std::vector<int>(members.begin(), members.end()));
      if (!broken.empty()) office->broken = broken;
    }
    if (office->name != name || !std::ranges::equal(office->members, members)) {
      fail(ErrorCode::kPeer, fmt::format("ranks disagree about the group they open next: `{}` "
                                         "here, `{}` elsewhere, or other members",
                                         name, office->name));
    }
    return office;
  }

  void stop(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (broken.empty()) broken = reason;
    for (auto& [index, office] : offices) office->stop(reason);
  }

  const int ranks;
  const double timeout_seconds;
  std::mutex mutex;
  std::map<size_t, std::shared_ptr<PostOffice>> offices;  // guarded, as all below
  std::string broken;
  std::exception_ptr first_error;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(int rank, Town& town) : World(rank, town.ranks, rank, town.ranks), town_(town) {}

  using World::open;
  std::unique_ptr<Communicator> open(const std::string& name, Device,
                                     std::span<const int> members) override {
    const auto office = town_.office(opened_++, name, members);
    const auto me = std::ranges::find(members, rank());
    if (me == members.end()) return nullptr;
    const Group group{name, static_cast<int>(me - members.begin()), office->members,
                      town_.timeout_seconds};
    return std::make_unique<Communicator>(
        group, std::make_unique<ThreadLink>(group, office, failure()), failure());
  }

 private:
  Town& town_;
  size_t opened_ = 0;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

/// Whether it only tells that another rank is in trouble.
bool is_about_a_peer(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code() == ErrorCode::kPeer;
  } catch (...) {
    return false;
  }
}

void run_rank(int rank, Town& town, const std::function<void(World&)>& body) {
  ThreadWorld world(rank, town);
  std::exception_ptr error;
  try {
    body(world);
    return;
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(town.mutex);
    // A rank that gives up tells the others before it ends: they may be the first to throw.
    if (town.first_error == nullptr ||
        (is_about_a_peer(town.first_error) && !is_about_a_peer(error))) {
      town.first_error = error;
    }
  }
  town.stop(fmt::format("rank {} gave up: {}", rank, text_of(error)));
}

}  // namespace

void run_as_threads(int ranks, double timeout_seconds, const std::function<void(World&)>& body) {
  SEGUE_ASSERT(ranks > 0, "a world has ranks");
  Town town(ranks, timeout_seconds);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([r, &town, &body] { run_rank(r, town, body); });
  }
  for (std::thread& thread : threads) thread.join();
  if (town.first_error != nullptr) std::rethrow_exception(town.first_error);
}

}  // namespace segue::comm
