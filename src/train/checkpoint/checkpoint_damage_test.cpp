#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/disk_test_util.h"
#include "base/test_util.h"
#include "base/time.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::error_of;
using base::temp_path;

using Files = std::map<std::string, std::string>;

void put_files(const std::string& folder, const Files& files) {
  fs::remove_all(folder);
  base::make_folders(folder);
  for (const auto& [name, content] : files) base::put_file(folder + "/" + name, content);
}

/// One random damage; says what it did. `other` is a whole checkpoint of another step.
std::string damage(std::mt19937& random, Files& files, const Files& other) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto victim = std::next(files.begin(), static_cast<std::ptrdiff_t>(below(files.size())));
  std::string& content = victim->second;
  switch (below(8)) {
    case 0:
    case 1:
    case 2: {  // the likeliest damage has the most trials
      const size_t at = below(content.size());
      content[at] = static_cast<char>(content[at] ^ (1 << below(8)));
      return fmt::format("bit of byte {} of {}", at, victim->first);
    }
    case 3:
      content.resize(below(content.size()));
      return fmt::format("{} cut to {}", victim->first, content.size());
    case 4:
      content.append(1 + below(64), static_cast<char>(random()));
      return fmt::format("{} longer", victim->first);
    case 5:
      files.erase(victim);
      return "a file less";
    case 6:
      content = other.at(victim->first);
      return fmt::format("{} of another checkpoint", victim->first);
    default: {
      const size_t at = below(content.size());
      const size_t count = std::min(content.size() - at, 1 + below(512));
      const std::string before = content;
      std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(at), count, '\0');
      if (content == before) content[at] = 1;
      return fmt::format("{} zeros at byte {} of {}", count, at, victim->first);
    }
  }
}

TEST(CheckpointDamageTest, EveryDamageIsFound) {
  constexpr unsigned kSeed = 20261115;
  std::mt19937 random(kSeed);
  const std::string folder = temp_path("run");
  save_all(folder, {}, {7, 8}, 600);
  const Files whole = files_in(folder + "/step-8"), other = files_in(folder + "/step-7");
  ASSERT_GE(whole.size(), 5u);
  for (int trial = 0; trial < 400; ++trial) {
    Files files = whole;
    const std::string what = damage(random, files, other);
    ASSERT_NE(files, whole) << what;
    put_files(folder + "/step-8", files);
    try {
      const Checkpoint checkpoint(folder + "/step-8");
      ADD_FAILURE() << "seed " << kSeed << ", trial " << trial << ", not found: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << what << ": " << error.what();
      EXPECT_TRUE(contains(error.what(), folder + "/step-8")) << what;
    }
  }
  put_files(folder + "/step-8", whole);
  EXPECT_TRUE(is_whole(Checkpoint(folder + "/step-8")));
}

TEST(CheckpointDamageTest, EveryByteOfTheManifestCounts) {
  const std::string folder = temp_path("run");
  save_all(folder, {}, {7});
  const std::string text = base::read_file(folder + "/step-7/manifest.json");
  CheckpointManifest::parse(text, "m");
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 5, 7}) {  // 5 makes a small letter a capital one
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(CheckpointManifest::parse(changed, "m"), Error) << "byte " << i;
    }
    EXPECT_THROW(CheckpointManifest::parse(text.substr(0, i), "m"), Error) << "cut at " << i;
    EXPECT_THROW(CheckpointManifest::parse(text.substr(i + 1), "m"), Error) << "from " << i + 1;
  }
  EXPECT_THROW(CheckpointManifest::parse(text + "\n", "m"), Error);
}

TEST(CheckpointDamageTest, MessagesNameFileAndTrouble) {
  const std::string folder = temp_path("run");
  save_all(folder, {}, {8});
  const std::string path = folder + "/step-8";
  const Files whole = files_in(path);
  const auto message = [&](const Files& files) {
    put_files(path, files);
    return std::string(error_of([&] { Checkpoint checkpoint(path); })->what());
  };
  Files files = whole;
  files.erase("tables.safetensors");
  files["dense.safetensors"].back() ^= 1;
  files["metrics.safetensors"] += "x";
  files["notes.txt"] = "mine";
  const std::string all = message(files);
  EXPECT_TRUE(contains(all, "tables.safetensors is missing"));
  EXPECT_TRUE(contains(all, "dense.safetensors was changed: its checksum is wrong"));
  EXPECT_TRUE(contains(all, "metrics.safetensors has"));
  EXPECT_TRUE(contains(all, "notes.txt is not in the manifest"));

  files = whole;
  files.erase("manifest.json");
  EXPECT_TRUE(contains(message(files), "manifest.json is missing"));

  put_files(path, whole);
  fs::rename(path, folder + "/step-9");
  const std::optional<Error> moved = error_of([&] { Checkpoint checkpoint(folder + "/step-9/"); });
  EXPECT_TRUE(contains(moved->what(), "manifest.json is that of step 8"));
  fs::rename(folder + "/step-9", folder + "/best");  // a name of the user's own is fine
  EXPECT_TRUE(is_whole(Checkpoint(folder + "/best")));
  EXPECT_EQ(error_of([&] { Checkpoint checkpoint(path); })->code(), ErrorCode::kNotFound);
}

