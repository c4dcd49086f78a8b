#include "shared/context_parallel/partial_sum.h"

#include <algorithm>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::detail {
namespace {

// How many parts of a row wait before they are brought together. Without a sum one AttentionMerge takes the
// part that lies in the result and kMostMerged others. With a sum in f32 two wait: each merge reads and
// writes the whole sum, so that one merge for two parts halves that traffic, and no more than two temporaries
// are held.
constexpr std::size_t kMostWithoutSum = kMostMerged + 1, kMostBesideSum = 2;

std::int64_t end(Range range) { return range.begin + range.len; }
bool meet(Range a, Range b) { return a.begin < end(b) && b.begin < end(a); }

View cut(View view, std::size_t dim, std::int64_t begin, std::int64_t len) {
  if (is_absent(view)) return view;
  view.offset += begin * view.strides[dim];
  view.shape[dim] = len;
  return view;
}

}  // namespace

PartialSum::PartialSum(AttentionWriter& writer, std::string name, const Tensor& result,
                       const RowStatistic* lse, Of of, int parts, bool begun)
    : writer_(writer),
      name_(std::move(name)),
      result_(result),
      lse_(lse == nullptr ? RowStatistic{} : *lse),
      most_waiting_(!is_sum() && parts <= static_cast<int>(kMostWithoutSum) ? kMostWithoutSum
                                                                            : kMostBesideSum),
      only_one_(parts <= 1 && !begun) {
  if (is_sum()) sum_ = result_, sum_lse_ = lse_;
  for (const MaskGroup& entries : writer.context().mask_groups()) {
    for (const HeadGroup& heads : writer.head_groups()) {
      const Slab slab{of == Of::keys ? heads.kv : heads.q, {entries.first, entries.problem.batch}};
      Group group{slab, {}, {result.rows, begun && is_sum()}};
      if (begun && !is_sum()) group.waiting.push_back(of_result(result.all_rows(), slab));
      groups_.push_back(std::move(group));
    }
  }
}

// ---- parts ----

PartialSum::Group& PartialSum::group_of(const Slab& slab) {
  return *std::find_if(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return group.slab == slab; });
}

bool PartialSum::is_wide(const Part& part) const {
  return writer_.builder().dtype(part.values.buffer) != result_.dtype;
}

PartialSum::Part PartialSum::of_result(Range rows, const Slab& slab) const {
  return {rows, result_.view(rows, slab.heads, slab.batches),
          lse_.buffer < 0 ? View{} : lse_.view(rows, slab.heads, slab.batches), true};
}

PartialSum::Part PartialSum::of_sum(Range rows, const Slab& slab) {
  if (sum_.buffer < 0) {
    sum_ = writer_.temporary_like(name_ + " sum", DType::f32, result_);
    if (lse_.buffer >= 0)
      sum_lse_ = writer_.statistic(BufferKind::temporary, name_ + " sum's lse", lse_.rows, lse_.heads);
  }
  return {rows, sum_.view(rows, slab.heads, slab.batches),
          lse_.buffer < 0 ? View{} : sum_lse_.view(rows, slab.heads, slab.batches), is_sum()};
}

PartialSum::Part PartialSum::beside(DType dtype, Range rows, const Slab& slab) {
  const auto& [heads, batches] = slab;
  Tensor values{-1, dtype, batches.len, rows.len, heads.len, result_.dim, Order::bshd};
  const PartPool::Place place = writer_.part_pool().take(
      name_ + " part", dtype, {first_element(rows, slab, result_.dim), values.numel()});
  values.buffer = place.buffer, values.offset = place.offset;
  Part part{rows, values.view(), {}, false, {place}};
  if (lse_.buffer >= 0) place_lse(part, slab);
  return part;
}

void PartialSum::place_lse(Part& part, const Slab& slab) {
  RowStatistic lse{-1, slab.batches.len, slab.heads.len, part.rows.len};
  const std::int64_t first = first_element(part.rows, slab, 1);
  const PartPool::Place place =
      writer_.part_pool().take(name_ + " part's lse", DType::f32, {first, lse.numel()});
  lse.buffer = place.buffer;
  part.lse = lse.view();
  part.lse.offset += place.offset;
  part.places.push_back(place);
}

