#include "comm/process_world.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/link/nccl_link.h"

namespace segue::comm {
namespace {

class LoneWorld final : public ProcessWorld {
 public:
  explicit LoneWorld(const CommConfig& config) : ProcessWorld({}, config) { start(); }

 private:
  std::unique_ptr<Link> connect(uint64_t, const Group&) override { return nullptr; }
};

}  // namespace

std::unique_ptr<World> lone_world(const CommConfig& config) {
  return std::make_unique<LoneWorld>(config);
}

ProcessWorld::ProcessWorld(const Seat& seat, const CommConfig& config)
    : World(seat.rank, seat.size, seat.local_rank, seat.local_size),
      transport_(config.transport),
      timeout_seconds_(config.timeout_seconds) {}

void ProcessWorld::start() {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  control_ = open_group(opened_++, "world", all, Device::cpu());
  failure()->set_world([this] { control_->listen(); });
}

std::unique_ptr<Communicator> ProcessWorld::open_group(uint64_t id, const std::string& name,
                                                       std::span<const int> members,
                                                       Device nccl_device) {
  const auto me = std::ranges::find(members, rank());
  if (me == members.end()) return nullptr;
  const Group group{name,
                    static_cast<int>(me - members.begin()),
                    {members.begin(), members.end()},
                    timeout_seconds_};
  std::unique_ptr<Link> link;
  if (group.size() > 1) link = connect(id, group);
  if (nccl_device.is_cuda()) link = nccl_link(std::move(link), group, nccl_device, failure());
  return std::make_unique<Communicator>(group, std::move(link), failure());
}

Device ProcessWorld::agree(const std::string& name, Device device, std::span<const int> members) {
  const bool wanted = device.is_cuda() && (transport_ == Transport::kNccl ||
                                           (transport_ == Transport::kAuto && members.size() > 1));
  const std::string gpu = wanted && nccl_trouble().empty() ? gpu_identity(device) : "none";
  const std::string what = fmt::format("`{}` of ranks {}", name, fmt::join(members, " "));
  const std::string text = gpu + "\n" + invite(members) + "\n" + what;
  std::vector<std::vector<std::byte>> all;
  control_->all_gather(std::as_bytes(std::span(text)), all).throw_if_failed();

  std::vector<std::string> gpus, invitations;
  for (size_t r = 0; r < all.size(); ++r) {
    std::istringstream theirs(
        std::string(reinterpret_cast<const char*>(all[r].data()), all[r].size()));
    std::string their_group;
    std::getline(theirs, gpus.emplace_back());
    std::getline(theirs, invitations.emplace_back());
    std::getline(theirs, their_group);
    if (their_group != what) {
      fail(ErrorCode::kPeer, fmt::format("ranks disagree about the group they open next: {} here, "
                                         "{} on rank {}",
                                         what, their_group, r));
    }
  }
  accept(invitations);
  if (!wanted || members.empty()) return Device::cpu();
  std::set<std::string> distinct;
  for (const int member : members) distinct.insert(gpus[static_cast<size_t>(member)]);
  if (distinct.contains("none") || distinct.size() < members.size()) {
    const std::string why = nccl_trouble();
    base::log_once(base::LogLevel::kWarning, "comm.nccl",
                   (why.empty() ? "several ranks share a GPU, which NCCL cannot do" : why) +
                       ": device memory goes through host memory");
    return Device::cpu();
  }
  return device;
}

std::unique_ptr<Communicator> ProcessWorld::open(const std::string& name, Device device,
                                                 std::span<const int> members) {
  for (const int member : members) {
    SEGUE_ASSERT(member >= 0 && member < size(), "members are ranks of the world");
  }
  const Device nccl_device = agree(name, device, members);
  return open_group(opened_++, name, members, nccl_device);
}

}  // namespace segue::comm