TEST(CheckpointDamageTest, PassesOverDamagedOnesToTheNewestWholeOne) {
  const std::string folder = temp_path("run");
  CheckpointConfig config;
  config.keep_last = 3;
  save_all(folder, config, {1, 2, 3});
  const auto spoil = [&](int64_t step, const char* name) {
    const std::string path = checkpoint_path(folder, step) + "/" + name;
    std::string content = base::read_file(path);
    content[content.size() / 2] ^= 4;
    base::put_file(path, content);
  };
  spoil(3, "tables.safetensors");
  testing::internal::CaptureStderr();
  NewestCheckpoint newest = newest_checkpoint(folder);
  EXPECT_TRUE(contains(testing::internal::GetCapturedStderr(), "step-3"));
  EXPECT_EQ(newest.checkpoint->step(), 2);
  EXPECT_TRUE(is_whole(*newest.checkpoint));
  ASSERT_EQ(newest.damaged.size(), 1u);
  EXPECT_TRUE(contains(newest.damaged[0], "tables.safetensors"));

  spoil(2, "manifest.json");
  spoil(1, "dense.safetensors");
  testing::internal::CaptureStderr();
  newest = newest_checkpoint(folder);
  testing::internal::GetCapturedStderr();
  EXPECT_FALSE(newest.checkpoint);
  EXPECT_EQ(newest.damaged.size(), 3u);
}

TEST(CheckpointDamageTest, ALaterFormatIsNotPassedOver) {
  const std::string folder = temp_path("run");
  save_all(folder, {}, {1, 2});
  const std::string path = folder + "/step-2/manifest.json";
  std::string text = base::read_file(path);
  const size_t at = text.find("\"version\": 1");
  text[at + 11] = '9';
  const size_t end = text.find(",\n  \"checksum\"");
  text = fmt::format("{},\n  \"checksum\": \"{:016x}\"\n}}\n", text.substr(0, end),
                     base::xxh64(text.substr(0, end)));
  base::put_file(path, text);
  EXPECT_EQ(error_of([&] { newest_checkpoint(folder); })->code(), ErrorCode::kUnsupported);
}

// ---- a disk that is full ----

/// Files of this process cannot grow beyond `bytes` while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);  // NOLINT: write() reports it then
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(CheckpointDamageTest, FailedSaveLeavesTheOldOnesAndTrainingGoesOn) {
  for (const double copy_gib : {8.0, 0.0}) {
    const std::string folder = temp_path(fmt::format("run{}", copy_gib));
    CheckpointConfig config;
    config.copy_gib = copy_gib;
    CheckpointWriter writer(folder, config);
    TestState state;
    const auto save = [&](int64_t step) {
      state.fill(step);
      writer.save(step, state.arrays(), test_json(step));
      return writer.wait();
    };
    ASSERT_TRUE(save(1).ok());
    ASSERT_TRUE(save(2).ok());
    const Files before = files_in(folder + "/step-2");
    int64_t failed = 0;
    for (const rlim_t limit : {0, 100, 400, 1000, 1500}) {
      const Status status = [&] {
        const FileSizeLimit guard(limit);
        return save(3);
      }();
      if (status.ok()) continue;
      ++failed;
      EXPECT_EQ(status.code(), ErrorCode::kIo);
      EXPECT_TRUE(contains(status.message(), "step 3 was not saved"));
      EXPECT_TRUE(contains(status.message(), "File too large"));
      EXPECT_EQ(writer.take_failure().message(), status.message());
      EXPECT_EQ(files_in(folder), (Files{{"step-1", "a folder"}, {"step-2", "a folder"}}));
      EXPECT_EQ(files_in(folder + "/step-2"), before);
    }
    EXPECT_EQ(failed, 4);
    EXPECT_TRUE(save(4).ok());
    EXPECT_TRUE(writer.take_failure().ok());
    EXPECT_TRUE(is_whole(*newest_checkpoint(folder).checkpoint));
  }
}

/// Saves until nothing fits; 0: all is as it should be. The disk has 256 KiB.
int save_on_full_disk(const std::string& folder) {
  base::set_num_threads(1);
  CheckpointWriter writer(folder + "/checkpoints", {});
  TestState state(2000);  // 64,000 bytes: two fit and are kept, then there is no room for a third
  Status status;
  for (int64_t step = 1; step <= 6 && status.ok(); ++step) {
    if (step == 3) base::put_file(folder + "/ballast", std::string(90000, 'x'));
    state.fill(step);
    writer.save(step, state.arrays(), test_json(step));
    status = writer.wait();
  }
  if (status.ok()) return 1;
  if (!contains(status.message(), "No space left on device")) return 2;
  if (steps_in(folder + "/checkpoints") != std::vector<int64_t>{1, 2}) return 3;
  if (!is_whole(Checkpoint(folder + "/checkpoints/step-1"), 2000)) return 4;
  if (!is_whole(Checkpoint(folder + "/checkpoints/step-2"), 2000)) return 5;
  fs::remove(folder + "/ballast");
  state.fill(9);
  writer.save(9, state.arrays(), test_json(9));
  if (!writer.wait().ok()) return 6;
  return is_whole(Checkpoint(folder + "/checkpoints/step-9"), 2000) ? 0 : 7;
}

