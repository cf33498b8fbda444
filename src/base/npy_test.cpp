#include "base/npy.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

/// Magic, version 1.0 and a two-byte length before `header`.
std::string with_prefix(const std::string& header) {
  std::string text("\x93NUMPY\1\0", 8);
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  return text + header;
}

std::string small_file(const std::string& path) {
  const std::vector<int32_t> values = {1, -2, 3, -4, 5, -6};
  write_npy(path, "<i4", std::vector<int64_t>{2, 3}, std::as_bytes(std::span(values)));
  return read_file(path);
}

/// The code of the error that opening `content` gives; nullopt if it opens.
std::optional<ErrorCode> open_error(const std::string& content) {
  const std::string path = temp_path("npy");
  put_file(path, content);
  try {
    const NpyFile file(path);
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), path));
    return error.code();
  }
}

TEST(Npy, HeaderIsWhatNumpyWrites) {
  const auto golden = [](const std::string& dict) {
    return with_prefix(dict + std::string(118 - dict.size() - 1, ' ') + "\n");
  };
  EXPECT_EQ(npy_header("<i8", std::vector<int64_t>{3}),
            golden("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }"));
  EXPECT_EQ(npy_header("<f4", std::vector<int64_t>{2, 3}),
            golden("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  EXPECT_EQ(npy_header("|u1", {}),
            golden("{'descr': '|u1', 'fortran_order': False, 'shape': (), }"));
}

TEST(Npy, HeaderKeepsDataAligned) {
  std::vector<int64_t> shape;
  for (int dimensions = 0; dimensions < 30000; dimensions = dimensions * 3 / 2 + 1) {
    shape.assign(static_cast<size_t>(dimensions), 1);
    const std::string header = npy_header("<f8", shape);
    EXPECT_EQ(header.size() % 64, 0u);
    EXPECT_EQ(header[6], header.size() > 65535 + 10 ? 2 : 1);
    const std::string path = temp_path("npy");
    const double value = 1.5;
    write_npy(path, "<f8", shape, std::as_bytes(std::span(&value, 1)));
    const NpyFile file(path);
    EXPECT_EQ(file.shape(), shape);
    EXPECT_EQ(file.as<double>("<f8")[0], 1.5);
  }
}

TEST(Npy, RoundTrip) {
  const std::string path = temp_path("npy");
  small_file(path);
  const NpyFile file(path);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.descr(), "<i4");
  EXPECT_EQ(file.shape(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.elements(), 6);
  const std::span<const int32_t> values = file.as<int32_t>("<i4");
  EXPECT_EQ(std::vector<int32_t>(values.begin(), values.end()),
            (std::vector<int32_t>{1, -2, 3, -4, 5, -6}));
}

TEST(Npy, EmptyScalarAndMovedFrom) {
  const std::string path = temp_path("npy");
  write_npy(path, "<f4", std::vector<int64_t>{0, 5}, {});
  EXPECT_EQ(NpyFile(path).as<float>("<f4").size(), 0u);
  const double value = 2.5;
  write_npy(path, "<f8", {}, std::as_bytes(std::span(&value, 1)));
  NpyFile first(path);
  const NpyFile second(std::move(first));
  EXPECT_EQ(second.as<double>("<f8")[0], 2.5);
}

TEST(Npy, WrongTypeNamesBoth) {
  const std::string path = temp_path("npy");
  small_file(path);
  const NpyFile file(path);
  const auto error = error_of([&] { file.as<float>("<f4"); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "'<i4', expected '<f4'"));
}

TEST(Npy, MisalignedDataIsRefusedNotRead) {
  const std::string path = temp_path("npy");
  put_file(path, with_prefix("{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }") + "abcd");
  const NpyFile file(path);
  EXPECT_EQ(file.bytes().size(), 4u);
  const auto error = error_of([&] { file.as<int32_t>("<i4"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
}

TEST(Npy, WriterChecksItsArguments) {
  const std::string path = temp_path("npy");
  const std::vector<int32_t> values = {1, 2, 3};
  const auto write = [&](std::string_view descr, std::vector<int64_t> shape) {
    return error_of([&] { write_npy(path, descr, shape, std::as_bytes(std::span(values))); });
  };
  EXPECT_TRUE(write("<i4", {2}));
  EXPECT_TRUE(write("<i4", {-3}));
  EXPECT_TRUE(write(">i4", {3}));
  EXPECT_TRUE(write("O", {3}));
  EXPECT_FALSE(exists(path));
}

TEST(NpyDamage, HeadersThatLie) {
  const std::string data(24, 'x');
  const auto header = [&](const std::string& descr, const std::string& order,
                          const std::string& shape) {
    return with_prefix("{'descr': " + descr + ", 'fortran_order': " + order +
                       ", 'shape': " + shape + ", }\n") +
           data;
  };
  EXPECT_EQ(open_error(header("'<i4'", "False", "(2, 3)")), std::nullopt);
  EXPECT_EQ(open_error(header("\"<i4\"", "False", "(2, 3)")), std::nullopt);

  EXPECT_EQ(open_error(header("'>i4'", "False", "(2, 3)")), ErrorCode::kUnsupported);
  EXPECT_EQ(open_error(header("'|O'", "False", "(3,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(open_error(header("'|O8'", "False", "(3,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(open_error(header("'<i3'", "False", "(8,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(open_error(header("[('a', '<i4')]", "False", "(6,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(open_error(header("'<i4'", "True", "(2, 3)")), ErrorCode::kUnsupported);

  EXPECT_EQ(open_error(header("'<i4'", "False", "(2, 4)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "(2, 2)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "(-2, -3)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "(4611686018427387904, 4)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "(4611686018427387910,)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "(99999999999999999999,)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "False", "6")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4'", "Maybe", "(2, 3)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4", "False", "(2, 3)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(header("'<i4', 'descr': '<i4'", "False", "(2, 3)")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_prefix("{'descr': '<i4', 'shape': (2, 3)}") + data),
            ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_prefix("{}") + data), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_prefix("") + data), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(std::string("\x93NUMPY\x04\0", 8) + data), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12) + data),
            ErrorCode::kCorrupt);
  EXPECT_EQ(open_error("PK\3\4 not an array"), ErrorCode::kCorrupt);
}

TEST(NpyDamage, EveryTruncationAndTrailingGarbageIsNoticed) {
  const std::string whole = small_file(temp_path("whole"));
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_EQ(open_error(whole.substr(0, length)), ErrorCode::kCorrupt) << length;
  }
  EXPECT_EQ(open_error(whole + "x"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(whole), std::nullopt);
}

TEST(NpyDamage, FlippedHeaderBytesNeverCrash) {
  const std::string whole = small_file(temp_path("whole"));
  std::mt19937 random(42);
  for (int trial = 0; trial < 500; ++trial) {
    std::string damaged = whole;
    damaged[random() % 80] = static_cast<char>(random());
    try {
      put_file(temp_path("npy"), damaged);
      const NpyFile file(temp_path("npy"));
      EXPECT_EQ(file.bytes().size(), 24u);
    } catch (const Error&) {
      // refused: fine
    }
  }
}

TEST(NpyDamage, MissingFile) {
  const auto error = error_of([] { NpyFile file(temp_path("missing")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace segue::base
