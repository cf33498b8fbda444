#include "comm/world.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "comm/join/environment.h"
#include "comm/join/rendezvous.h"
#include "comm/process_world.h"

namespace segue::comm {
namespace {

class SelfWorld final : public World {
 public:
  SelfWorld() : World(0, 1, 0, 1) {}

  using World::open;
  std::unique_ptr<Communicator> open(const std::string& name, Device,
                                     std::span<const int> members) override {
    if (members.empty()) return nullptr;
    return std::make_unique<Communicator>(Group{name, 0, {0}}, nullptr, failure());
  }
};

}  // namespace

World::World(int rank, int size, int local_rank, int local_size)
    : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}

std::unique_ptr<Communicator> World::open(const std::string& name, Device device) {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return open(name, device, all);
}

void World::give_up(const std::string& why, bool about_a_peer) {
  const bool own = !about_a_peer && !failure_->is_set();
  failure_->set(fmt::format("rank {} gave up: {}", rank(), why));
  flight().write_failure(why, own);
}

std::unique_ptr<World> self_world() { return std::make_unique<SelfWorld>(); }

void CommConfig::validate() const {
  if (!(timeout_seconds > 0)) {
    fail(ErrorCode::kConfig,
         fmt::format("comm.timeout_seconds must be positive, not {}", timeout_seconds));
  }
  if (!rendezvous.empty()) check_rendezvous(rendezvous);
}

void describe(base::ConfigVisitor& v, CommConfig& c) {
  v.choice("transport", c.transport, {"auto", "self", "tcp", "mpi", "nccl"},
           "how ranks talk to each other; auto: MPI under mpirun, else TCP, and NCCL for device "
           "memory where every rank has a GPU of its own");
  v.field("timeout_seconds", c.timeout_seconds,
          "a rank that does not answer for so long ends the run");
  v.field("rendezvous", c.rendezvous,
          "where ranks meet: file:PATH (a folder all of them see) or tcp:HOST:PORT; empty: as the "
          "launcher says");
}

std::unique_ptr<World> join_world(const CommConfig& config) {
  config.validate();
  if (config.transport == Transport::kSelf) return self_world();
  const Launch launch = read_launch();
  const bool by_mpirun = launch.by == Launch::By::kMpirun;
  if (config.transport == Transport::kMpi) {
    if (!by_mpirun) {
      fail(ErrorCode::kConfig,
           "comm.transport = \"mpi\", but this process was not started by mpirun (there is no "
           "OMPI_COMM_WORLD_SIZE); start it with mpirun, or use tcp");
    }
    return join_mpi(config, launch);
  }
  // NCCL serves a world of one as well: that is how it is tested where there is one GPU.
  if (launch.ranks == 1 && config.transport != Transport::kNccl) return self_world();
  if (launch.ranks == 1 && !by_mpirun) return lone_world(config);
  const bool prefers_tcp = config.transport == Transport::kTcp || !config.rendezvous.empty();
  if (by_mpirun && !prefers_tcp) return join_mpi(config, launch);
  return join_tcp(config, launch);
}

}  // namespace segue::comm
