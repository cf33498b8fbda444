#include "tensor/tensor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"
#include "tensor/exec.h"
#include "tensor/host_array.h"
#include "tensor/jagged.h"
#include "tensor/peak_flops.h"

namespace segue {
namespace {

using base::contains;
using base::message_of;

std::vector<float> counting(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// ---- views -------------------------------------------------------------------------------------

TEST(TensorTest, ContiguousView) {
  std::vector<float> memory = counting(24);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {2, 3, 4});
  EXPECT_TRUE(t);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.elements(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_EQ(t.stride(0), 12);
  EXPECT_EQ(t.stride(2), 1);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.row<float>(1)[0], 12.0f);
  EXPECT_EQ(t.span<float>().size(), 24u);
  EXPECT_EQ(t.shape_string(), "f32[2, 3, 4]");
}

TEST(TensorTest, AbsentIsNotEmpty) {
  EXPECT_FALSE(Tensor());
  EXPECT_EQ(Tensor().elements(), 0);
  const Tensor empty(nullptr, DType::kI32, Device::cpu(), {0});
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_TRUE(empty.is_contiguous());
  EXPECT_TRUE(empty.narrow(0, 0, 0));
  EXPECT_EQ(empty.shape_string(), "i32[0]");
}

TEST(TensorTest, TypesHaveSizesAndNames) {
  EXPECT_EQ(size_of(DType::kF64), 8);
  EXPECT_EQ(size_of(DType::kI32), 4);
  EXPECT_EQ(size_of(DType::kBf16), 2);
  EXPECT_EQ(size_of(DType::kU8), 1);
  EXPECT_STREQ(to_string(DType::kF16), "f16");
  EXPECT_EQ(kDTypeOf<double>, DType::kF64);
  EXPECT_EQ(kDTypeOf<int64_t>, DType::kI64);
}

TEST(TensorTest, NarrowKeepsStrides) {
  std::vector<float> memory = counting(20);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {4, 5});
  const Tensor rows = t.rows(1, 2);
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(rows.row<float>(0)[0], 5.0f);
  EXPECT_EQ(rows.size(0), 2);

  const Tensor columns = t.columns(2, 3);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.elements(), 12);
  EXPECT_EQ(columns.row<float>(3)[0], 17.0f);
  EXPECT_EQ(columns.rows(3, 1).row<float>(0)[2], 19.0f);
  EXPECT_TRUE(columns.rows(3, 1).is_contiguous());  // one row has no row stride to speak of
  EXPECT_TRUE(t.rows(4, 0).is_contiguous());
}

TEST(TensorTest, SelectDropsTheFirstDimension) {
  std::vector<float> memory = counting(24);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {2, 3, 4});
  const Tensor second = t.select(1);
  EXPECT_EQ(second.shape_string(), "f32[3, 4]");
  EXPECT_EQ(second.row<float>(2)[3], 23.0f);
  EXPECT_EQ(second.select(1).ptr<float>()[0], 16.0f);
  EXPECT_EQ(t.columns(1, 2).select(1).row<float>(1)[0], 17.0f);
}

TEST(TensorTest, ColumnOfAMatrixIsStrided) {
  std::vector<float> memory = counting(12);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {3, 4});
  const Tensor column = t.column(2);
  EXPECT_EQ(column.shape_string(), "f32[3]");
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_EQ(column.row<float>(2)[0], 10.0f);
}

TEST(TensorTest, ReshapeOfContiguousTensors) {
  std::vector<float> memory = counting(12);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {3, 4});
  EXPECT_EQ(t.reshape({2, 6}).row<float>(1)[0], 6.0f);
  EXPECT_EQ(t.reshape({12}).rank, 1);
}

TEST(TensorTest, SplitColumnsKeepsTheRowStride) {
  std::vector<float> memory = counting(3 * 16);
  const Tensor packed(memory.data(), DType::kF32, Device::cpu(), {3, 16});
  const Tensor heads = packed.columns(4, 8).split_columns(2);  // columns 4 .. 11 as two heads of 4
  EXPECT_EQ(heads.shape_string(), "f32[3, 2, 4]");
  EXPECT_EQ(heads.stride(0), 16);
  EXPECT_EQ(heads.select(2).row<float>(1)[0], 2 * 16 + 8.0f);
}

