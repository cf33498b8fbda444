#include "report/tensorboard.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"

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
  EXPECT_EQ(header, 12 + 24 + 4u);  // the version, at once
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

TEST(Tensorboard, WritersOfOneProcessDoNotShareAFile) {
  const std::string folder = base::temp_path("run");
  const TensorboardWriter first(folder), second(folder);
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(base::contains(first.path(), folder + "/events.out.tfevents."));
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
