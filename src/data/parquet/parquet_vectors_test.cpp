#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/parquet/parquet.h"

namespace segue::data {
namespace {

using base::contains;
using base::message_of;
using Number = VectorShape::Number;

struct Vectors {
  std::vector<int64_t> ids;
  std::vector<std::byte> numbers;
  std::vector<float> scales;
  bool operator==(const Vectors&) const = default;
};

Vectors made(const VectorShape& shape, int64_t rows) {
  Vectors v;
  for (int64_t i = 0; i < rows; ++i) {
    v.ids.push_back(i * 7 - 20);
    if (shape.scaled) v.scales.push_back(static_cast<float>(i) / 3);
  }
  v.numbers.resize(static_cast<size_t>(rows * shape.dim * shape.number_bytes()));
  for (size_t i = 0; i < v.numbers.size(); ++i)
    v.numbers[i] = static_cast<std::byte>(i * 37 + i / 251);
  return v;
}

void write(const std::string& path, const VectorShape& shape, const Vectors& v) {
  const auto writer = parquet_vectors().create(path, shape);
  writer->write({v.ids, v.numbers.data(), v.scales.data()});
  writer->finish();
}

Vectors read(const std::string& path, const VectorShape& shape) {
  const auto reader = parquet_vectors().open(path, shape);
  Vectors v;
  VectorBlock block;
  while (reader->read(block)) {
    const size_t bytes = block.ids.size() * static_cast<size_t>(shape.dim * shape.number_bytes());
    v.ids.insert(v.ids.end(), block.ids.begin(), block.ids.end());
    v.numbers.insert(v.numbers.end(), block.numbers, block.numbers + bytes);
    if (shape.scaled)
      v.scales.insert(v.scales.end(), block.scales, block.scales + block.ids.size());
  }
  EXPECT_EQ(reader->rows(), std::ssize(v.ids));
  return v;
}

TEST(ParquetVectors, ComeBackBitForBit) {
  const std::string path = base::temp_path("rows.parquet");
  for (const VectorShape& shape : {VectorShape{Number::kF32, 3, false},
                                   {Number::kU16, 5, false},
                                   {Number::kI8, 130, true},
                                   {Number::kF32, 0, false}}) {
    for (const int64_t rows : {0, 1, 5000}) {
      const Vectors v = made(shape, rows);
      write(path, shape, v);
      EXPECT_EQ(read(path, shape), v) << shape.dim << " x " << rows;
      const std::string bytes = base::read_file(path);
      write(path, shape, v);
      EXPECT_EQ(base::read_file(path), bytes);
    }
  }
}

TEST(ParquetVectors, OfAnotherShapeAreRefused) {
  const std::string path = base::temp_path("rows.parquet");
  const VectorShape shape{Number::kI8, 4, true};
  write(path, shape, made(shape, 10));
  for (const VectorShape& other :
       {VectorShape{Number::kF32, 4, true}, {Number::kI8, 4, false}, {Number::kI8, 0, false}}) {
    EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { read(path, other); }),
                         "other columns than a table of vectors"));
  }
  EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt,
                                  [&] {
                                    read(path, {Number::kI8, 2, true});
                                  }),
                       "a list has another length"));
  write(path, {Number::kU16, 4, true}, made({Number::kU16, 4, true}, 10));
  EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { read(path, shape); }),
                       "a number is too large for its type"));
}

TEST(ParquetVectors, DamageIsAnErrorNeverACrash) {
  const std::string path = base::temp_path("rows.parquet");
  const VectorShape shape{Number::kF32, 4, false};
  const Vectors v = made(shape, 60);
  write(path, shape, v);
  const std::string whole = base::read_file(path);
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    base::put_file(path, changed);
    try {
      (void)read(path,
                 shape);  // a byte that means nothing may pass: files have checksums of their own
    } catch (const Error&) {
    }
    base::put_file(path, whole.substr(0, i));
    EXPECT_THROW(read(path, shape), Error) << i;
  }
}

}  // namespace
}  // namespace segue::data
