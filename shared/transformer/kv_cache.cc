#include "shared/transformer/kv_cache.h"

#include <algorithm>

#include "shared/base/text.h"

namespace cp {

KvCache::KvCache(StepWriter& writer) : writer_(writer) {
  const StepContext& context = writer.context();
  for (int kind = 0; kind < static_cast<int>(context.attention.size()); ++kind) {
    const auto layers = std::count(context.kinds.begin(), context.kinds.end(), kind);
    OfKind& own = kinds_.emplace_back();
    const Mixer mixer = context.parts[idx(kind)].mixer;
    if (layers == 0 || mixer == Mixer::none) continue;
    if (const MixerFacts* facts = facts_of(mixer); facts != nullptr) {
      own.cache = facts->cache(context);
      const auto fixed = [&](const char* name, DType dtype, std::int64_t of_layer) {
        return of_layer == 0 ? -1 : writer.builder().inout(name_of(name, kind), dtype, layers * of_layer);
      };
      own.state = fixed("kv_cache/state", DType::f32, own.cache.state);
      own.convolved = fixed("kv_cache/convolved", writer.dtype(), cp::numel(own.cache.convolved));
      continue;
    }
    const auto buffer = [&](const char* name) {
      return writer.builder().inout(name_of(name, kind), context.workload.kv_dtype, layers * numel(kind));
    };
    if (context.model.latent) {
      own.latent = buffer("kv_cache/latent");
    } else {
      own.k = buffer("kv_cache/k"), own.v = buffer("kv_cache/v");
    }
  }
}

bool KvCache::converts() const { return writer_.context().workload.kv_dtype != writer_.dtype(); }

std::string KvCache::name_of(const char* name, int kind) const {
  return writer_.context().attention.size() == 1 ? name : str(name, " of kind ", kind);
}

std::int64_t KvCache::width() const {
  const StepContext& context = writer_.context();
  return context.model.latent ? context.model.latent->kv_row() : context.sizes.kv_width;
}

std::int64_t KvCache::new_rows(int kind) const {
  return std::min(writer_.context().new_rows, writer_.context().cache_rows[idx(kind)]);
}

std::int64_t KvCache::numel(int kind) const {
  const StepContext& context = writer_.context();
  return context.layout.micro_batch * context.cache_rows[idx(kind)] * width();
}

View KvCache::cached_rows(BufferId buffer, const LayerPlace& layer) const {
  const StepContext& context = writer_.context();
  const std::int64_t width = this->width(), rows = context.cache_rows[idx(layer.kind)],
                     added = new_rows(layer.kind);
  const Window window = in_stack(buffer, numel(layer.kind), layer.of_kind);
  return {buffer,
          window.offset + (rows - added) * width,
          {context.layout.micro_batch, added, width},
          {rows * width, width, 1},
          window.advance};
}

View KvCache::new_rows(BufferId buffer, const LayerPlace& layer, const char* name) {
  if (!converts()) return cached_rows(buffer, layer);
  const StepContext& context = writer_.context();
  const Shape shape = {context.layout.micro_batch, new_rows(layer.kind), width()};
  return writer_.working(name_of(str("new ", name).c_str(), layer.kind), writer_.dtype(), cp::numel(shape))
      .dense(0, shape);
}

View KvCache::state(const LayerPlace& layer) const {
  const OfKind& own = kinds_[idx(layer.kind)];
  return in_stack(own.state, own.cache.state, layer.of_kind).flat(0, own.cache.state);
}

View KvCache::convolved(const LayerPlace& layer) const {
  const OfKind& own = kinds_[idx(layer.kind)];
  return in_stack(own.convolved, cp::numel(own.cache.convolved), layer.of_kind).dense(0, own.cache.convolved);
}

void KvCache::store(const LayerPlace& layer) {
  if (!converts()) return;
  const OfKind& own = kinds_[idx(layer.kind)];
  if (own.latent >= 0) return writer_.copy(new_latent(layer), cached_rows(own.latent, layer), "store latent");
  writer_.copy(new_k(layer), cached_rows(own.k, layer), "store k");
  writer_.copy(new_v(layer), cached_rows(own.v, layer), "store v");
}

Window KvCache::all_rows(BufferId buffer, const LayerPlace& layer, const char* name) {
  const Window cached = in_stack(buffer, numel(layer.kind), layer.of_kind);
  if (!converts()) return cached;
  const std::int64_t all = numel(layer.kind);
  const Window wide = writer_.working(name_of(str("all ", name).c_str(), layer.kind), writer_.dtype(), all);
  writer_.copy(cached.flat(0, all), wide.flat(0, all), str("load ", name));
  return wide;
}

}  // namespace cp