// Slab by slab, and of each slab row by row. A row begins where fused kernels can load it, at a multiple of
// 16 bytes.
std::int64_t PartialSum::first_element(Range rows, const Slab& slab, std::int64_t per_row) const {
  constexpr std::int64_t kWide = 16 / size_bytes(DType::f16);
  const auto row_of = [&](const Slab& of) {
    return align_up(of.heads.len * of.batches.len * per_row, kWide);
  };
  std::int64_t first = rows.begin * row_of(slab);
  for (const Group& group : groups_) {
    if (group.slab == slab) break;
    first += result_.rows * row_of(group.slab);
  }
  return first;
}

void PartialSum::hand_back(PartPool& pool, Group& group) {
  for (const Part& part : group.waiting) {
    for (const PartPool::Place& place : part.places) pool.give_back(place);
  }
  group.waiting.clear();
}

PartialSum::Place PartialSum::place(const FusedShape* shape, Range rows, const Slab& slab,
                                    const std::string& label) {
  Group& group = group_of(slab);
  if (depth(group, rows) >= most_waiting_) settle(group, label);
  const bool has_lse = lse_.buffer >= 0;
  Part part = of_result(rows, slab);
  if (shape == nullptr) {
    const bool fits = is_sum() ? group.summed.none(rows) : only_one_ && group.summed.none(rows);
    if (!fits || depth(group, rows) > 0) part = beside(DType::f32, rows, slab);
  } else if (is_sum() || has_home(group, rows) || is_left_to_merges(group, rows) ||
             refuse_operand(*shape, part.values, !has_lse)) {
    part = beside(shape->dtype, rows, slab);
  } else if (has_lse && refuse_lse(*shape, part.lse)) {
    place_lse(part, slab);
  }
  if (is_sum() && part.is_home) {
    group.summed.add(rows);
  } else {
    group.waiting.push_back(part);
  }
  return {part.values, part.lse};
}

void PartialSum::add(const Tensor& values, const RowStatistic* lse, const std::string& label) {
  for (Group& group : groups_) {
    const auto& [heads, batches] = group.slab;
    group.waiting.push_back({values.all_rows(), values.view(values.all_rows(), heads, batches),
                             lse == nullptr ? View{} : lse->view({0, lse->rows}, heads, batches)});
    if (is_sum()) settle(group, label);
  }
}

std::size_t PartialSum::depth(const Group& group, Range rows) const {
  std::size_t most = 0;
  for (const Part& first : group.waiting) {
    // Most parts meet where one of them begins, or the rows do.
    const std::int64_t row = std::max(first.rows.begin, rows.begin);
    if (!meet(first.rows, rows)) continue;
    const auto here = [&](const Part& part) { return meet(part.rows, {row, 1}); };
    most = std::max(
        most, static_cast<std::size_t>(std::count_if(group.waiting.begin(), group.waiting.end(), here)));
  }
  return most;
}

bool PartialSum::has_home(const Group& group, Range rows) const {
  return std::any_of(group.waiting.begin(), group.waiting.end(),
                     [&](const Part& part) { return part.is_home && meet(part.rows, rows); });
}

// What lay in the result went into the sum, but beside attention the merge that reads it may still run: a
// part that was written there would wait for it.
bool PartialSum::is_left_to_merges(const Group& group, Range rows) const {
  return writer_.merges_beside() && !group.summed.none(rows);
}

// All rows, in stretches that each part has or has not.
std::vector<Range> PartialSum::stretches(const Group& group) const {
  std::vector<std::int64_t> cuts = {0, result_.rows};
  const auto add = [&](Range rows) { cuts.insert(cuts.end(), {rows.begin, end(rows)}); };
  for (const Part& part : group.waiting) add(part.rows);
  for (const Range& gap : group.summed.missing()) add(gap);
  std::sort(cuts.begin(), cuts.end());
  std::vector<Range> result;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] < cuts[i + 1]) result.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  }
  return result;
}

std::vector<PartialSum::Part> PartialSum::parts_in(const Group& group, Range rows) {
  std::vector<Part> parts;
  for (const Part& part : group.waiting) {
    if (!meet(part.rows, rows)) continue;
    const std::int64_t begin = rows.begin - part.rows.begin;
    parts.push_back(
        {rows, cut(part.values, 1, begin, rows.len), cut(part.lse, 2, begin, rows.len), part.is_home});
  }
  return parts;
}

// ---- steps ----

void PartialSum::convert(const Part& from, const Part& to, const std::string& label) {
  using enum AttentionWriter::Of;
  if (from.values != to.values) writer_.convert(from.values, to.values, label, merge);
  if (!is_absent(to.lse) && from.lse != to.lse) writer_.convert(from.lse, to.lse, label, merge);
}

