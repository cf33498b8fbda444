#include "comm/link/nccl_link.h"

#if SEGUE_HAS_NCCL

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "comm/deadline.h"
#include "comm/join/environment.h"
#include "comm/link/nccl_api.h"

namespace segue::comm {
namespace {

constexpr auto kPoll = std::chrono::microseconds(20);

/// Trouble of this rank's own: card or driver.
Status cuda_status(cudaError_t rc, const char* what) {
  if (rc == cudaSuccess) return {};
  return {ErrorCode::kUnsupported, fmt::format("CUDA: {}: {}", what, cudaGetErrorString(rc))};
}

/// An exchange that is queued does not end when a peer is lost, and whatever this rank does on the
/// GPU then waits behind it: also an allocation or a copy, in which no thread can look around. So
/// every link has a thread that watches what is queued, and ends it when it fails or takes too
/// long, or when the world has failed elsewhere. The waiting threads then find the failure set.
class NcclLink final : public Link {
 public:
  NcclLink(std::unique_ptr<Link> host, Group group, Device device,
           std::shared_ptr<WorldFailure> failure)
      : api_(nccl_api()),
        host_(std::move(host)),
        group_(std::move(group)),
        device_(device),
        failure_(std::move(failure)) {}

  ~NcclLink() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    if (watch_.joinable()) watch_.join();
    for (const Queued& q : queue_) cudaEventDestroy(q.done);
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    if (comm_ == nullptr) return;
    const CallDeadline watched(fmt::format("leaving group `{}` with NCCL", group_.name),
                               group_.members[static_cast<size_t>(group_.rank)],
                               group_.timeout_seconds);
    constexpr double kPatience = 2;  // for peers that are still busy with the last exchange
    if (queued(api_.finalize(comm_)) && finished(after(kPatience)).ok()) {
      api_.destroy(comm_);
    } else {
      api_.abort(comm_);
    }
  }

  /// Collective; the id travels over the host link.
  Status join(const Call& call) {
    ncclUniqueId id{};
    if (group_.rank == 0) {
      const ncclResult_t rc = api_.get_unique_id(&id);
      if (rc != ncclSuccess) return trouble(rc);
    }
    if (host_ != nullptr) {
      std::vector<ConstBytes> send(group_.members.size());
      std::vector<Bytes> receive(group_.members.size());
      const auto memory = std::as_writable_bytes(std::span(&id, 1));
      if (group_.rank == 0) {
        std::fill(send.begin(), send.end(), ConstBytes(memory));
      } else {
        receive[0] = memory;
      }
      const Status status = host_->exchange(call, send, receive);
      if (!status.ok()) return status;
    }
    Status status = cuda_status(cudaSetDevice(device_.index), "cudaSetDevice");
    if (!status.ok()) return status;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t rc = api_.init_rank(&comm_, group_.size(), id, group_.rank, &config);
    if (!queued(rc)) return trouble(rc);
    status = finished(call.deadline);
    if (status.ok()) watch_ = std::thread([this] { watch(); });
    return status;
  }

  Status exchange(const Call& call, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive) override {
    if (host_ == nullptr) return {};
    const std::lock_guard lock(host_mutex_);
    return host_->exchange(call, send, receive);
  }

  bool reaches(Device device) const override { return device == device_; }

  Status exchange_on_device(const Call& call, std::span<const ConstBytes> send,
                            std::span<const Bytes> receive, const Stream& stream) override {
    Status status = cuda_status(cudaSetDevice(device_.index), "cudaSetDevice");
    if (!status.ok()) return status;
    const auto handle = static_cast<cudaStream_t>(stream.handle());
    std::unique_lock lock(mutex_);
    if (comm_ == nullptr) return failure_->status();
    ncclResult_t rc = api_.group_start();
    for (int q = 0; q < group_.size() && queued(rc); ++q) {
      const ConstBytes out = send[static_cast<size_t>(q)];
      const Bytes in = receive[static_cast<size_t>(q)];
      // A group of one sends to itself, so that this runs where there is a single GPU.
      if (q == group_.rank && (group_.size() > 1 || out.data() == in.data())) continue;
      if (!out.empty()) rc = api_.send(out.data(), out.size(), ncclInt8, q, comm_, handle);
      if (!in.empty() && queued(rc)) {
        rc = api_.receive(in.data(), in.size(), ncclInt8, q, comm_, handle);
      }
    }
    const ncclResult_t end = api_.group_end();
    if (queued(rc)) rc = end;
    lock.unlock();
    if (!queued(rc)) return trouble(rc);
    status = finished(call.deadline);
    if (!status.ok()) return status;
    lock.lock();
    // Without an event nobody would watch over what is queued: then it does not stay.
    if (events_.empty()) status = add_event();
    if (!status.ok()) return status;
    status = cuda_status(cudaEventRecord(events_.back(), handle), "cudaEventRecord");
    if (!status.ok()) return status;
    queue_.push_back({call, Clock::now(), events_.back()});
    events_.pop_back();
    return {};
  }

