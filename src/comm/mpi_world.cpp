#include "comm/process_world.h"

#if SEGUE_HAS_MPI

#include <cstdio>
#include <cstdlib>
#include <exception>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/deadline.h"
#include "comm/link/mpi_link.h"

namespace segue::comm {
namespace {

void check(int rc, const char* what) {
  if (rc != MPI_SUCCESS) fail(ErrorCode::kPeer, fmt::format("MPI failed in {}", what));
}

class MpiWorld final : public ProcessWorld {
 public:
  MpiWorld(const Seat& seat, const CommConfig& config) : ProcessWorld(seat, config) { start(); }

  /// MPI_Finalize waits for all ranks: only ranks that have just met may enter it.
  ~MpiWorld() override {
    const bool broken = std::uncaught_exceptions() > 0 || failure()->is_set();
    const Status status = broken ? Status() : control()->barrier();
    close_control();
    if (broken) {
      linger_at_exit();  // what broke it is reported by whoever caught it
      return;
    }
    if (status.ok()) {
      const CallDeadline watched("MPI_Finalize", rank(), timeout_seconds());
      MPI_Finalize();
      return;
    }
    // This rank was done; that another is not must still show in how the process ends.
    base::log_error("at the end of the run: " + status.message());
    std::fflush(nullptr);
    speak_last();
    std::_Exit(kPeerExitCode);
  }

 private:
  std::unique_ptr<Link> connect(uint64_t id, const Group& group) override {
    constexpr int kTags = 30000;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    const CallDeadline watched(fmt::format("MPI_Comm_create_group (group `{}`)", group.name),
                               rank(), timeout_seconds());
    check(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, group.size(), group.members.data(), &some), "MPI_Group_incl");
    check(MPI_Comm_create_group(MPI_COMM_WORLD, some, static_cast<int>(id % kTags), &comm),
          "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    // Freeing a communicator may wait for its ranks; MPI_Finalize takes care of it.
    return std::make_unique<MpiLink>(id, group, comm, failure());
  }
};

}  // namespace

bool has_mpi() { return true; }

/// None of what MPI does here has a deadline of its own.
std::unique_ptr<World> join_mpi(const CommConfig& config, const Launch& launch) {
  int ready = 0;
  MPI_Initialized(&ready);
  SEGUE_ASSERT(ready == 0, "one MPI world per process");
  // Waiting is the link's business: see Patience.
  ::setenv("OMPI_MCA_mpi_yield_when_idle", "0", 0);
  int provided = MPI_THREAD_SINGLE;
  {
    const CallDeadline watched("MPI_Init_thread", launch.rank, config.timeout_seconds);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  std::atexit(speak_last);
  if (provided < MPI_THREAD_MULTIPLE) {
    fail(ErrorCode::kUnsupported,
         "this MPI cannot be called from several threads (MPI_THREAD_MULTIPLE); set "
         "comm.rendezvous so that ranks talk over TCP");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  ProcessWorld::Seat seat;
  MPI_Comm_rank(MPI_COMM_WORLD, &seat.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &seat.size);
  {
    const CallDeadline watched("MPI_Comm_split_type", seat.rank, config.timeout_seconds);
    MPI_Comm machine = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, seat.rank, MPI_INFO_NULL,
                              &machine),
          "MPI_Comm_split_type");
    MPI_Comm_rank(machine, &seat.local_rank);
    MPI_Comm_size(machine, &seat.local_size);
    MPI_Comm_free(&machine);
  }
  return std::make_unique<MpiWorld>(seat, config);
}

}  // namespace segue::comm

#else

namespace segue::comm {

bool has_mpi() { return false; }

std::unique_ptr<World> join_mpi(const CommConfig&, const Launch&) {
  fail(ErrorCode::kUnsupported,
       "this process was started by mpirun, but this segue was built without MPI; install "
       "libopenmpi-dev and rebuild, or set comm.rendezvous (file:PATH or tcp:HOST:PORT) so that "
       "ranks talk over TCP");
}

}  // namespace segue::comm

#endif
