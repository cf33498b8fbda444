#include "base/safetensors.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bf16.h"
#include "base/file.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

std::string with_length(const std::string& header) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header;
}

std::optional<ErrorCode> open_error(const std::string& content) {
  const std::string path = temp_path("safetensors");
  put_file(path, content);
  try {
    const SafetensorsFile file(path);
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), path));
    return error.code();
  }
}

/// Two tensors and metadata, 12 bytes of data.
std::string small_file(const std::string& path) {
  const float weights[2] = {1.5f, -2.0f};
  const int16_t ids[2] = {7, -8};
  const std::vector<SafetensorsItem> items = {{"ids", "I16", {2}, ids},
                                              {"layer.weight", "F32", {1, 2}, weights}};
  write_safetensors(path, items, {{"format", "segue"}});
  return read_file(path);
}

TEST(Safetensors, RoundTrip) {
  const std::string path = temp_path("safetensors");
  small_file(path);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.metadata().at("format"), "segue");
  const SafetensorsEntry& weight = file.get("layer.weight");
  EXPECT_EQ(weight.dtype, "F32");
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(weight.elements(), 2);
  EXPECT_EQ(weight.as<float>("F32")[1], -2.0f);
  EXPECT_EQ(weight.to_doubles(), (std::vector<double>{1.5, -2.0}));
  EXPECT_EQ(file.get("ids").to_ints(), (std::vector<int64_t>{7, -8}));
  EXPECT_EQ(file.find("missing"), nullptr);
}

TEST(Safetensors, HeaderKeepsTheOrderAndPadsToEightBytes) {
  const std::string whole = small_file(temp_path("safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(whole.size(), 8 + length + 12);
  const std::string header = whole.substr(8, length);
  EXPECT_EQ(header.substr(0, header.find_last_of('}') + 1),
            R"({"__metadata__":{"format":"segue"},)"
            R"("ids":{"dtype":"I16","shape":[2],"data_offsets":[8,12]},)"
            R"("layer.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})");
}

TEST(Safetensors, DataOfEveryTypeIsAligned) {
  const std::vector<double> zeros(3, 0.0);
  const std::vector<SafetensorsItem> items = {
      {"a", "U8", {3}, zeros.data()},   {"b", "F64", {1}, zeros.data()},
      {"c", "BF16", {3}, zeros.data()}, {"d", "I32", {1}, zeros.data()},
      {"e", "F64", {}, zeros.data()},   {"f", "F32", {0, 7}, nullptr}};
  const std::string path = temp_path("safetensors");
  write_safetensors(path, items);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.get("b").as<double>("F64")[0], 0.0);
  EXPECT_EQ(file.get("c").as<uint16_t>("BF16").size(), 3u);
  EXPECT_EQ(file.get("d").as<int32_t>("I32")[0], 0);
  EXPECT_EQ(file.get("e").as<double>("F64").size(), 1u);
  EXPECT_EQ(file.get("f").elements(), 0);
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, NoTensors) {
  const std::string path = temp_path("safetensors");
  write_safetensors(path, {});
  EXPECT_TRUE(SafetensorsFile(path).tensors().empty());
}

