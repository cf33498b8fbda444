#include "comm/world.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace segue::comm {
namespace {

class SelfWorld final : public World {
 public:
  SelfWorld() : World(0, 1, 0, 1) {}

  using World::open;
  std::unique_ptr<Communicator> open(const std::string& name, Device,
                                     std::span<const int> members) override {
    if (members.empty()) return nullptr;
    return std::make_unique<Communicator>(Group{name, 0, {0}}, nullptr, fate());
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

void World::give_up(const std::string& why) {
  fate_->seal(fmt::format("rank {} gave up: {}", rank(), why));
}

std::unique_ptr<World> self_world() { return std::make_unique<SelfWorld>(); }

}  // namespace segue::comm
