#include "attention/kernel_choice.h"

#include <optional>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_util.h"

namespace segue::attention {
namespace {

constexpr int kAmpere = 8, kHopper = 9, kBlackwell = 10;

TEST(AttentionKernel, AutoTakesTheFirstThatFits) {
  const auto chosen = [](int64_t dim, DType dtype, int major) {
    return choose_kernel(Kernel::kAuto, {dim, dim, dtype}, major);
  };
  EXPECT_EQ(chosen(128, DType::kBf16, kHopper), Kernel::kSm90);
  EXPECT_EQ(chosen(24, DType::kF16, kHopper), Kernel::kSm90);
  EXPECT_EQ(chosen(192, DType::kBf16, kHopper), Kernel::kSm90);
  EXPECT_EQ(chosen(100, DType::kBf16, kHopper), Kernel::kPlain);
  EXPECT_EQ(chosen(128, DType::kBf16, kAmpere), Kernel::kPortable);
  EXPECT_EQ(chosen(128, DType::kBf16, kBlackwell), Kernel::kPortable);
  EXPECT_EQ(chosen(24, DType::kBf16, kBlackwell), Kernel::kPlain);
  EXPECT_EQ(chosen(128, DType::kF32, kHopper), Kernel::kPlain);
  EXPECT_EQ(choose_kernel(Kernel::kAuto, {128, 64, DType::kBf16}, kHopper), Kernel::kPlain);
}

TEST(AttentionKernel, WhatWasAskedForIsTakenOrRefused) {
  const HeadShape head{128, 128, DType::kBf16};
  for (const Kernel kernel : kKernels) EXPECT_EQ(choose_kernel(kernel, head, kHopper), kernel);
  const std::optional<Error> error =
      base::error_of([&] { choose_kernel(Kernel::kSm90, head, kBlackwell); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "`sm90` needs a Hopper GPU"));
  EXPECT_TRUE(base::contains(error->what(), "heads of 128, bf16 on compute 10.x"));
}

TEST(AttentionKernel, HeadsThatNoGpuCanDo) {
  const std::optional<Error> error = base::error_of([] {
    choose_kernel(Kernel::kAuto, {264, 264, DType::kBf16}, kHopper);
  });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(base::contains(error->what(), "heads of at most 256 columns"));
}

TEST(AttentionKernel, TheCpuHasOneAndSaysSo) {
  const HeadShape head{64, 64, DType::kF32};
  EXPECT_EQ(describe_kernel(Kernel::kAuto, head, Device::cpu()), "heads of 64, f32: kernel cpu");
  const std::optional<Error> error =
      base::error_of([&] { describe_kernel(Kernel::kPlain, head, Device::cpu()); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "runs on a GPU only"));
}

TEST(AttentionKernel, NamesAreReadBack) {
  for (const Kernel kernel : kKernels) EXPECT_EQ(parse_kernel(to_string(kernel)), kernel);
  EXPECT_EQ(parse_kernel("auto"), Kernel::kAuto);
  EXPECT_TRUE(base::error_of([] { parse_kernel("sm80"); }).has_value());
}

TEST(AttentionKernel, AListOfThemByWidth) {
  EXPECT_EQ(list_kernels(DType::kBf16, kAmpere),
            "portable: 32 64 128 256; plain: the rest up to 256");
  EXPECT_EQ(list_kernels(DType::kF32, kHopper), "plain: all up to 256");
  EXPECT_EQ(list_kernels(DType::kBf16, kHopper),
            "sm90: multiples of 8 up to 256; plain: the rest up to 256");
}

}  // namespace
}  // namespace segue::attention