  Status synchronize(const Call& call, const Stream& stream) override {
    const auto handle = static_cast<cudaStream_t>(stream.handle());
    for (;;) {
      const cudaError_t rc = cudaStreamQuery(handle);
      // An exchange that was broken off has ended, too.
      if (rc == cudaSuccess) return failure_->is_set() ? failure_->status() : Status();
      if (rc != cudaErrorNotReady) {
        return {ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc)};
      }
      cudaGetLastError();  // not ready is an answer, not an error to keep
      const Status status = poll(call.deadline);
      if (!status.ok()) return status;
      std::this_thread::sleep_for(kPoll);
    }
  }

  Status listen(bool none_may_be_gone) override {
    const std::unique_lock lock(host_mutex_, std::try_to_lock);
    if (host_ == nullptr || !lock) return {};
    return host_->listen(none_may_be_gone);
  }

  void abort(const std::string& reason) noexcept override {
    {
      const std::unique_lock lock(host_mutex_, std::try_to_lock);
      if (host_ != nullptr && lock) host_->abort(reason);
    }
    // Ends what is queued on the device, which would wait for the peers for ever.
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) api_.abort(comm_);
    comm_ = nullptr;
  }

 private:
  /// On the device, not known to be done.
  struct Queued {
    Call call;
    Clock::time_point since;
    cudaEvent_t done;
  };

  /// With the lock held.
  Status add_event() {
    cudaEvent_t event = nullptr;
    Status status = cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                "cudaEventCreateWithFlags");
    if (status.ok()) events_.push_back(event);
    return status;
  }

  void watch() {
    const Status device = cuda_status(cudaSetDevice(device_.index), "cudaSetDevice");
    if (!device.ok()) {
      failure_->set(fmt::format("{} gave up (group `{}`): {}", group_.peer(group_.rank),
                                group_.name, device.message()));
      return abort(failure_->reason());
    }
    constexpr auto kPause = std::chrono::milliseconds(20);
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, kPause, [this] { return stop_; })) {
      while (!queue_.empty() && cudaEventQuery(queue_.front().done) != cudaErrorNotReady) {
        const Call& done = queue_.front().call;
        if (done.flight != nullptr) done.flight->set_device_done(done.sequence);
        events_.push_back(queue_.front().done);
        queue_.pop_front();
      }
      cudaGetLastError();  // not ready is an answer, not an error to keep
      if (comm_ == nullptr || (queue_.empty() && !failure_->is_set())) continue;
      const bool idle = queue_.empty();
      const Queued oldest = idle ? Queued{} : queue_.front();
      lock.unlock();
      // A peer that is done with its part may have left, but then its part arrives.
      constexpr auto kOnTheWay = std::chrono::seconds(2);
      const bool late = !idle && Clock::now() - oldest.since > kOnTheWay;
      const Status status = idle ? failure_->status() : poll(oldest.call.deadline, late);
      if (!status.ok()) {
        if (!idle) {
          failure_->set(fmt::format("{} gave up (group `{}`, {}, step {}): {}",
                                    group_.peer(group_.rank), group_.name,
                                    to_string(oldest.call.op), oldest.call.step, status.message()));
        }
        abort(failure_->reason());
      }
      lock.lock();
    }
  }

  /// Calls of a communicator that does not block may not be done on return.
  static bool queued(ncclResult_t rc) { return rc == ncclSuccess || rc == ncclInProgress; }

  /// NCCL has done what it was asked to queue.
  Status finished(Clock::time_point deadline) {
    for (;;) {
      const ncclResult_t state = async_state();
      if (state == ncclSuccess) return failure_->is_set() ? failure_->status() : Status();
      const Status status = poll(deadline);
      if (!status.ok()) return status;
      std::this_thread::sleep_for(kPoll);
    }
  }

  ncclResult_t async_state() {
    const std::lock_guard lock(mutex_);
    ncclResult_t state = ncclSuccess;
    if (comm_ == nullptr) return state;
    const ncclResult_t rc = api_.get_async_error(comm_, &state);
    return rc == ncclSuccess ? state : rc;
  }

  /// While waiting: an error of NCCL, a peer that says it has stopped, the deadline. A peer that is
  /// done with its part may have left already, unless `none_may_be_gone`.
  Status poll(Clock::time_point deadline, bool none_may_be_gone = false) {
    if (failure_->is_set()) return failure_->status();
    const ncclResult_t state = async_state();
    if (!queued(state)) return trouble(state);
    const Status heard = listen(none_may_be_gone);
    if (!heard.ok()) return heard;
    if (Clock::now() < deadline) return {};
    std::string who;
    for (int q = 0; q < group_.size(); ++q) {
      if (q != group_.rank) who += (who.empty() ? "" : ", ") + group_.peer(q);
    }
    return {ErrorCode::kPeer, fmt::format("an exchange by NCCL did not end within {} s; one of {} "
                                          "does not answer",
                                          group_.timeout_seconds, who)};
  }

  /// NCCL does not say which peer it lost; the host link may, a moment later.
  Status trouble(ncclResult_t rc) {
    for (const auto until = after(1); host_ != nullptr && Clock::now() < until;) {
      if (failure_->is_set()) return failure_->status();
      const Status heard = listen(true);
      if (!heard.ok()) return heard;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {ErrorCode::kPeer, fmt::format("NCCL says: {}", api_.error_string(rc))};
  }

  const NcclApi& api_;
  std::unique_ptr<Link> host_;
  Group group_;
  Device device_;
  std::shared_ptr<WorldFailure> failure_;
  std::mutex host_mutex_;  // of host_, while the watching thread is there
  std::mutex mutex_;       // of all that follows
  ncclComm_t comm_ = nullptr;
  std::deque<Queued> queue_;
  std::vector<cudaEvent_t> events_;
  bool stop_ = false;
  std::condition_variable stopped_;
  std::thread watch_;
};

}  // namespace

