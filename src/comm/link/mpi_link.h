#pragma once

#include <memory>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/link/frame.h"

namespace segue::comm {

/// Host memory by MPI, on a communicator of its own. Included by files of the MPI build only.
class MpiLink final : public Link {
 public:
  MpiLink(uint64_t id, Group group, MPI_Comm comm, std::shared_ptr<WorldFailure> failure);
  /// While an exception unwinds this rank, what its peers must know is kept for speak_last():
  /// MPI does not show them that it left.
  ~MpiLink() override;

  Status exchange(const Call& call, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive) override;
  Status listen(bool none_may_be_gone) override;
  void abort(const std::string& reason) noexcept override;

 private:
  class Exchange;

  uint64_t id_;
  Group group_;
  MPI_Comm comm_;
  std::shared_ptr<WorldFailure> failure_;
  bool told_ = false;
};

/// Runs when the process exits, after its own message is out: tells the peers of links that an
/// exception took away. A rank of a broken world then lingers, because mpirun kills all ranks when
/// the first one has failed, and they shall have said why.
void speak_last();
/// The world of this process is broken.
void linger_at_exit();

}  // namespace segue::comm