void PartialSum::merge(const Part& into, const std::vector<Part>& parts, const std::string& label) {
  for (std::size_t begin = 0; begin < parts.size(); begin += kMostMerged) {
    const std::size_t last = std::min(parts.size(), begin + kMostMerged);
    const DType dtype = writer_.builder().dtype(into.values.buffer);
    const bool accumulates =
        dtype == DType::f32 || dtype == writer_.builder().dtype(parts[begin].values.buffer);
    if (last == begin + 1 && is_absent(into.lse) && accumulates) {
      writer_.accumulate(parts[begin].values, into.values, label);
      continue;
    }
    AttentionMerge merge{parts[begin].values, parts[begin].lse, into.values, into.lse};
    for (std::size_t i = begin + 1; i < last; ++i) {
      merge.more.push_back(parts[i].values);
      if (!is_absent(into.lse)) merge.more_lse.push_back(parts[i].lse);
    }
    writer_.builder().add(writer_.merging(), std::move(merge), str("merge ", label));
  }
}

void PartialSum::settle(const std::string& label) {
  for (Group& group : groups_) settle(group, label);
}

void PartialSum::settle(Group& group, const std::string& label) {
  for (const Range& rows : stretches(group)) {
    std::vector<Part> parts = parts_in(group, rows);
    if (parts.empty()) continue;
    const Part sum = of_sum(rows, group.slab);
    if (group.summed.none(rows)) {
      convert(parts.front(), sum, label);
      parts.erase(parts.begin());
      group.summed.add(rows);
    }
    merge(sum, parts, label);
  }
  hand_back(writer_.part_pool(), group);
}

void PartialSum::finish(const std::string& label) {
  for (Group& group : groups_) {
    if (is_sum()) settle(group, label);
    for (const Range& rows : stretches(group)) finish(group, rows, label);
    hand_back(writer_.part_pool(), group);
  }
}

PartialSum::Part PartialSum::sinks(Range rows, const Slab& slab) const {
  const auto [values, lse] = writer_.sink_part(slab.batches.len, rows.len, slab.heads, result_.dim);
  return {rows, values, lse};
}

void PartialSum::finish(Group& group, Range rows, const std::string& label) {
  const Part result = of_result(rows, group.slab);
  const bool summed = group.summed.all(rows);
  std::vector<Part> last;  // what joins when all keys have
  if (has_sinks_) last.push_back(sinks(rows, group.slab));
  if (is_sum() && summed) return merge(result, last, label);
  std::vector<Part> narrow = parts_in(group, rows), wide;
  if (summed) wide.push_back(of_sum(rows, group.slab));
  // What lies in the result comes first.
  std::stable_sort(narrow.begin(), narrow.end(), [&](const Part& a, const Part& b) {
    return std::pair(is_wide(a), !a.is_home) < std::pair(is_wide(b), !b.is_home);
  });
  const auto first_wide =
      std::find_if(narrow.begin(), narrow.end(), [&](const Part& part) { return is_wide(part); });
  wide.insert(wide.end(), first_wide, narrow.end());
  narrow.erase(first_wide, narrow.end());
  if (narrow.empty() && wide.empty()) {
    writer_.fill(result.values, 0, label, AttentionWriter::Of::merge);
    if (!is_absent(result.lse)) writer_.fill(result.lse, kLseOfNothing, label, AttentionWriter::Of::merge);
    return merge(result, last, label);
  }
  // One step rounds to the result: what it cannot take is added in f32 before.
  if (narrow.size() + wide.size() + last.size() > kMostMerged + 1 || narrow.empty()) {
    std::vector<Part> rest(narrow.begin() + (narrow.empty() ? 0 : 1), narrow.end());
    if (!narrow.empty()) narrow.resize(1);
    if (wide.empty()) {
      wide.push_back(of_sum(rows, group.slab));
      convert(rest.back(), wide.front(), label);
      rest.pop_back();
    }
    rest.insert(rest.end(), wide.begin() + 1, wide.end());
    wide.resize(1);
    merge(wide.front(), rest, label);
  }
  std::vector<Part> others = std::move(wide);
  if (narrow.empty()) {
    merge(others.front(), last, label);
    convert(others.front(), result, label);
    return;
  }
  convert(narrow.front(), result, label);
  others.insert(others.begin(), narrow.begin() + 1, narrow.end());
  others.insert(others.end(), last.begin(), last.end());
  merge(result, others, label);
}

}  // namespace cp::detail
