#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/join/environment.h"
#include "comm/world.h"

namespace segue::comm {

/// A world whose ranks are processes: what TCP and MPI share.
class ProcessWorld : public World {
 public:
  using World::open;
  std::unique_ptr<Communicator> open(const std::string& name, Device device,
                                     std::span<const int> members) override;

  struct Seat {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
  };

 protected:
  ProcessWorld(const Seat& seat, const CommConfig& config);

  /// Opens the group over which ranks agree about all others; before anything else.
  void start();
  /// Before a group other than the first one opens: what this rank tells all others, and what they
  /// all told, by rank. Error(kPeer), Error(kIo).
  virtual std::string invite(std::span<const int>) { return ""; }
  virtual void accept(std::span<const std::string>) {}
  /// Collective over the members. Ids count up and are equal on all ranks. Error(kPeer).
  virtual std::unique_ptr<Link> connect(uint64_t id, const Group& group) = 0;
  /// Null before start().
  Communicator* control() const { return control_.get(); }
  void close_control() { control_.reset(); }
  double timeout_seconds() const { return timeout_seconds_; }

 private:
  std::unique_ptr<Communicator> open_group(uint64_t id, const std::string& name,
                                           std::span<const int> members, Device nccl_device);
  /// All ranks open the same group, and know what they need to; the device to use NCCL on, or the
  /// CPU.
  Device agree(const std::string& name, Device device, std::span<const int> members);

  Transport transport_;
  double timeout_seconds_;
  uint64_t opened_ = 0;
  std::unique_ptr<Communicator> control_;
};

/// One rank, whose groups may still use NCCL.
std::unique_ptr<World> lone_world(const CommConfig& config);
std::unique_ptr<World> join_tcp(const CommConfig& config, const Launch& launch);
/// Error(kUnsupported) in a build without MPI.
std::unique_ptr<World> join_mpi(const CommConfig& config, const Launch& launch);
bool has_mpi();

}  // namespace segue::comm
