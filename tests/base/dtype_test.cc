// Names of element types and of reductions.
#include "shared/base/dtype.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

TEST(DTypeNames, AreReadAsTheyAreWritten) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64})
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
}

TEST(DTypeNames, OfPyTorchAreReadToo) {
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("half"), DType::f16);
  EXPECT_EQ(parse_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_dtype("torch.int64"), DType::i64);
}

TEST(DTypeNames, ErrorsListWhatThereIs) {
  const auto message = [](const char* text) { return testing::message_of([&] { parse_dtype(text); }); };
  EXPECT_THAT(message("torch.float64"),
              ::testing::HasSubstr("'torch.float64'; use one of f32, f16, bf16, i32, i64"));
  EXPECT_THAT(message("torch."), ::testing::HasSubstr("unknown dtype"));
}

}  // namespace
}  // namespace cp
