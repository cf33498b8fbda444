#pragma once

#include <memory>

#include <mpi.h>

#include "comm/communicator.h"
#include "comm/frame.h"

namespace segue::comm {

/// Host memory by MPI, on a communicator of its own. Included by files of the MPI build only.
class MpiLink final : public Link {
 public:
  MpiLink(uint64_t id, Group group, MPI_Comm comm, std::shared_ptr<Fate> fate);
  /// While an exception unwinds this rank, its peers are told: MPI does not show them that it left.
  ~MpiLink() override;

  Status exchange(const Call& call, std::span<const ConstBytes> send,
                  std::span<const Bytes> receive) override;
  Status listen(bool none_may_be_gone) override;
  void break_off(const std::string& reason) noexcept override;

 private:
  class Exchange;

  uint64_t id_;
  Group group_;
  MPI_Comm comm_;
  std::shared_ptr<Fate> fate_;
  bool told_ = false;
};

}  // namespace segue::comm
