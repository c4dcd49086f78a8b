#include "shared/transformer/layer_loops.h"

#include <algorithm>
#include <functional>

#include "shared/base/index.h"

namespace cp {
namespace {

// Which layer of its bucket one is, and how many this has.
struct InBucket {
  std::int64_t position = 0, count = 1;
  bool operator==(const InBucket&) const = default;
};

// What makes the steps of two layers differ.
struct Traits {
  int kind = 0, home = 0, next_home = 0;
  InBucket of_parts, of_experts;
  bool recomputed = false;
  bool operator==(const Traits&) const = default;
};
struct Pattern {
  std::int64_t count = 0;
  std::vector<Traits> body;
};

// The least number b so that all entries are like those b places before them: that of "abababa" is 2.
template <class Alike>
std::int64_t least_period(std::span<const Traits> all, const Alike& alike) {
  const auto size = static_cast<std::int64_t>(all.size());
  std::int64_t period = 1;
  while (period < size && !std::equal(all.begin() + period, all.end(), all.begin(), alike)) ++period;
  return period;
}

// Whether two layers differ in nothing, or in what is recomputed alone.
bool are_alike(Traits a, const Traits& b) {
  a.recomputed = b.recomputed;
  return a == b;
}

// Cuts layers into segments, each a number of repetitions of one body, so that all bodies together have
// fewest layers: a plan, and what it takes to write, place and replay it, is as long as these. Appends the
// segments' lengths. For example "abababcabab" is "ab" three times, "c", and "ab" twice, with bodies of 5
// layers. Of as few the first segment is the longest.
void cut(std::span<const Traits> layers, std::vector<std::int64_t>& lengths) {
  const auto size = static_cast<std::int64_t>(layers.size());
  // How many layers from i on equal those from j on, one by one, for all i < j.
  std::vector<std::int32_t> alike(idx((size + 1) * (size + 1)));
  const auto from = [&](std::int64_t i, std::int64_t j) -> std::int32_t& {
    return alike[idx(i * (size + 1) + j)];
  };
  for (std::int64_t i = size - 1; i >= 0; --i) {
    for (std::int64_t j = size - 1; j > i; --j)
      from(i, j) = layers[idx(i)] == layers[idx(j)] ? from(i + 1, j + 1) + 1 : 0;
  }
  // Of the layers from i on, from the last one to the first: the fewest in bodies, and the first segment
  // then.
  std::vector<std::int64_t> fewest(idx(size + 1)), first(idx(size + 1));
  for (std::int64_t i = size - 1; i >= 0; --i) {
    fewest[idx(i)] = fewest[idx(i + 1)] + 1, first[idx(i)] = 1;
    for (std::int64_t period = 1; i + 2 * period <= size; ++period) {
      for (std::int64_t times = 2; times <= 1 + from(i, i + period) / period; ++times) {
        const std::int64_t length = times * period, bodies = period + fewest[idx(i + length)];
        if (bodies > fewest[idx(i)] || (bodies == fewest[idx(i)] && length <= first[idx(i)])) continue;
        fewest[idx(i)] = bodies, first[idx(i)] = length;
      }
    }
  }
  for (std::int64_t i = 0; i < size; i += first[idx(i)]) lengths.push_back(first[idx(i)]);
}

// The lengths of the segments of a stage, in order. Layers that repeat one pattern from the first to the last
// are a segment of whole patterns, and what is left; others are cut, so many at a time that the table above
// stays small: more than any model has. Chosen.
std::vector<std::int64_t> segments(std::span<const Traits> layers) {
  constexpr std::size_t kMostCut = 256;
  std::vector<std::int64_t> lengths;
  const std::int64_t size = std::ssize(layers), period = least_period(layers, are_alike);
  if (2 * period <= size) {
    lengths.push_back(size / period * period);
    layers = layers.subspan(idx(lengths.back()));
  }
  for (; !layers.empty(); layers = layers.subspan(std::min(layers.size(), kMostCut)))
    cut(layers.first(std::min(layers.size(), kMostCut)), lengths);
  return lengths;
}

// The bucket of the next of `all` layers that `counted` counts.
InBucket next_in_bucket(std::int64_t& counted, std::int64_t all, std::int64_t bucket) {
  const std::int64_t number = counted++, position = number % bucket;
  return {position, std::min(bucket, all - (number - position))};
}

std::vector<Pattern> patterns(const StageLayers& stage, const Recompute& recompute) {
  ByParts<std::int64_t> with, counted;
  for (const int kind : stage.kinds) ++with[stage.parts_of_kinds[idx(kind)]];
  const std::int64_t with_experts = count_of(with, Having::experts);
  std::int64_t experts = 0;
  std::vector<Traits> layers;
  for (const int kind : stage.kinds) {
    const auto layer = static_cast<std::int64_t>(layers.size());
    const LayerParts parts = stage.parts(layer);
    Traits traits{kind, stage.home(layer), stage.home(layer + 1), {}, {}, is_recomputed(layer, recompute)};
    if (stage.bucket > 1) {
      traits.of_parts = next_in_bucket(counted[parts], with[parts], stage.bucket);
      if (have(parts, Having::experts))
        traits.of_experts = next_in_bucket(experts, with_experts, stage.bucket);
    }
    layers.push_back(traits);
  }
  std::vector<Pattern> all;
  std::span<const Traits> rest = layers;
  for (const std::int64_t length : segments(layers)) {
    // Of those whose kinds repeat, what repeats as a whole; then what remains of them, and so on.
    std::span<const Traits> segment = rest.first(idx(length));
    while (!segment.empty()) {
      const std::int64_t period = least_period(segment, std::equal_to<>()),
                         count = static_cast<std::int64_t>(segment.size()) / period;
      all.push_back({count, {segment.begin(), segment.begin() + period}});
      segment = segment.subspan(idx(count * period));
    }
    rest = rest.subspan(idx(length));
  }
  return all;
}

// The same seen from the last iteration.
StackIndex reversed(StackIndex index, std::int64_t count) {
  return {index.first + (count - 1) * index.step, -index.step};
}

// Numbers the layers of a pass, among all and among those that are alike in something, pattern by pattern.
class Numbers {
 public:
  explicit Numbers(const StageLayers& layers)
      : parts_of_kinds_(layers.parts_of_kinds),
        before_(kOfKinds + layers.parts_of_kinds.size()),
        in_body_(before_.size()) {}

