#include "report/tensorboard.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "report/tensorboard_format.h"
#include "report/tensorboard_reader.h"

namespace segue::report {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}

TEST(Tensorboard, CrcKnownAnswers) {  // RFC 3720, appendix B.4, and the check value of CRC-32C
  EXPECT_EQ(detail::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(detail::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(detail::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(detail::crc32c(""), 0u);
}

// Bytes from Google's protobuf library with TensorBoard's own message definitions.
TEST(Tensorboard, RecordsEqualThoseOfProtobuf) {
  EXPECT_EQ(hex(detail::tf_record(detail::version_event(1700000000.25))),
            "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
  EXPECT_EQ(hex(detail::tf_record(detail::scalar_event(1700000000.5, 300, "eval/auc", 0.75f))),
            "1f00000000000000514b44180900002040fc54d94110ac022a110a0f0a086576616c2f617563150000403f"
            "67a1678"
            "c");
  EXPECT_EQ(hex(detail::tf_record(detail::restart_event(1700000000.5, 5'000'000'000))),
            "13000000000000000c91321b0900002040fc54d9411080e497d0123a0208015d594a09");
}

TEST(Tensorboard, FileIsWholeAfterFlush) {
  const std::string folder = base::temp_path("run");
  TensorboardWriter writer(folder);
  const size_t header = base::read_file(writer.path()).size();
  EXPECT_EQ(header, 12 + 24 + 4 + 12 + 15 + 4u);  // version and restart, at once
  writer.scalar("loss", 7, 0.5);
  writer.scalar("loss", 8, 0.25);
  writer.flush();
  const std::string bytes = base::read_file(writer.path());
  const size_t record = detail::tf_record(detail::scalar_event(1.0, 7, "loss", 0.5f)).size();
  EXPECT_EQ(bytes.size(), header + 2 * record);
  EXPECT_TRUE(base::contains(bytes.substr(0, header), "brain.Event:2"));
}

TEST(Tensorboard, DestructorWritesTheRest) {
  const std::string folder = base::temp_path("run");
  std::string path;
  {
    TensorboardWriter writer(folder);
    path = writer.path();
    writer.scalar("last words", 1, 1.0);
  }
  EXPECT_TRUE(base::contains(base::read_file(path), "last words"));
}

std::vector<std::string> points(const std::string& folder, int64_t from = 0) {
  std::vector<std::string> found;
  for (const ScalarPoint& p : read_tensorboard(folder, from)) {
    found.push_back(fmt::format("{} {} {}", p.tag, p.step, p.value));
  }
  return found;
}
using Points = std::vector<std::string>;

TEST(Tensorboard, FilesOfOneSecondAreReadInTheOrderTheyWereMadeIn) {
  const std::string folder = base::temp_path("run");
  std::string last;
  for (int64_t i = 0; i < 12; ++i) {
    TensorboardWriter writer(folder, i);
    EXPECT_GT(writer.path(), last);
    EXPECT_TRUE(base::contains(writer.path(), folder + "/events.out.tfevents."));
    last = writer.path();
  }
  // Of a host whose clock is ahead; and what is no name of ours decides nothing.
  base::put_file(folder + "/events.out.tfevents.4000000000.other.1", "");
  base::put_file(folder + "/events.out.tfevents.hello", "");
  EXPECT_TRUE(base::contains(TensorboardWriter(folder).path(), ".tfevents.4000000001."));
}

TEST(Tensorboard, ResumedRunsKeepEveryPointAndRepeatNone) {
  const std::string folder = base::temp_path("run");
  const auto live = [&](int64_t from, int64_t to, double value) {  // a process, then kill -9
    TensorboardWriter writer(folder, from);
    if (from == 4) writer.scalar("eval", 4, value);  // pending in the checkpoint of step 4
    for (int64_t step = from + 1; step <= to; ++step) writer.scalar("loss", step, value);
    writer.flush();
  };
  live(0, 3, 1);  // before the first checkpoint
  live(0, 6, 2);
  live(4, 5, 3);
  live(4, 4, 4);
  live(4, 6, 5);
  EXPECT_EQ(points(folder), (Points{"loss 1 2", "loss 2 2", "loss 3 2", "loss 4 2", "eval 4 3",
                                    "loss 5 5", "loss 6 5"}));
  EXPECT_EQ(points(folder, 5), (Points{"loss 5 5", "loss 6 5"}));
  live(6, 7, 6);
  EXPECT_EQ(points(folder, 5), (Points{"loss 5 5", "loss 6 5", "loss 7 6"}));
}

TEST(Tensorboard, TheReaderTakesWhatIsWhole) {
  const std::string folder = base::temp_path("run");
  std::string path;
  {
    TensorboardWriter writer(folder);
    for (int64_t step = 1; step <= 3; ++step) writer.scalar("loss", step, 1);
    path = writer.path();
  }
  const std::string whole = base::read_file(path);
  const Points all = points(folder);
  ASSERT_EQ(all.size(), 3u);
  const auto expect_prefix = [&](const std::string& bytes) {
    base::put_file(path, bytes);
    const Points found = points(folder);
    ASSERT_LE(found.size(), all.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin()));
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    expect_prefix(whole.substr(0, at));
    std::string damaged = whole;
    damaged[at] ^= static_cast<char>(1 + at % 255);
    expect_prefix(damaged);
  }
  // Sealed frames around what is no event: nothing is read from it, and the next record is.
  for (const std::string message : {"", "\xff", "\x2a\x7f", "\x2a\x02\x0a\x00", "\x03",
                                    "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    base::put_file(path, detail::tf_record(message) +
                             detail::tf_record(detail::scalar_event(1, 9, "loss", 0.5f)));
    EXPECT_EQ(points(folder), Points{"loss 9 0.5"});
  }
  EXPECT_TRUE(points(base::temp_path("none")).empty());
}

TEST(Tensorboard, FolderThatCannotBe) {
  const std::string path = base::temp_path("file");
  base::put_file(path, "x");
  const auto error = base::error_of([&] { TensorboardWriter writer(path + "/below"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(base::contains(error->what(), path));
}

}  // namespace
}  // namespace segue::report