std::string nccl_trouble() { return nccl_api().trouble; }

std::string gpu_identity(Device device) {
  char bus[64] = "";
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device.index) != cudaSuccess) return "none";
  return fmt::format("{}/{}", machine_name(), bus);
}

std::unique_ptr<Link> nccl_link(std::unique_ptr<Link> host, const Group& group, Device device,
                                std::shared_ptr<WorldFailure> failure) {
  // What NCCL does while it connects is watched by itself; starting it, and the driver, are not.
  constexpr double kSlack = 5;
  const CallDeadline watched(fmt::format("opening group `{}` with NCCL", group.name),
                             group.members[static_cast<size_t>(group.rank)],
                             group.timeout_seconds + kSlack);
  auto link = std::make_unique<NcclLink>(std::move(host), group, device, failure);
  const Call call{Op::kOpen, 0, 0, after(group.timeout_seconds), group.timeout_seconds};
  const Status status = link->join(call);
  if (!status.ok()) {
    failure->set(fmt::format("{} gave up (group `{}`, open): {}", group.peer(group.rank),
                             group.name, status.message()));
    link->abort(failure->reason());
    status.with(fmt::format("opening group `{}` with NCCL", group.name)).throw_if_failed();
  }
  return link;
}

}  // namespace segue::comm

#else

namespace segue::comm {

std::string nccl_trouble() { return "this segue was built without NCCL"; }

std::string gpu_identity(Device) { return "none"; }

// The form with NCCL keeps what it is given.
std::unique_ptr<Link> nccl_link(
    std::unique_ptr<Link>, const Group&, Device,
    std::shared_ptr<WorldFailure>) {  // NOLINT(performance-unnecessary-value-param)
  fail(ErrorCode::kUnsupported, nccl_trouble());
}

}  // namespace segue::comm

#endif
