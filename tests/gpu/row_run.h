// One kernel of rows with drawn views on the host and on the GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/text.h"
#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/values.h"

namespace cp::testing {

// Values are multiples of 1/64 below 1, so that sums of them, and of products of two and three of them, are
// exact in f64, in any order, and those of a pack in f32: 8 products below 2 of three have 22 bits.
class RowRun {
 public:
  // Draws views, in a property; in half of the runs all have one dtype.
  RowRun() : draws_(true) {
    if (coin()) dtype_ = any_floating();
  }
  // Views of this dtype, one behind the other; draws nothing.
  explicit RowRun(DType dtype) : draws_(false), dtype_(dtype) {}

  // Rows: also none, and more than the blocks of a kernel have; columns around the widths of packs and of the
  // lanes of a row.
  static std::int64_t any_rows() { return any_of<std::int64_t>({0, 1, 2, 5, 9, 33, 70}); }
  static std::int64_t any_columns() {
    return any_of<std::int64_t>({1, 3, 4, 7, 8, 16, 20, 24, 40, 64, 130, 136, 264, 1030, 1160});
  }

  DType any_dtype() const { return dtype_ ? *dtype_ : any_floating(); }

  View read(const Shape& shape, double scale = 1) { return floats(any_dtype(), shape, false, scale); }
  View written(const Shape& shape) { return floats(any_dtype(), shape, true, 1); }
  View statistic(const Shape& shape, double scale = 1) { return floats(DType::f32, shape, false, scale); }
  View written_statistic(const Shape& shape) { return floats(DType::f32, shape, true, 1); }
  View floats(DType dtype, const Shape& shape, bool is_written, double scale) {
    std::vector<double> values;
    View view = place(shape, is_written);
    for (const double value : small_fractions(extent_of(view), ++seed_)) values.push_back(value * scale);
    run_.add(dtype, values);
    return view;
  }
  // These values, one behind the other.
  View numbers_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
    run_.add(dtype, values);
    return dense_view(next_++, 0, shape);
  }
  View numbers(const Shape& shape, const std::vector<double>& values) {
    return numbers_of(DType::f32, shape, values);
  }
  // Integers from draw(). Elements between those of the view are some, too.
  template <class Draw>
  View integers(const Shape& shape, const Draw& draw) {
    View view = place(shape, false);
    std::vector<double> values;
    for (std::int64_t i = extent_of(view); i > 0; --i) values.push_back(static_cast<double>(draw()));
    run_.add(DType::i32, values);
    return view;
  }
  View written_integers(const Shape& shape) {
    View view = place(shape, true);
    run_.add(DType::i32, std::vector<double>(static_cast<std::size_t>(extent_of(view)), -7));
    return view;
  }
  // Writes the result, or adds it to what is there.
  void give(RowKernel& kernel, const View& view) {
    (coin() ? kernel.writes : kernel.updates).push_back(view);
  }

  void run(const RowKernel& kernel) { run_.run(kernel); }

  // What differs in a buffer's bits, what stands beside its view among them.
  std::string difference_in(const View& view) const { return difference(run_, view.buffer); }
  // Where a buffer's values differ by more than `slack`, and the rounding of both to its dtype; empty if none
  // does.
  std::string beyond(const View& view, double slack) const {
    const std::vector<double> host = run_.host_values(view.buffer), gpu = run_.gpu_values(view.buffer);
    const DType dtype = run_.plan().buffers[static_cast<std::size_t>(view.buffer)].dtype;
    for (std::size_t i = 0; i < host.size(); ++i) {
      const double bound = slack + 2 * half_ulp(dtype, std::abs(host[i]) + slack);
      if (host[i] == gpu[i] || std::abs(host[i] - gpu[i]) <= bound) continue;
      return str("element ", i, " is ", gpu[i], " on the GPU and ", host[i], " on the host, more than ",
                 bound, " apart");
    }
    return "";
  }
  const KernelRun& kernel_run() const { return run_; }

 private:
  // As any view, or as real rows lie: aligned, one behind the other or with gaps.
  View place(const Shape& shape, bool is_written) {
    if (!draws_) return dense_view(next_++, 0, shape);
    if (coin()) return any_view(next_++, shape, is_written);
    View view = dense_view(next_++, 8 * pick<std::int64_t>(0, 1), shape);
    if (shape.size() == 2) view.strides[0] = (shape[1] + 7) / 8 * 8 + 8 * pick<std::int64_t>(0, 1);
    return view;
  }

  const bool draws_;
  std::optional<DType> dtype_;  // of all views
  std::uint64_t seed_ = 0;
  BufferId next_ = 0;
  KernelRun run_;
};

}  // namespace cp::testing