  LayerLoop number(const Pattern& pattern) {
    std::fill(in_body_.begin(), in_body_.end(), 0);
    for (const Traits& traits : pattern.body)
      for_each_label(traits, [&](std::size_t label) { ++in_body_[label]; });
    LayerLoop loop{pattern.count, {}};
    std::vector<std::int64_t> next = before_;
    for (const Traits& traits : pattern.body) {
      const LayerParts parts = parts_of_kinds_[idx(traits.kind)];
      const auto index = [&](std::size_t label) {
        return StackIndex{next[label], pattern.count > 1 ? in_body_[label] : 0};
      };
      LayerPlace& place = loop.body.emplace_back();
      place.layer = index(kAll), place.of_kind = index(kOfKinds + idx(traits.kind));
      place.of_parts = place.turn = index(of_parts(parts));
      place.of_mlp = place.mlp_turn = index(of_mlp(parts.mlp));
      place.input = index(kInputs + idx(traits.home));
      place.output = index(kInputs + idx(traits.next_home));
      if (traits.home == traits.next_home) ++place.output.first;
      for (const Having what : kHaving)
        place.kept[static_cast<std::size_t>(what)] = index(kept_with(what, traits.home));
      place.kind = traits.kind, place.parts = parts, place.recomputed = traits.recomputed;
      place.home = traits.home, place.next_home = traits.next_home;
      for_each_label(traits, [&](std::size_t label) { ++next[label]; });
    }
    for (std::size_t label = 0; label < before_.size(); ++label)
      before_[label] += pattern.count * in_body_[label];
    return loop;
  }

  // How many layers with these parts, and with this MLP, have been numbered.
  std::int64_t layers(LayerParts parts) const { return before_[of_parts(parts)]; }
  std::int64_t layers(Mlp mlp) const { return before_[of_mlp(mlp)]; }

 private:
  // Labels: all layers; those with the same parts; with the same MLP; at a home; that keep and have
  // something, at each home; of a kind.
  static constexpr std::size_t kAll = 0, kOfParts = 1, kOfMlps = kOfParts + kLayerParts.size(),
                               kInputs = kOfMlps + 3, kKept = kInputs + kMostHomes,
                               kOfKinds = kKept + kMostHomes * kHaving.size();
  static std::size_t of_parts(LayerParts parts) {
    return kOfParts + static_cast<std::size_t>(std::find(kLayerParts.begin(), kLayerParts.end(), parts) -
                                               kLayerParts.begin());
  }
  static std::size_t of_mlp(Mlp mlp) { return kOfMlps + static_cast<std::size_t>(mlp); }
  static std::size_t kept_with(Having what, int home) {
    return kKept + idx(home) * kHaving.size() + static_cast<std::size_t>(what);
  }