TEST(Safetensors, Conversions) {
  const bf16 wide[2] = {bf16(1.0f), bf16(-3.0f)};
  const f16 half[2] = {f16(0.5f), f16(65504.0f)};
  const uint8_t flags[2] = {1, 0};
  const int8_t small[2] = {-128, 127};
  const uint64_t large[2] = {5, UINT64_MAX};
  const std::vector<SafetensorsItem> items = {
      {"bf16", "BF16", {2}, wide}, {"f16", "F16", {2}, half},  {"bool", "BOOL", {2}, flags},
      {"i8", "I8", {2}, small},    {"u64", "U64", {2}, large}, {"f8", "F8_E4M3", {2}, flags}};
  const std::string path = temp_path("safetensors");
  write_safetensors(path, items);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.get("bf16").to_doubles(), (std::vector<double>{1.0, -3.0}));
  EXPECT_EQ(file.get("f16").to_doubles(), (std::vector<double>{0.5, 65504.0}));
  EXPECT_EQ(file.get("bool").to_ints(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(file.get("i8").to_ints(), (std::vector<int64_t>{-128, 127}));
  EXPECT_EQ(file.get("i8").to_doubles(), (std::vector<double>{-128, 127}));
  const auto code = [&](auto action) {
    const auto error = error_of(action);
    return error ? error->code() : ErrorCode::kInvalidArgument;
  };
  EXPECT_EQ(code([&] { file.get("u64").to_ints(); }), ErrorCode::kOutOfRange);
  EXPECT_EQ(code([&] { file.get("f16").to_ints(); }), ErrorCode::kUnsupported);
  EXPECT_EQ(code([&] { file.get("f8").to_doubles(); }), ErrorCode::kUnsupported);
  EXPECT_EQ(code([&] { file.get("f16").as<bf16>("BF16"); }), ErrorCode::kCorrupt);
}

TEST(Safetensors, UnalignedForeignDataIsCopiedNotMapped) {
  const std::string path = temp_path("safetensors");
  const float value = 2.5f;
  std::string data(5, '\x07');
  std::memcpy(data.data() + 1, &value, 4);
  put_file(path, with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})") +
                     data);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.get("b").to_doubles(), std::vector<double>{2.5});
  const auto error = error_of([&] { file.get("b").as<float>("F32"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(contains(error->what(), "not aligned"));
  EXPECT_TRUE(contains(error->what(), "`b`"));
}

TEST(Safetensors, MissingNameSuggestsTheNearest) {
  const std::string path = temp_path("safetensors");
  small_file(path);
  const SafetensorsFile file(path);
  const auto error = error_of([&] { file.get("layer.wieght"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(contains(error->what(), "did you mean `layer.weight`?"));
}

TEST(Safetensors, WriterChecksItsArguments) {
  const float value = 0.0f;
  const std::string path = temp_path("safetensors");
  const auto refuses = [&](std::vector<SafetensorsItem> items) {
    const auto error = error_of([&] { write_safetensors(path, items); });
    return error && error->code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses({{"a", "float", {1}, &value}}));
  EXPECT_TRUE(refuses({{"a", "F32", {-1}, &value}}));
  EXPECT_TRUE(refuses({{"a", "F32", {1}, &value}, {"a", "F32", {1}, &value}}));
  EXPECT_TRUE(refuses({{"__metadata__", "F32", {1}, &value}}));
  EXPECT_TRUE(refuses({{"\xff", "F32", {1}, &value}}));
  EXPECT_FALSE(exists(path));
}

TEST(SafetensorsDamage, HeadersThatLie) {
  const std::string data(8, 'x');
  const auto one = [&](const std::string& tensor) {
    return open_error(with_length("{\"a\":" + tensor + "}") + data);
  };
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), std::nullopt);
  for (
      const char* tensor : {
          R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})",
          R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})",
          R"({"shape":[2],"data_offsets":[0,8]})",
          R"({"dtype":"F32","data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[2]})",
          R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[18446744073709551618],"data_offsets":[0,8]})",
          R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})",
          R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,16]})",
          R"({"dtype":"F32","shape":[2],"data_offsets":[9223372036854775800,9223372036854775808]})",
          R"({"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]})",
          R"([])",
          R"([[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]])",
      }) {
    EXPECT_EQ(one(tensor), ErrorCode::kCorrupt) << tensor;
  }

  const std::string half = R"({"dtype":"I8","shape":[4],"data_offsets":[0,4]})";
  const std::string rest = R"({"dtype":"I8","shape":[4],"data_offsets":[4,8]})";
  const std::string overlap = R"({"dtype":"I8","shape":[6],"data_offsets":[2,8]})";
  const std::string gap = R"({"dtype":"I8","shape":[3],"data_offsets":[5,8]})";
  const auto two = [&](const std::string& second, const char* name = "b") {
    return open_error(with_length("{\"a\":" + half + ",\"" + name + "\":" + second + "}") + data);
  };
  EXPECT_EQ(two(rest), std::nullopt);
  EXPECT_EQ(two(overlap), ErrorCode::kCorrupt);
  EXPECT_EQ(two(gap), ErrorCode::kCorrupt);
  EXPECT_EQ(two(half), ErrorCode::kCorrupt);
  EXPECT_EQ(two(rest, "a"), ErrorCode::kCorrupt);
  EXPECT_EQ(two(R"({"key":1})", "__metadata__"), ErrorCode::kCorrupt);
  EXPECT_EQ(two("[]", "__metadata__"), ErrorCode::kCorrupt);

  EXPECT_EQ(open_error(with_length("")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length("[]")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length("{} {}")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length("{\"a\xff\":1}")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length(" {}")), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length("{}   ")), std::nullopt);
  EXPECT_EQ(open_error(std::string(8, '\xff') + "{}"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(with_length("{\"a\":" + std::string(100'000, '[') + "}")),
            ErrorCode::kCorrupt);
}

TEST(SafetensorsDamage, EveryTruncationAndTrailingGarbageIsNoticed) {
  const std::string whole = small_file(temp_path("whole"));
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_EQ(open_error(whole.substr(0, length)), ErrorCode::kCorrupt) << length;
  }
  EXPECT_EQ(open_error(whole + "x"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_error(whole), std::nullopt);
}

TEST(SafetensorsDamage, FlippedHeaderBytesNeverCrash) {
  const std::string whole = small_file(temp_path("whole"));
  std::mt19937 random(43);
  for (int trial = 0; trial < 500; ++trial) {
    std::string damaged = whole;
    damaged[random() % (whole.size() - 12)] = static_cast<char>(random());
    try {
      put_file(temp_path("safetensors"), damaged);
      const SafetensorsFile file(temp_path("safetensors"));
      for (const auto& [name, entry] : file.tensors()) entry.to_doubles();
    } catch (const Error&) {
      // refused: fine
    }
  }
}

}  // namespace
}  // namespace segue::base
