#if SEGUE_HAS_MPI

#include "comm/link/mpi_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace segue::comm {
namespace {

constexpr int kHeaderTag = 1, kDataTag = 2, kReasonTag = 3;
// Counts of MPI are int.
constexpr size_t kPiece = size_t{1} << 30;

std::string text_of(int rc) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(rc, text, &length);
  return text;
}

/// Busy at first, because messages usually come within microseconds; then out of the way of other
/// ranks on the same cores. It sleeps and does not yield: on a busy machine a thread that yields
/// comes back after others have used up their time, milliseconds later.
class Patience {
 public:
  void wait() {
    ++rounds_;
    if (rounds_ < 50) return;
    std::this_thread::sleep_for(std::chrono::microseconds(rounds_ < 2000 ? 20 : 500));
  }
  void reset() { rounds_ = 0; }

 private:
  int rounds_ = 0;
};

struct LastWord {
  MPI_Comm comm = MPI_COMM_NULL;
  int size = 0, rank = 0;
  std::string reason;
};

// How this process ends; nothing here influences a result.
std::mutex g_mutex;
std::vector<LastWord> g_last_words;  // guarded by g_mutex until the process exits
std::list<std::string> g_reasons;    // guarded; never freed: MPI may read them to the very end
std::atomic<bool> g_linger{false};