int exit_code_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

TEST(CheckpointDamageTest, FullDisk) {
  const std::string folder = temp_path("disk");
  base::make_folders(folder);
  const int code = base::on_small_disk(folder, "256k", [&] { return save_on_full_disk(folder); });
  if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

/// What the largest file system that has no room for a save is, and that nothing was written there.
TEST(CheckpointDamageTest, ASaveThatWouldNotFitIsRefusedBeforeAByteIsWritten) {
  const std::string folder = temp_path("disk");
  base::make_folders(folder);
  const int code = base::on_small_disk(folder, "96k", [&] {
    base::set_num_threads(1);
    CheckpointWriter writer(folder, {});
    TestState state(2000);
    base::put_file(folder + "/ballast", std::string(20000, 'x'));
    const auto free = [&] { return base::disk_space(folder)->available; };
    const int64_t before = free();
    int64_t least = before;
    writer.save(1, state.arrays(), test_json(1));
    while (writer.busy()) least = std::min(least, free());
    const Status status = writer.wait();
    if (status.ok() || !contains(status.message(), "it needs")) return 1;
    if (least != before || files_in(folder).size() != 1) return 2;
    fs::remove(folder + "/ballast");
    writer.save(2, state.arrays(), test_json(2));
    return writer.wait().ok() ? 0 : 3;
  });
  if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

TEST(CheckpointDamageTest, ASaveThatIsNotReadyFailsWithTheReason) {
  const std::string folder = temp_path("run");
  CheckpointWriter writer(folder, {});
  TestState state;
  writer.save(1, state.arrays(), test_json(1), nullptr, Status(ErrorCode::kIo, "logs wait"));
  EXPECT_TRUE(contains(writer.wait().message(), "logs wait"));
  EXPECT_TRUE(files_in(folder).empty());
  writer.save(2, state.arrays(), test_json(2));
  EXPECT_TRUE(writer.wait().ok());
}

// ---- a process that is killed ----

/// Saves forever, beginning after the newest whole checkpoint.
[[noreturn]] void save_until_killed(const std::string& folder, int64_t table_rows) {
  base::set_num_threads(1);  // the threads of the parent are not here
  const NewestCheckpoint newest = newest_checkpoint(folder);
  int64_t step = newest.checkpoint ? newest.checkpoint->step() : 0;
  CheckpointWriter writer(folder, {}, table_rows * 8);
  TestState state(table_rows);
  for (;;) {
    state.fill(++step);
    writer.save(step, state.arrays(), test_json(step));
  }
}

void kill_and_look(int times, int64_t table_rows, int longest_ms) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::string folder = temp_path("run");
  const ThreadsScope no_pool(1);  // a child of a process with threads may not start any under TSan
  int64_t last_step = 0;
  for (int i = 0; i < times; ++i) {
    const pid_t child = ::fork();
    if (child == 0) save_until_killed(folder, table_rows);
    // The first one lives until there is something to lose, however busy the machine is.
    const base::Stopwatch watch;
    while (i == 0 && steps_in(folder).empty() && watch.seconds() < 20) ::usleep(1000);
    ::usleep(static_cast<useconds_t>(random() % static_cast<unsigned>(longest_ms * 1000)));
    ::kill(child, SIGKILL);
    EXPECT_EQ(exit_code_of(child), 200 + SIGKILL);

    const NewestCheckpoint newest = newest_checkpoint(folder);
    EXPECT_TRUE(newest.damaged.empty()) << "seed " << seed << ", kill " << i;
    if (!newest.checkpoint) {
      EXPECT_EQ(last_step, 0) << "seed " << seed << ", kill " << i << ": all are gone";
      continue;
    }
    EXPECT_TRUE(is_whole(*newest.checkpoint, table_rows)) << "seed " << seed << ", kill " << i;
    EXPECT_GE(newest.checkpoint->step(), last_step) << "seed " << seed << ", kill " << i;
    last_step = newest.checkpoint->step();
  }
  EXPECT_GT(last_step, 0);
}

TEST(CheckpointDamageTest, KilledWhileSaving) { kill_and_look(4, 500, 150); }

TEST(SlowCheckpointDamageTest, KilledWhileSaving) { kill_and_look(40, 20000, 500); }

}  // namespace
}  // namespace segue::train