TEST(TensorTest, ZeroRespectsStrides) {
  std::vector<float> memory(12, 1.0f);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {3, 4});
  zero(t.columns(1, 2));
  EXPECT_EQ(memory, (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}));
  zero(t);
  EXPECT_EQ(memory, std::vector<float>(12, 0.0f));
}

TEST(TensorTest, CopyOnTheHost) {
  std::vector<float> from = counting(6);
  std::vector<float> to(6);
  copy(Tensor(to.data(), DType::kF32, Device::cpu(), {6}),
       Tensor(from.data(), DType::kF32, Device::cpu(), {2, 3}));
  EXPECT_EQ(to, from);
}

TEST(TensorTest, DispatchPicksTheRealType) {
  EXPECT_EQ(dispatch_real(DType::kF32, [](auto zero) { return sizeof(zero); }), 4u);
  EXPECT_EQ(dispatch_real(DType::kF64, [](auto zero) { return sizeof(zero); }), 8u);
}

TEST(TensorDeathTest, MisuseIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<float> memory(12);
  const Tensor t(memory.data(), DType::kF32, Device::cpu(), {3, 4});
  EXPECT_DEATH((void)t.ptr<double>(), "another type");
  EXPECT_DEATH((void)t.rows(2, 2), "out of range");
  EXPECT_DEATH((void)t.columns(0, 2).reshape({6}), "strided");
  EXPECT_DEATH((void)t.split_columns(3), "wrong shape");
  EXPECT_DEATH((void)t.select(0).select(0), "rank one");
  const Tensor on_device(memory.data(), DType::kF32, Device::cuda(0), {3, 4});
  EXPECT_DEATH((void)on_device.ptr<float>(), "on the host");
}

TEST(JaggedTest, LengthsComeFromOffsets) {
  std::vector<float> memory(10);
  const std::array<int64_t, 4> offsets{0, 2, 2, 5};
  Jagged j;
  j.values = Tensor(memory.data(), DType::kF32, Device::cpu(), {5, 2});
  j.offsets = offsets;
  EXPECT_EQ(j.sequences(), 3);
  EXPECT_EQ(j.total_rows(), 5);
  EXPECT_EQ(j.length(0), 2);
  EXPECT_EQ(j.length(1), 0);
  EXPECT_EQ(j.length(2), 3);
}

// ---- memory ------------------------------------------------------------------------------------

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 256 == 0; }

TEST(BufferTest, IsZeroedAlignedAndCounted) {
  const int64_t before = Buffer::live_bytes(Purpose::kComm);
  {
    const Buffer buffer(Device::cpu(), 1000, Purpose::kComm);
    EXPECT_TRUE(is_aligned(buffer.data()));
    EXPECT_EQ(buffer.bytes(), 1000);
    EXPECT_EQ(buffer.purpose(), Purpose::kComm);
    const auto* bytes = static_cast<const char*>(buffer.data());
    EXPECT_EQ(std::count(bytes, bytes + 1000, '\0'), 1000);
    EXPECT_EQ(Buffer::live_bytes(Purpose::kComm), before + 1000);
    const Buffer other(Device::cpu(), 24, Purpose::kScratch);
    EXPECT_EQ(Buffer::live_bytes(Purpose::kComm), before + 1000);
  }
  EXPECT_EQ(Buffer::live_bytes(Purpose::kComm), before);
}

TEST(BufferTest, MovingKeepsTheAccount) {
  const int64_t before = Buffer::live_bytes(Purpose::kTable);
  Buffer a(Device::cpu(), 100, Purpose::kTable);
  void* const data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kTable), before + 100);
  Buffer c(Device::cpu(), 60, Purpose::kTable);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kTable), before + 160);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.bytes(), 100);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kTable), before + 100);
  c = Buffer();
  EXPECT_EQ(Buffer::live_bytes(Purpose::kTable), before);
}

TEST(BufferTest, NoBytesNeedNoMemory) {
  const Buffer buffer(Device::cpu(), 0, Purpose::kScratch);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_STREQ(to_string(Purpose::kOptimizer), "optimizer");
}

