#include "data/log/byte_source.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/log/table_reader.h"

namespace segue::data {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class ByteSourceTest : public testing::Test {
 protected:
  ByteSourceTest() : path_(base::temp_path("bytes")) {
    for (int i = 0; i < 400'000; ++i) text_ += std::to_string(i * 7919 % 1000) + ",";
  }
  ~ByteSourceTest() override { std::filesystem::remove(path_); }

  /// What is in a file with these bytes, read in pieces of odd sizes.
  std::string read(const std::string& bytes) {
    base::write_file(path_, bytes);
    const ByteSource source = open_bytes(path_);
    std::string all;
    for (size_t size = 1;; size = size * 3 % 100'003 + 1) {
      std::string piece(size, '\0');
      piece.resize(source.read(piece.data(), size));
      all += piece;
      if (piece.size() < size) break;
    }
    EXPECT_EQ(source.consumed(), static_cast<int64_t>(bytes.size()));
    return all;
  }

  std::string path_, text_;
};

TEST_F(ByteSourceTest, PackedFilesReadAsTheirText) {
  for (const std::string& packed : {text_, gzip(text_), zstd(text_)}) {
    EXPECT_TRUE(read(packed) == text_) << "of " << packed.size() << " bytes";
  }
  EXPECT_TRUE(read(gzip(text_) + gzip("tail")) == text_ + "tail");
  EXPECT_TRUE(read(zstd(text_) + zstd("tail")) == text_ + "tail");
  EXPECT_EQ(read(gzip("")), "");
}

TEST_F(ByteSourceTest, DamageIsAnError) {
  for (const std::string& packed : {gzip(text_), zstd(text_)}) {
    const auto message = [&](const std::string& bytes) {
      return base::message_of(ErrorCode::kCorrupt, [&] { read(bytes); });
    };
    EXPECT_TRUE(base::contains(message(packed.substr(0, packed.size() / 2)), "the end is missing"));
    std::string flipped = packed;
    for (size_t i = packed.size() / 2; i < packed.size() / 2 + 64; ++i) flipped[i] ^= 0x55;
    EXPECT_TRUE(base::contains(message(flipped), "damaged")) << "of " << packed.size();
    EXPECT_TRUE(base::contains(message(packed + "garbage"), "damaged"));
  }
  EXPECT_TRUE(base::contains(base::message_of(ErrorCode::kUnsupported, [&] { read("PK\x03\x04"); }),
                             "zip"));
}

TEST_F(ByteSourceTest, TimesOfCsvMayBeDates) {
  const auto times = [&](const std::string& text) {
    base::write_file(path_, text);
    const auto reader = open_table(path_, {{"t", ColumnRole::kTime}}, {});
    RawBlock block;
    reader->read(block);
    return std::pair(block.columns[0].integers, block.columns[0].unit_seconds);
  };
  using Times = std::pair<std::vector<int64_t>, double>;
  EXPECT_EQ(times("t\n5\n7.9\n"), Times({5, 7}, 0));
  EXPECT_EQ(times(gzip("t\n1970-01-02\n1970-01-01T00:01Z\n")), Times({86400, 60}, 1));
  EXPECT_TRUE(
      base::contains(base::message_of(ErrorCode::kCorrupt, [&] { times("t\n1970-01-02\n5\n"); }),
                     "as in the rows before"));
  EXPECT_TRUE(base::contains(base::message_of(ErrorCode::kCorrupt, [&] { times("t\nsoon\n"); }),
                             "2026-01-31T23:59:59Z"));
}

}  // namespace
}  // namespace segue::data
