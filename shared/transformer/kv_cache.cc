#include "shared/transformer/kv_cache.h"

#include <algorithm>

#include "shared/base/text.h"

namespace cp {

KvCache::KvCache(StepWriter& writer)
    : writer_(writer), new_rows_(std::min(writer.context().new_rows, writer.context().cache_rows)) {
  const std::int64_t all = writer.context().layers * numel();
  k_ = writer.builder().inout("kv_cache/k", writer.context().workload.kv_dtype, all);
  v_ = writer.builder().inout("kv_cache/v", writer.context().workload.kv_dtype, all);
}

bool KvCache::converts() const { return writer_.context().workload.kv_dtype != writer_.dtype(); }

std::int64_t KvCache::numel() const {
  const StepContext& context = writer_.context();
  return context.layout.micro_batch * context.cache_rows * context.sizes.kv_width;
}

View KvCache::cached_rows(BufferId buffer, StackIndex layer) const {
  const StepContext& context = writer_.context();
  const std::int64_t width = context.sizes.kv_width, rows = context.cache_rows;
  const Window window = in_stack(buffer, numel(), layer);
  return {buffer,
          window.offset + (rows - new_rows_) * width,
          {context.layout.micro_batch, new_rows_, width},
          {rows * width, width, 1},
          window.advance};
}

View KvCache::new_rows(BufferId buffer, StackIndex layer, const char* name) {
  if (!converts()) return cached_rows(buffer, layer);
  const StepContext& context = writer_.context();
  const Shape shape = {context.layout.micro_batch, new_rows_, context.sizes.kv_width};
  return writer_.working(str("new ", name), writer_.dtype(), cp::numel(shape)).dense(0, shape);
}

void KvCache::store(StackIndex layer) {
  if (!converts()) return;
  writer_.copy(new_k(layer), cached_rows(k_, layer), "store k");
  writer_.copy(new_v(layer), cached_rows(v_, layer), "store v");
}

Window KvCache::all_rows(BufferId buffer, StackIndex layer, const char* name) {
  const Window cached = in_stack(buffer, numel(), layer);
  if (!converts()) return cached;
  const Window wide = writer_.working(str("all ", name), writer_.dtype(), numel());
  writer_.copy(cached.flat(0, numel()), wide.flat(0, numel()), str("load ", name));
  return wide;
}

}  // namespace cp
