// What the ranks of the process tests do: this program once more, with one test and a scenario in
// the environment (process_test.cpp starts it).

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "comm/collectives_test_util.h"
#include "comm/join/environment.h"
#include "comm/link/frame.h"
#include "comm/world.h"

namespace segue::comm {
namespace {

std::string setting(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

/// The rank that makes trouble; the others are to survive it.
constexpr int kCulprit = 2;
constexpr int kTroubleStep = 3;
constexpr int kPeerExitCode = 9, kOwnExitCode = 5;

void make_trouble(const std::string& scenario, World& world) {
  if (scenario == "kill") ::raise(SIGKILL);
  if (scenario == "stop") ::raise(SIGSTOP);
  if (scenario == "corrupt") testing::damage_next_frame();
  if (scenario == "throw") fail(ErrorCode::kNumeric, "loss is not finite");
  if (scenario == "give_up") {
    world.give_up("the disk is full");
    fail(ErrorCode::kIo, "the disk is full");
  }
}

/// Stops this process so many milliseconds from now, wherever it is then.
void stop_after(int ms) {
  std::thread([ms] {
    ::usleep(static_cast<useconds_t>(ms) * 1000);
    ::raise(SIGSTOP);
  }).detach();
}

/// Ranks share the GPUs there are. `nccl`: each says that it is a machine of its own, so that NCCL
/// connects them. Then a step at which `trouble` comes, if it is not empty.
void run_on_gpu(World& world, bool nccl, const std::string& trouble) {
  if (nccl) ::setenv("NCCL_HOSTID", std::to_string(world.rank()).c_str(), 1);
  const Device device = Device::cuda(world.local_rank() % cuda_device_count());
  const Stream stream(device);
  const auto comm = world.open("dense", device);
  if (!trouble.empty()) {
    for (int step = 0; step < 6; ++step) {
      comm->set_step(step);
      if (world.rank() == kCulprit && step == kTroubleStep) make_trouble(trouble, world);
      testing::check_all_reduce<float>(*comm, static_cast<uint64_t>(step), 20000,
                                       {device, &stream});
    }
    return;
  }
  const auto other = world.open("tables", device);
  testing::check_random_calls(*comm, 31, 40, 20000, {device, &stream});
  testing::check_random_calls(*other, 33, 20, 100000, {device, &stream});
  testing::check_all_reduce<float>(*comm, 32, 5000001, {device, &stream});
}

void run(World& world, const std::string& scenario) {
  if (scenario == "gpu") return run_on_gpu(world, false, "");
  if (scenario.starts_with("nccl")) return run_on_gpu(world, true, scenario.substr(4));
  const auto comm = world.open("dense");
  const auto other = world.open("tables");
  if (scenario == "random") {
    const auto seed = static_cast<uint64_t>(std::stoi(setting("SEGUE_TEST_SEED", "1")));
    testing::check_random_calls(*comm, seed, 40, 5000);
    testing::check_random_calls(*other, seed + 1, 20, 100000);
    std::vector<int> odd;
    for (int r = 1; r < world.size(); r += 2) odd.push_back(r);
    const auto some = world.open("odd", Device::cpu(), odd);
    testing::require((some != nullptr) == (world.rank() % 2 == 1), "members");
    if (some != nullptr) testing::check_random_calls(*some, seed + 2, 20, 300);
    testing::require(world.local_size() == world.size(), "local size");
    testing::require(world.local_rank() == world.rank(), "local rank");
    return;
  }
  for (int step = 0; step < 6; ++step) {
    comm->set_step(step);
    if (world.rank() == kCulprit && step == kTroubleStep) make_trouble(scenario, world);
    testing::check_all_reduce<float>(*comm, static_cast<uint64_t>(step), 20000, {});
  }
}

TEST(DISABLED_RankProgram, Run) {
  CommConfig config;
  config.timeout_seconds = std::stod(setting("SEGUE_TEST_TIMEOUT", "20"));
  config.rendezvous = setting("SEGUE_TEST_RENDEZVOUS", "");
  const std::string scenario = setting("SEGUE_TEST_SCENARIO", "random");
  int code = 0;
  const std::string stop = setting("SEGUE_TEST_STOP_AFTER_MS", "");
  if (!stop.empty() && read_launch().rank == kCulprit) stop_after(std::stoi(stop));
  try {
    const auto world = join_world(config);
    std::cerr << "here is " + std::to_string(world->rank()) + " of " +
                     std::to_string(world->size()) + "\n";
    run(*world, scenario);
  } catch (const Error& error) {
    code = error.code() == ErrorCode::kPeer ? kPeerExitCode : kOwnExitCode;
    std::cerr << "exit code " + std::to_string(code) + "\nfailed: " + error.what() + "\n";
  }
  if (code != 0) std::exit(code);
}

}  // namespace
}  // namespace segue::comm
