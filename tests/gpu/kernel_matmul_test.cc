// Matrix products against the host's: integers bit for bit, floats within the rounding of two orders of
// summation.
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::any_dtype;
using testing::any_of;
using testing::any_view;
using testing::coin;
using testing::difference;
using testing::extent_of;
using testing::KernelRun;

TEST(GpuMatMul, EqualsTheHosts) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const DType dtype = any_dtype();
    const bool wider = (dtype == DType::f16 || dtype == DType::bf16) && coin();
    const DType out_dtype = wider ? DType::f32 : dtype;
    const auto size = [] { return any_of<std::int64_t>({0, 1, 2, 5, 16, 17, 63, 64, 65, 130}); };
    const std::int64_t m = size(), k = size(), n = size();
    const auto products = any_of<std::int64_t>({0, 0, 1, 3});  // 0: one, in two dimensions
    const auto shape = [&](std::int64_t rows, std::int64_t columns) {
      return products == 0 ? Shape{rows, columns} : Shape{products, rows, columns};
    };
    const View a = any_view(0, shape(m, k), false), b = any_view(1, shape(k, n), false),
               out = any_view(2, shape(m, n), true);
    KernelRun run;
    const auto values = [&](const View& view, std::uint64_t seed) {
      return is_floating(dtype) ? testing::small_fractions(extent_of(view), seed)
                                : testing::small_integers(extent_of(view), seed, std::int64_t{1} << 28);
    };
    run.add(dtype, values(a, 1)), run.add(dtype, values(b, 2)), run.add(out_dtype, values(out, 3));
    run.run(MatMul{a, b, out, coin()});
    if (!is_floating(dtype)) {
      RC_ASSERT(difference(run, 2) == "");
      return;
    }
    // Sums of k products below 1 and of what was there: each order is within (k + 1) roundings of a sum of at
    // most k + 1; results are rounded once.
    const double terms = static_cast<double>(k) + 1;
    const double last = out_dtype == DType::f32 ? 0x1p-24 : out_dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const auto host = run.host_values(2), gpu = run.gpu_values(2);
    for (std::size_t i = 0; i < host.size(); ++i) {
      RC_ASSERT(std::abs(gpu[i] - host[i]) <=
                2 * terms * terms * 0x1p-24 + 2 * last * std::abs(host[i]) + 0x1p-25);
    }
  }));
}

}  // namespace
}  // namespace cp
