#include "shared/plan/host_place.h"

#include <utility>

#include <gtest/gtest.h>

#include "shared/plan/builder.h"

namespace cp {
namespace {

TEST(KernelPlace, IsWhereTheOperandsLie) {
  PlanBuilder builder(0, shape_target());
  const auto buffer = [&](const char* name) {
    return flat_view(builder.inout(name, DType::f32, 1000), 0, 1000);
  };
  const View x = buffer("x"), far = buffer("host/x"), other = buffer("host/y");
  const auto optimizer = [&](const View& parameters) {
    return Kernel{RowKernel{RowOperation::optimizer, {other}, {}, {parameters}}};
  };
  const Plan plan = std::move(builder).build({});
  EXPECT_EQ(place_of(Copy{x, far}, plan), KernelPlace::host_copy);
  EXPECT_EQ(place_of(Copy{far, x}, plan), KernelPlace::host_copy);
  EXPECT_EQ(place_of(Copy{far, other}, plan), KernelPlace::host);
  EXPECT_EQ(place_of(Fill{x, 0}, plan), KernelPlace::gpu);
  EXPECT_EQ(place_of(optimizer(far), plan), KernelPlace::host);
  EXPECT_EQ(place_of(optimizer(x), plan), KernelPlace::gpu);
}

}  // namespace
}  // namespace cp
