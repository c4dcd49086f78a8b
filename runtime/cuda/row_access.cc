#include "runtime/cuda/row_access.h"

#include <algorithm>
#include <limits>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {

RowLanes row_lanes(std::int64_t rows, std::int64_t packs, int packs_of_lane) {
  RowLanes lanes{rows, packs, 0};
  while (lanes.lanes() < kRowThreads && lanes.lanes() * packs_of_lane < packs) ++lanes.shift;
  return lanes;
}

void require_numbers(std::int64_t rows, std::int64_t parts) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows > 0 && parts > kMost / rows) {
    throw InvalidInput(str("a kernel over ", rows, " rows of ", parts, " parts: it numbers at most ", kMost,
                           " of them; split the rows over several steps"));
  }
}

int row_pack(const std::vector<const View*>& views, const std::vector<std::int64_t>& bounds,
             const CudaMemory& memory) {
  const bool narrow =
      std::ranges::all_of(views, [&](const View* view) { return size_bytes(memory.dtype(*view)) == 2; });
  for (const int pack : {8, 4}) {
    if (pack == 8 && !narrow) continue;
    const auto whole = [pack](std::int64_t elements) { return elements % pack == 0; };
    const bool fits = std::ranges::all_of(views, [&](const View* view) {
      return (view->strides.back() == 1 || view->shape.back() <= 1) && whole(view->shape.back()) &&
             std::all_of(view->strides.begin(), view->strides.end() - 1, whole);
    });
    if (fits && std::ranges::all_of(bounds, whole)) return pack;
  }
  return 1;
}

bool are_aligned(const std::vector<const View*>& views, int pack, const CudaMemory& memory,
                 std::int64_t iteration) {
  return std::ranges::all_of(views, [&](const View* view) {
    return is_aligned(memory.at(*view, iteration), pack * size_bytes(memory.dtype(*view)));
  });
}

}  // namespace cp::runtime