TEST(HostArrayTest, GrowsAndKeepsValues) {
  HostArray<int64_t> array;
  EXPECT_TRUE(array.empty());
  for (int64_t i = 0; i < 1000; ++i) array.push_back(i);
  EXPECT_EQ(array.size(), 1000);
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(array[i], i);

  const int64_t* memory = array.data();
  const int64_t live = Buffer::live_bytes(Purpose::kBatch);
  array.resize(10);
  array.resize(1000);
  EXPECT_EQ(array.data(), memory);  // memory is kept
  EXPECT_EQ(Buffer::live_bytes(Purpose::kBatch), live);
  EXPECT_EQ(array.tensor().shape_string(), "i64[1000]");

  const std::array<int64_t, 3> few{7, 8, 9};
  array.assign(few);
  EXPECT_EQ(array.size(), 3);
  EXPECT_EQ(array[2], 9);
  array.assign({});
  EXPECT_TRUE(array.empty());
}

TEST(HostArrayTest, MovedFromIsEmptyAndUsable) {
  HostArray<int32_t> a;
  a.push_back(5);
  HostArray<int32_t> b(std::move(a));
  EXPECT_EQ(b[0], 5);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move): this is the promise
  a.push_back(6);
  EXPECT_EQ(a[0], 6);
  b = std::move(a);
  EXPECT_EQ(b.size(), 1);
  EXPECT_EQ(b[0], 6);
}

TEST(ArenaTest, MarksGiveBackAndHighWaterStays) {
  Arena arena(Device::cpu(), 1 << 20);
  const Tensor first = arena.tensor(DType::kF32, {3});
  EXPECT_TRUE(is_aligned(first.data));
  EXPECT_EQ(arena.used(), 256);
  {
    const Arena::Mark mark(arena);
    const Tensor second = arena.tensor(DType::kF64, {100, 10});
    EXPECT_TRUE(is_aligned(second.data));
    EXPECT_EQ(arena.used(), 256 + 8192);
    {
      const Arena::Mark inner(arena);
      (void)arena.tensor(DType::kI32, {1});
    }
    EXPECT_EQ(arena.used(), 256 + 8192);
  }
  EXPECT_EQ(arena.used(), 256);
  EXPECT_EQ(arena.high_water(), 256 + 8192 + 256);
  EXPECT_EQ(arena.capacity(), 1 << 20);
  const Tensor again = arena.tensor(DType::kF32, {4});
  EXPECT_EQ(static_cast<char*>(again.data), static_cast<char*>(first.data) + 256);
}

TEST(ArenaTest, EmptyTensorsTakeNothing) {
  Arena arena(Device::cpu(), 4096);
  const Tensor empty = arena.tensor(DType::kF32, {0, 8});
  EXPECT_TRUE(empty);
  EXPECT_EQ(arena.used(), 0);
}

TEST(ArenaTest, AddressSpaceIsNotMemory) {
  Arena arena(Device::cpu(), int64_t{1} << 36);  // more than many machines have
  const Tensor t = arena.tensor(DType::kF32, {1000});
  zero(t);
  EXPECT_EQ(t.span<float>()[999], 0.0f);
}

TEST(ArenaTest, OutOfMemorySaysHowMuchAndWhatToDo) {
  Arena arena(Device::cpu(), 1024);
  (void)arena.tensor(DType::kF32, {64});
  const std::string text = message_of(ErrorCode::kOutOfMemory, [&] {
    (void)arena.tensor(DType::kF32, {4, 256});
  });
  EXPECT_TRUE(contains(text, "3328 bytes more")) << text;
  EXPECT_TRUE(contains(text, "256 of 1024 bytes used")) << text;
  EXPECT_TRUE(contains(text, "f32[4, 256]")) << text;
  EXPECT_TRUE(contains(text, "train.arena_gib")) << text;
  EXPECT_EQ(arena.used(), 256);  // nothing was taken
  (void)arena.tensor(DType::kF32, {192});
  EXPECT_EQ(arena.used(), 1024);
}

// ---- devices -----------------------------------------------------------------------------------

