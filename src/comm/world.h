#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/config.h"
#include "comm/communicator.h"

namespace segue::comm {

enum class Transport { kAuto, kSelf, kTcp, kMpi, kNccl };

struct CommConfig {
  Transport transport = Transport::kAuto;
  double timeout_seconds = 300;
  /// Where ranks that no MPI starts find each other: "file:PATH" (a folder that all of them see) or
  /// "tcp:HOST:PORT"; empty: as the environment says (mpirun, Slurm, `segue train --ranks`).
  std::string rendezvous;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, CommConfig& c);

/// All ranks of a run, and the groups they open. One per process, or per thread in tests; it must
/// outlive its groups.
class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Place among the ranks of this machine; chooses the GPU.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  /// Collective over the whole world, also for ranks that `members` does not name (they get null).
  /// Groups are independent: each has its own connections, and its own order of calls. Error(kPeer)
  /// when a rank does not come.
  virtual std::unique_ptr<Communicator> open(const std::string& name, Device device,
                                             std::span<const int> members) = 0;
  /// Of all ranks.
  std::unique_ptr<Communicator> open(const std::string& name, Device device = Device::cpu());

  /// Breaks all groups: the peers get `why` with the rank. For an error of this rank alone that
  /// ends it; without this they only see that it is gone.
  void give_up(const std::string& why, bool about_a_peer = false);

  FlightRecorder& flight() { return failure_->flight(); }

 protected:
  World(int rank, int size, int local_rank, int local_size);
  const std::shared_ptr<WorldFailure>& failure() const { return failure_; }

 private:
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::shared_ptr<WorldFailure> failure_ = std::make_shared<WorldFailure>();
};

/// The world that this process was started in: mpirun, Slurm, `segue train --ranks`, or alone.
std::unique_ptr<World> join_world(const CommConfig& config);

/// A world of one.
std::unique_ptr<World> self_world();

/// Runs `body` on `ranks` threads, each a rank of one world; returns when all have ended. What one
/// of them threw breaks the groups of the others and is thrown again: the first error that is not
/// about a peer, if there is one. For tests.
void run_as_threads(int ranks, double timeout_seconds, const std::function<void(World&)>& body);

}  // namespace segue::comm