  template <class F>
  void for_each_label(const Traits& traits, const F& f) const {
    const LayerParts parts = parts_of_kinds_[idx(traits.kind)];
    f(kAll), f(of_parts(parts)), f(of_mlp(parts.mlp)), f(kInputs + idx(traits.home));
    f(kOfKinds + idx(traits.kind));
    if (traits.recomputed) return;
    for (const Having what : kHaving) {
      if (have(parts, what)) f(kept_with(what, traits.home));
    }
  }

  std::span<const LayerParts> parts_of_kinds_;
  std::vector<std::int64_t> before_, in_body_;  // layers with each label, before the pattern and in its body
};

std::vector<LayerLoop> loops_of(const StageLayers& layers, const Recompute& recompute, Numbers& numbers) {
  std::vector<LayerLoop> loops;
  for (const Pattern& pattern : patterns(layers, recompute)) loops.push_back(numbers.number(pattern));
  return loops;
}

}  // namespace

// Of every k layers the last one is computed again; what remains behind them keeps everything.
bool is_recomputed(std::int64_t layer, const Recompute& recompute) {
  if (recompute.kind == Recompute::Kind::every) return layer % recompute.every == recompute.every - 1;
  return recompute.kind == Recompute::Kind::full;
}

bool have(LayerParts parts, Having what) {
  switch (what) {
    case Having::anything:
      return true;
    case Having::mixer:
      return parts.mixer != Mixer::none;
    case Having::mlp:
      return parts.mlp != Mlp::none;
    case Having::dense:
      return parts.mlp == Mlp::dense;
    case Having::experts:
      return parts.mlp == Mlp::experts;
    case Having::both:
      return parts.mixer != Mixer::none && parts.mlp != Mlp::none;
    default:
      return what == having(parts.mixer);
  }
}

std::int64_t count_of(const ByParts<std::int64_t>& layers, Having what) {
  std::int64_t count = 0;
  for (const LayerParts parts : kLayerParts) count += have(parts, what) ? layers[parts] : 0;
  return count;
}

std::vector<LayerLoop> forward_loops(const StageLayers& layers, const Recompute& recompute) {
  Numbers numbers(layers);
  return loops_of(layers, recompute, numbers);
}

std::vector<LayerLoop> backward_loops(const StageLayers& layers, const Recompute& recompute) {
  Numbers numbers(layers);
  std::vector<LayerLoop> loops = loops_of(layers, recompute, numbers);
  std::reverse(loops.begin(), loops.end());
  for (LayerLoop& loop : loops) {
    std::reverse(loop.body.begin(), loop.body.end());
    for (LayerPlace& place : loop.body) {
      for (StackIndex* index :
           {&place.layer, &place.input, &place.output, &place.of_kind, &place.of_parts, &place.of_mlp})
        *index = reversed(*index, loop.count);
      for (StackIndex& index : place.kept) index = reversed(index, loop.count);
      place.turn = {numbers.layers(place.parts) - 1 - place.of_parts.first, -place.of_parts.step};
      place.mlp_turn = {numbers.layers(place.parts.mlp) - 1 - place.of_mlp.first, -place.of_mlp.step};
    }
  }
  return loops;
}

std::array<ByParts<std::int64_t>, kMostHomes> layers_that_keep(const StageLayers& layers,
                                                               const Recompute& recompute) {
  std::array<ByParts<std::int64_t>, kMostHomes> kept;
  for (std::int64_t layer = 0; layer < static_cast<std::int64_t>(layers.kinds.size()); ++layer) {
    if (!is_recomputed(layer, recompute)) ++kept[idx(layers.home(layer))][layers.parts(layer)];
  }
  return kept;
}

std::int64_t layers_that_keep(std::int64_t layers, const Recompute& recompute) {
  switch (recompute.kind) {
    case Recompute::Kind::full:
      return 0;
    case Recompute::Kind::every:
      return layers - layers / recompute.every;
    default:
      return layers;
  }
}

}  // namespace cp