TEST(DeviceTest, NamesRoundTrip) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:3"), Device::cuda(3));
  EXPECT_EQ(to_string(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
}

TEST(DeviceTest, UnknownNamesAreRefused) {
  for (const char* name : {"", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999",
                           "cuda:99999999999999999999", "cuda 0", "cpu:0"}) {
    const std::string text =
        message_of(ErrorCode::kInvalidArgument, [&] { (void)parse_device(name); });
    EXPECT_TRUE(contains(text, "use cpu, cuda or cuda:N")) << text;
  }
}

TEST(DeviceTest, CpuIsAlwaysThere) {
  require_available(Device::cpu());
  EXPECT_EQ(describe(Device::cpu()), "cpu");
  const Stream stream(Device::cpu());
  EXPECT_EQ(stream.handle(), nullptr);
  stream.synchronize();
}

TEST(DeviceTest, PeaksAreKnownByTheNamesThatDriversGive) {
  EXPECT_EQ(stated_peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(stated_peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(stated_peak_flops("NVIDIA A100-SXM4-40GB"), 312e12);
  EXPECT_EQ(stated_peak_flops("NVIDIA GeForce RTX 4090"), 0);
  EXPECT_EQ(stated_peak_flops(""), 0);
}

TEST(DeviceTest, MissingGpuIsExplained) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
#if SEGUE_HAS_CUDA
  const char* const expected = "driver";
#else
  const char* const expected = "built without CUDA";
#endif
  const std::string text =
      message_of(ErrorCode::kUnsupported, [] { require_available(Device::cuda(0)); });
  EXPECT_TRUE(contains(text, expected)) << text;
  EXPECT_TRUE(contains(text, "--device cpu")) << text;
  message_of(ErrorCode::kUnsupported,
             [] { const Buffer b(Device::cuda(0), 8, Purpose::kScratch); });
  message_of(ErrorCode::kUnsupported, [] { const Stream s(Device::cuda(0)); });
  message_of(ErrorCode::kUnsupported, [] { (void)describe(Device::cuda(0)); });
}

TEST(ExecTest, PrecisionDecidesTypes) {
  Exec exec;
  EXPECT_EQ(exec.dtype(), DType::kF32);
  EXPECT_EQ(exec.with(Precision::kF64).dtype(), DType::kF64);
  const Exec rounded = exec.with(Precision::kBf16);
  EXPECT_EQ(rounded.dtype(), DType::kF32);  // on the CPU: float storage, rounded
  EXPECT_EQ(round_activation(rounded, 1.0f + 0x1p-10f), 1.0f);
  EXPECT_EQ(round_activation(exec, 1.0f + 0x1p-10f), 1.0f + 0x1p-10f);
  Exec on_gpu = rounded;
  on_gpu.device = Device::cuda(0);
  EXPECT_EQ(on_gpu.dtype(), DType::kBf16);
  EXPECT_EQ(on_gpu.parameter_dtype(), DType::kF32);
  require_cpu(exec, "an op");
  EXPECT_TRUE(contains(message_of(ErrorCode::kUnsupported, [&] { require_cpu(on_gpu, "an op"); }),
                       "an op has no CUDA kernel"));
}

class GpuTensorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuTensorTest, BytesSurviveATripToTheDevice) {
  const Device gpu = Device::cuda(0);
  const Stream stream(gpu);
  std::vector<float> sent = counting(1 << 16);
  std::vector<float> received(sent.size(), -1.0f);
  const int64_t before = Buffer::live_bytes(Purpose::kScratch);
  {
    const Buffer memory(gpu, static_cast<int64_t>(sent.size() * sizeof(float)), Purpose::kScratch);
    EXPECT_GT(Buffer::live_bytes(Purpose::kScratch), before);
    const auto n = static_cast<int64_t>(sent.size());
    const Tensor on_device(memory.data(), DType::kF32, gpu, {n});
    const Tensor back(received.data(), DType::kF32, Device::cpu(), {n});
    copy(back, on_device, &stream);
    stream.synchronize();
    EXPECT_EQ(received, std::vector<float>(sent.size(), 0.0f));  // zeroed before anyone sees it
    copy(on_device, Tensor(sent.data(), DType::kF32, Device::cpu(), {n}), &stream);
    copy(back, on_device, &stream);
    stream.synchronize();
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kScratch), before);
  EXPECT_NE(describe(gpu).find("GiB"), std::string::npos);
}

TEST_F(GpuTensorTest, ArenaHandsOutDeviceMemory) {
  Arena arena(Device::cuda(0), 1 << 20);
  const Tensor a = arena.tensor(DType::kBf16, {10, 10});
  const Tensor b = arena.tensor(DType::kBf16, {10, 10});
  EXPECT_EQ(a.device, Device::cuda(0));
  EXPECT_TRUE(is_aligned(b.data));
  EXPECT_NE(a.data, b.data);
}

}  // namespace
}  // namespace segue
