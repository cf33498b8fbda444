#pragma once

// For tests only: ranks over TCP as threads of one process; every rank has sockets of its own.

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/process_world.h"

namespace segue::comm::testing {

inline constexpr const char* kSecret = "a secret for the tests";

/// As `segue train --ranks` starts it.
inline Launch launch_of(int rank, int ranks, const std::string& secret = kSecret) {
  Launch launch;
  launch.by = Launch::By::kSegue;
  launch.rank = rank;
  launch.ranks = ranks;
  launch.all_local = true;
  launch.secret = secret;
  return launch;
}

inline CommConfig config_of(const std::string& place, double timeout) {
  CommConfig config;
  config.timeout_seconds = timeout;
  config.rendezvous = place;
  return config;
}

/// One rank: where it was told to go, and how it was started.
struct Start {
  CommConfig config;
  Launch launch;
  int late_ms = 0;
};

/// Messages of what each rank threw; empty where it threw nothing.
inline std::vector<std::string> run_tcp(const std::vector<Start>& starts,
                                        const std::function<void(World&)>& body) {
  std::vector<std::string> errors(starts.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < starts.size(); ++r) {
    threads.emplace_back([&, r] {
      std::this_thread::sleep_for(std::chrono::milliseconds(starts[r].late_ms));
      try {
        const auto world = join_tcp(starts[r].config, starts[r].launch);
        body(*world);
      } catch (const Error& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_tcp(int ranks, const std::string& place, double timeout,
                                        const std::function<void(World&)>& body) {
  std::vector<Start> starts;
  for (int r = 0; r < ranks; ++r) {
    starts.push_back({config_of(place, timeout), launch_of(r, ranks)});
  }
  return run_tcp(starts, body);
}

}  // namespace segue::comm::testing