/// To all others of a communicator, without waiting for those that are gone.
void tell(const LastWord& word) {
  const std::string* reason = nullptr;
  {
    const std::lock_guard lock(g_mutex);
    reason = &g_reasons.emplace_back(cut_reason(word.reason));
  }
  std::vector<MPI_Request> requests;
  for (int q = 0; q < word.size; ++q) {
    if (q == word.rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(reason->data(), static_cast<int>(reason->size()), MPI_BYTE, q, kReasonTag, word.comm,
              &request);
    requests.push_back(request);
  }
  const auto enough = Clock::now() + std::chrono::milliseconds(300);
  for (int done = 0; done == 0 && Clock::now() < enough;) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

/// The requests of one exchange; those that are still open at its end are given up.
class MpiLink::Exchange {
 public:
  Exchange(MpiLink& link, const Call& call, std::span<const ConstBytes> send,
           std::span<const Bytes> receive)
      : link_(link), call_(call), receive_(receive), peers_(send.size()) {
    for (int q = 0; q < link_.group_.size(); ++q) {
      if (q != link_.group_.rank) expect(q, receive[static_cast<size_t>(q)]);
    }
    for (int q = 0; q < link_.group_.size(); ++q) {
      if (q != link_.group_.rank) post(q, send[static_cast<size_t>(q)]);
    }
  }
  ~Exchange() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (kinds_[i].what != kSend) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Status run() {
    if (!posted_.ok()) return posted_;
    Patience patience;
    while (open_ > 0) {
      const int64_t before = open_;
      Status status = advance();
      if (status.ok() && open_ > 0) status = link_.listen(true);
      if (status.ok() && open_ > 0 && link_.failure_->is_set()) status = link_.failure_->status();
      if (status.ok() && open_ > 0 && Clock::now() >= call_.deadline) status = timed_out();
      if (!status.ok()) return status;
      if (open_ < before) {
        patience.reset();
      } else {
        patience.wait();
      }
    }
    return {};
  }

 private:
  enum What { kSend, kHeader, kData };
  struct Kind {
    What what = kSend;
    int peer = 0;
    size_t bytes = 0;
  };
  struct Peer {
    FrameHeader out, in;
    int missing = 0;  // header and pieces that have not come
    int open = 0;     // requests
  };

  void add(What what, int peer, size_t bytes, MPI_Request request, int rc) {
    if (rc != MPI_SUCCESS && posted_.ok()) posted_ = broken(peer, rc);
    kinds_.push_back({what, peer, bytes});
    requests_.push_back(rc == MPI_SUCCESS ? request : MPI_REQUEST_NULL);
    ++open_;
    ++peers_[static_cast<size_t>(peer)].open;
    call_.set_due(peer);
  }

  template <class Function>
  static void for_pieces(size_t total, Function f) {
    for (size_t at = 0; at < total; at += kPiece) f(at, std::min(kPiece, total - at));
  }

  void expect(int q, Bytes to) {
    if (to.empty()) return;
    Peer& peer = peers_[static_cast<size_t>(q)];
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Irecv(&peer.in, sizeof peer.in, MPI_BYTE, q, kHeaderTag, link_.comm_, &request);
    add(kHeader, q, sizeof peer.in, request, rc);
    ++peer.missing;
    for_pieces(to.size(), [&](size_t at, size_t bytes) {
      rc = MPI_Irecv(to.data() + at, static_cast<int>(bytes), MPI_BYTE, q, kDataTag, link_.comm_,
                     &request);
      add(kData, q, bytes, request, rc);
      ++peer.missing;
    });
  }

  void post(int q, ConstBytes from) {
    if (from.empty()) return;
    Peer& peer = peers_[static_cast<size_t>(q)];
    peer.out = data_frame(link_.id_, call_, from);
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Isend(&peer.out, sizeof peer.out, MPI_BYTE, q, kHeaderTag, link_.comm_, &request);
    add(kSend, q, 0, request, rc);
    for_pieces(from.size(), [&](size_t at, size_t bytes) {
      rc = MPI_Isend(from.data() + at, static_cast<int>(bytes), MPI_BYTE, q, kDataTag, link_.comm_,
                     &request);
      add(kSend, q, 0, request, rc);
    });
  }

  /// Looks at what has completed, headers first.
  Status advance() {
    int count = 0;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int rc = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
    if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS) {
      return {ErrorCode::kPeer, "MPI: " + text_of(rc)};
    }
    if (count == MPI_UNDEFINED) count = 0;
    open_ -= count;
    for (const bool headers : {true, false}) {
      for (int i = 0; i < count; ++i) {
        const Kind& kind = kinds_[static_cast<size_t>(indices_[static_cast<size_t>(i)])];
        if ((kind.what == kHeader) != headers) continue;
        const MPI_Status& s = statuses_[static_cast<size_t>(i)];
        Status status = completed(kind, s, rc == MPI_SUCCESS ? MPI_SUCCESS : s.MPI_ERROR);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  Status completed(const Kind& kind, const MPI_Status& s, int rc) {
    const auto q = static_cast<size_t>(kind.peer);
    if (--peers_[q].open == 0) call_.set_settled(kind.peer);
    const std::string name = link_.group_.peer(kind.peer);
    if (rc != MPI_SUCCESS && rc != MPI_ERR_PENDING) return broken(kind.peer, rc);
    if (kind.what == kSend) return {};
    int bytes = 0;
    MPI_Get_count(&s, MPI_BYTE, &bytes);
    if (static_cast<size_t>(bytes) != kind.bytes) {
      return {ErrorCode::kPeer,
              fmt::format("{} sent {} bytes where {} (call {}) expects {}", name, bytes,
                          to_string(call_.op), call_.sequence, kind.bytes)};
    }
    Peer& peer = peers_[q];
    Status status;
    if (kind.what == kHeader) {
      status = check_header(peer.in, link_.id_, name);
      if (status.ok()) status = check_call(peer.in, call_, receive_[q].size(), name);
    }
    if (--peer.missing == 0 && status.ok()) status = check_payload(peer.in, receive_[q], name);
    return status;
  }

  Status broken(int peer, int rc) const {
    return {ErrorCode::kPeer,
            fmt::format("{}: MPI says: {}", link_.group_.peer(peer), text_of(rc))};
  }

  Status timed_out() const {
    std::vector<bool> late(peers_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) late[static_cast<size_t>(kinds_[i].peer)] = true;
    }
    std::string who;
    for (int q = 0; q < link_.group_.size(); ++q) {
      if (!late[static_cast<size_t>(q)]) continue;
      who += (who.empty() ? "" : ", ") + link_.group_.peer(q);
    }
    return did_not_answer(who, call_);
  }

  MpiLink& link_;
  const Call& call_;
  std::span<const Bytes> receive_;
  std::vector<Peer> peers_;  // never resized: MPI writes into it
  std::vector<MPI_Request> requests_;
  std::vector<Kind> kinds_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  int64_t open_ = 0;
  Status posted_;
};

MpiLink::MpiLink(uint64_t id, Group group, MPI_Comm comm, std::shared_ptr<WorldFailure> failure)
    : id_(id), group_(std::move(group)), comm_(comm), failure_(std::move(failure)) {}

MpiLink::~MpiLink() {
  if (std::uncaught_exceptions() == 0 || told_) return;
  const std::string reason =
      failure_->is_set()
          ? failure_->reason()
          : group_.peer(group_.rank) + " gave up: it stopped with an error of its own";
  const std::lock_guard lock(g_mutex);
  g_last_words.push_back({comm_, group_.size(), group_.rank, reason});
}

Status MpiLink::exchange(const Call& call, std::span<const ConstBytes> send,
                         std::span<const Bytes> receive) {
  return Exchange(*this, call, send, receive).run();
}

Status MpiLink::listen(bool) {
  int there = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, kReasonTag, comm_, &there, &status) != MPI_SUCCESS || there == 0) {
    return {};
  }
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxReason) {
    failure_->set(
        fmt::format("{} gave up, and its reason is unreadable", group_.peer(status.MPI_SOURCE)));
    return failure_->status();
  }
  std::string reason(static_cast<size_t>(bytes), ' ');
  MPI_Recv(reason.data(), bytes, MPI_BYTE, status.MPI_SOURCE, kReasonTag, comm_, MPI_STATUS_IGNORE);
  failure_->set(reason);
  return failure_->status();
}

void MpiLink::abort(const std::string& text) noexcept {
  if (told_) return;
  told_ = true;
  try {
    tell({comm_, group_.size(), group_.rank, text});
  } catch (const std::bad_alloc&) {  // they will run into their timeout
  }
}

void linger_at_exit() { g_linger = true; }

void speak_last() {
  for (const LastWord& word : g_last_words) tell(word);
  constexpr auto kOthersSpeak = std::chrono::seconds(2);
  if (g_linger || !g_last_words.empty()) std::this_thread::sleep_for(kOthersSpeak);
}

}  // namespace segue::comm

#endif
