#include "comm/world.h"

#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "comm/join/environment.h"
#include "comm/process_world.h"

namespace segue::comm {
namespace {

using base::contains;

/// Sets variables that launchers set, all others of theirs being absent, until the end of a test.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values) {
    for (const char* name :
         {"SEGUE_RANK", "SEGUE_RANKS", "SEGUE_RENDEZVOUS", "SEGUE_LOCAL_RANKS", "SEGUE_SECRET",
          "SEGUE_SECRET_FILE", "SEGUE_LISTENER", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST",
          "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
      if (const char* old = std::getenv(name)) before_[name] = old;
      ::unsetenv(name);
      names_.push_back(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : names_) {
      ::unsetenv(name.c_str());
      if (before_.contains(name)) ::setenv(name.c_str(), before_[name].c_str(), 1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST(LaunchEnvironment, NobodyMeansAlone) {
  const Environment environment({});
  EXPECT_EQ(read_launch().ranks, 1);
  EXPECT_EQ(join_world({})->size(), 1);
}

TEST(LaunchEnvironment, OurOwnLauncherComesFirst) {
  const Environment environment({{"SEGUE_RANK", "2"},
                                 {"SEGUE_RANKS", "3"},
                                 {"SEGUE_LOCAL_RANKS", "3"},
                                 {"SEGUE_RENDEZVOUS", "file:/somewhere"},
                                 {"SEGUE_SECRET", "of this run"},
                                 {"SEGUE_LISTENER", "5"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_STEP_NODELIST", "node1"},
                                 {"OMPI_COMM_WORLD_SIZE", "8"}});
  const Launch launch = read_launch();
  EXPECT_EQ(launch.by, Launch::By::kSegue);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 3);
  EXPECT_TRUE(launch.all_local);
  EXPECT_EQ(launch.rendezvous, "file:/somewhere");
  EXPECT_EQ(launch.secret, "of this run");
  EXPECT_EQ(launch.listener, 5);
}

TEST(LaunchEnvironment, Mpirun) {
  const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"SEGUE_SECRET_FILE", "/somewhere"}});
  const Launch launch = read_launch();
  EXPECT_EQ(launch.by, Launch::By::kMpirun);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.secret_file, "/somewhere");
}

TEST(LaunchEnvironment, StepsOfSlurmMeetOnTheFirstHost) {
  const std::map<std::string, std::string> step{
      {"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "99"},
      {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_STEP_NODELIST", "gpu[03-04]"},
      {"SLURM_JOB_ID", "1234"},      {"SLURM_STEP_ID", "1"}};
  const Environment environment(step);
  const Launch launch = read_launch();
  EXPECT_EQ(launch.by, Launch::By::kSlurm);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.rendezvous, "tcp:gpu03:" + std::to_string(15000 + (1234 * 31 + 1) % 17000));
}

TEST(LaunchEnvironment, ABatchScriptOfSlurmIsAlone) {
  const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(read_launch().ranks, 1);
}

TEST(LaunchEnvironment, FirstHostOfAList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[07-09,12],other"), "node07");
  EXPECT_EQ(first_host("node[3,5]-ib"), "node3-ib");
  EXPECT_EQ(first_host("a-b[1],c"), "a-b1");
}

TEST(LaunchEnvironment, ValuesThatCannotBeMeant) {
  const std::map<std::string, std::string> cases[] = {
      {{"SEGUE_RANK", "3"}, {"SEGUE_RANKS", "3"}},
      {{"SEGUE_RANK", "-1"}, {"SEGUE_RANKS", "3"}},
      {{"SEGUE_RANK", "0"}, {"SEGUE_RANKS", "many"}}};
  for (const auto& values : cases) {
    const Environment environment(values);
    const auto error = base::error_of([] { read_launch(); });
    EXPECT_EQ(error->code(), ErrorCode::kConfig);
  }
}

TEST(JoinWorld, MpiWithoutMpirunIsAConfigError) {
  const Environment environment({});
  CommConfig config;
  config.transport = Transport::kMpi;
  const auto error = base::error_of([&] { join_world(config); });
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "mpirun"));
}

TEST(JoinWorld, SelfDoesNotAskTheEnvironment) {
  const Environment environment({{"SEGUE_RANK", "0"}, {"SEGUE_RANKS", "4"}});
  CommConfig config;
  config.transport = Transport::kSelf;
  EXPECT_EQ(join_world(config)->size(), 1);
}

TEST(JoinWorld, NcclAloneGoesOnWithoutAGpu) {
  const Environment environment({});
  CommConfig config;
  config.transport = Transport::kNccl;
  const auto world = join_world(config);
  world->open("dense")->barrier().throw_if_failed();
}

TEST(JoinWorld, ConfigIsChecked) {
  CommConfig config;
  config.timeout_seconds = 0;
  EXPECT_EQ(base::error_of([&] { config.validate(); })->code(), ErrorCode::kConfig);
  config.timeout_seconds = 5;
  config.rendezvous = "somewhere";
  EXPECT_EQ(base::error_of([&] { config.validate(); })->code(), ErrorCode::kConfig);
}

TEST(JoinWorld, ConfigIsReadByName) {
  CommConfig config;
  base::ConfigSources sources;
  sources.file = "test.toml";
  sources.text = "transport = \"tcp\"\ntimeout_seconds = 12\nrendezvous = \"tcp:node1:4000\"\n";
  sources.use_environment = false;
  base::load_config(config, sources);
  EXPECT_EQ(config.transport, Transport::kTcp);
  EXPECT_EQ(config.timeout_seconds, 12);
  EXPECT_EQ(config.rendezvous, "tcp:node1:4000");
  config.validate();
}

}  // namespace
}  // namespace segue::comm
