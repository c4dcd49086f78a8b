#include "sim/proof/ledger/attention_shadow.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/ledger/key_runs.h"

namespace cp::sim {
namespace {

// Sizes and strides of a view as [batch, head, row], and from one element of a row to the next.
struct RowView {
  std::int64_t batches, heads, seq_len, dim;
  std::int64_t batch_stride, head_stride, row_stride, dim_stride;
};
RowView row_view(const View& view) {
  const Shape &n = view.shape, &s = view.strides;
  if (n.size() == 3) return {n[0], n[1], n[2], 1, s[0], s[1], s[2], 1};
  return {n[0], n[2], n[1], n[3], s[0], s[2], s[1], s[3]};
}

// Calls visit(position among [batch, head, row], first granule) for each row.
template <class Visit>
void for_each_row(const RowView& rows, std::int64_t offset, std::int64_t granule, const Visit& visit) {
  std::size_t position = 0;
  for (std::int64_t b = 0; b < rows.batches; ++b) {
    for (std::int64_t h = 0; h < rows.heads; ++h) {
      for (std::int64_t s = 0; s < rows.seq_len; ++s) {
        visit(position++,
              idx((offset + b * rows.batch_stride + h * rows.head_stride + s * rows.row_stride) / granule));
      }
    }
  }
}

// Keys of the slice that local query `i` of it sees, counted from its first key.
KeyInterval keys_of(const MaskSlice& slice, std::int64_t i) {
  std::int64_t first = 0, last = slice.k_len - 1;
  if (slice.kind != MaskSlice::Kind::full) last = std::min(last, i + slice.diagonal);
  if (slice.kind == MaskSlice::Kind::window) first = std::max(first, i + slice.diagonal - slice.window + 1);
  return first <= last ? KeyInterval{first, last + 1} : KeyInterval{};
}

}  // namespace

// The global rows of the lanes of a step, each list once, and which lanes share their lists.
struct AttentionShadow::Lanes {
  using Pattern = std::vector<std::int64_t>;
  struct Group {
    std::size_t queries, keys;        // patterns
    std::vector<std::int64_t> lanes;  // global: batch * q_heads + head
  };
  std::vector<Pattern> patterns;
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;  // by local batch and head

  std::size_t pattern(Pattern rows) {
    const auto found = std::find(patterns.begin(), patterns.end(), rows);
    const auto number = static_cast<std::size_t>(found - patterns.begin());
    if (found == patterns.end()) patterns.push_back(std::move(rows));
    return number;
  }
};

template <class... Parts>
void AttentionShadow::find(const Parts&... parts) {
  world_.findings.add([&] { return str(names_.text(step_), ": ", parts...); });
}

AttentionShadow::Rows AttentionShadow::read(const View& view, Tensor tensor, std::string_view role) {
  const RowView shape = row_view(view);
  Rows rows{shape.batches, shape.heads, shape.seq_len, {}, {}};
  rows.tags.resize(idx(shape.batches * shape.heads * shape.seq_len));
  rows.numbers.resize(rows.tags.size(), -1);
  if (view.numel() == 0) return rows;
  const std::int64_t granule = world_.memory.granule(plan_, view.buffer);
  const std::span<const Tag> tags = std::as_const(world_.memory).tags(plan_, view.buffer);
  bool complained = false;
  for_each_row(shape, offset_at(view, iteration_), granule, [&](std::size_t position, std::size_t first) {
    const Tag& tag = tags[first];
    rows.tags[position] = tag;
    rows.numbers[position] = world_.space.row_number(tensor, tag);
    for (std::int64_t column = granule; column < shape.dim; column += granule) {
      const std::size_t at = first + idx(column / granule * shape.dim_stride);
      if (tags[at] == world_.space.later_in_row(tag, column)) continue;
      rows.numbers[position] = -1;
      if (!std::exchange(complained, true)) {
        find(role, ": a row begins with ", world_.space.text(tag), " and goes on with ",
             world_.space.text(tags[at]));
      }
    }
    // With sinks the lse of a row without keys is its head's sink.
    const bool is_sink = tensor == Tensor::lse && world_.space.row_number(Tensor::sinks, tag) >= 0;
    if (rows.numbers[position] < 0 && tag.id != nothing_in(tensor) && !is_sink &&
        !std::exchange(complained, true)) {
      find(role, " is ", world_.space.text(tag), ", which is no row of ", name(tensor));
    }
  });
  return rows;
}

void AttentionShadow::write(const View& view, Tensor tensor, const Rows& like, std::span<const Cells> cells,
                            bool accumulate, std::string_view role) {
  if (view.numel() == 0) return;
  const RowView shape = row_view(view);
  const std::int64_t granule = world_.memory.granule(plan_, view.buffer);
  const std::span<Tag> tags = world_.memory.tags(plan_, view.buffer);
  const std::uint64_t nothing = nothing_in(tensor);
  bool complained = false;
  for_each_row(shape, offset_at(view, iteration_), granule, [&](std::size_t position, std::size_t first) {
    const std::int64_t number = like.numbers[position];
    Tag tag{nothing, 0, 0};
    if (number >= 0)
      tag = {world_.space.id_of_row(tensor, number), cells[position].count, cells[position].print};
    const Tag& old = tags[first];
    if (accumulate && old.id != nothing) {
      if (number >= 0 && old.id != tag.id && !std::exchange(complained, true)) {
        find(role, ": adds ", world_.space.text(tag), " to ", world_.space.text(old));
      }
      tag = {old.id, old.cells + tag.cells, old.print + tag.print};
    }
    for (std::int64_t column = 0; column < shape.dim; column += granule) {
      tags[first + idx(column / granule * shape.dim_stride)] = world_.space.later_in_row(tag, column);
    }
  });
}

void AttentionShadow::require_alike(const Rows& a, const Rows& b, std::string_view role_a,
                                    std::string_view role_b) {
  const auto [in_a, in_b] = std::mismatch(a.numbers.begin(), a.numbers.end(), b.numbers.begin());
  if (in_a == a.numbers.end()) return;
  const auto at = static_cast<std::size_t>(in_a - a.numbers.begin());
  find(role_a, " is ", world_.space.text(a.tags[at]), " where ", role_b, " is ",
       world_.space.text(b.tags[at]));
}

void AttentionShadow::require_finished(const Rows& rows, Tensor tensor, std::string_view role) {
  for (std::size_t at = 0; at < rows.numbers.size(); ++at) {
    if (rows.numbers[at] < 0) continue;
    const std::int64_t seq_len = world_.space.seq_len(tensor), heads = world_.space.heads(tensor);
    const std::int64_t row = rows.numbers[at];
    const Cells all = world_.weights.all(tensor, row / seq_len / heads, row / seq_len % heads, row % seq_len);
    if (cells_of(rows.tags[at]) == all) continue;
    find(role, " is ", world_.space.text(rows.tags[at]), " made of ", rows.tags[at].cells, " of its ",
         all.count, " keys");
    return;
  }
}

AttentionShadow::Lanes AttentionShadow::lanes_of(const Rows& q, const Rows& k) {
  const std::int64_t group = k.heads > 0 ? q.heads / k.heads : 1;
  const std::int64_t q_len = world_.problem.q_len, kv_len = world_.problem.kv_len;
  bool complained = false;
  // The number of the lane that the rows belong to, and their global rows; a lane without a row is -1.
  const auto split = [&](const Rows& rows, std::int64_t b, std::int64_t h, std::int64_t seq_len,
                         std::string_view role) {
    Lanes::Pattern pattern(rows.numbers.begin() + static_cast<std::ptrdiff_t>(rows.at(b, h)),
                           rows.numbers.begin() + static_cast<std::ptrdiff_t>(rows.at(b, h)) + rows.seq_len);
    std::int64_t lane = -1;
    std::size_t first = 0;  // row of the lane
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] < 0) continue;
      if (lane < 0) lane = pattern[i] / seq_len, first = i;
      if (pattern[i] / seq_len == lane) {
        pattern[i] -= lane * seq_len;
        continue;
      }
      if (!std::exchange(complained, true)) {
        find(role, " is ", world_.space.text(rows.tags[rows.at(b, h) + first]), " and ",
             world_.space.text(rows.tags[rows.at(b, h) + i]), " in one head of the view");
      }
      pattern[i] = -1;
    }
    return std::pair(lane, std::move(pattern));
  };
  Lanes lanes;
  std::vector<std::pair<std::int64_t, std::size_t>> key_lanes;
  for (std::int64_t b = 0; b < k.batches; ++b) {
    for (std::int64_t h = 0; h < k.heads; ++h) {
      auto [lane, pattern] = split(k, b, h, kv_len, "k");
      key_lanes.emplace_back(lane, lanes.pattern(std::move(pattern)));
    }
  }
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> groups;
  for (std::int64_t b = 0; b < q.batches; ++b) {
    for (std::int64_t h = 0; h < q.heads; ++h) {
      auto [lane, pattern] = split(q, b, h, q_len, "q");
      const auto& [key_lane, keys] = key_lanes[idx(b * k.heads + h / group)];
      if (lane >= 0 && key_lane >= 0 && lane / world_.problem.heads_per_kv() != key_lane) {
        find("q of batch ", lane / world_.problem.q_heads, ", head ", lane % world_.problem.q_heads,
             " meets k of batch ", key_lane / world_.problem.kv_heads, ", head ",
             key_lane % world_.problem.kv_heads);
      }
      const std::size_t queries = lanes.pattern(std::move(pattern));
      const auto [found, added] = groups.try_emplace({queries, keys}, lanes.groups.size());
      if (added) lanes.groups.push_back({queries, keys, {}});
      Lanes::Group& mine = lanes.groups[found->second];
      if (lane >= 0) mine.lanes.push_back(lane);
      lanes.group_of.push_back(found->second);
    }
  }
  return lanes;
}

AttentionShadow::Work AttentionShadow::work_of(std::span<const MaskSlice> slices,
                                               std::span<const std::int64_t> queries,
                                               std::span<const std::int64_t> keys, std::int32_t lanes) {
  Work work;
  work.of_query.resize(queries.size());
  work.of_key.resize(keys.size() + 1);  // first the changes from key to key
  const KeyRuns runs(keys);
  std::vector<std::uint32_t> before(keys.size() + 1, 0);  // sums of the weights of the keys before
  for (std::size_t j = 0; j < keys.size(); ++j)
    before[j + 1] = before[j] + (keys[j] >= 0 ? world_.weights.key(keys[j]) : 0);
  bool complained = false;
  for (const MaskSlice& slice : slices) {
    for (std::int64_t i = 0; i < slice.q_len; ++i) {
      KeyInterval seen = keys_of(slice, i);
      if (seen.begin == seen.end) continue;
      seen.begin += slice.k_begin, seen.end += slice.k_begin;
      const std::int64_t query = queries[idx(slice.q_begin + i)];
      if (query < 0) {
        if (!std::exchange(complained, true))
          find("row ", slice.q_begin + i, " of q is padding, and sees keys");
        continue;
      }
      const auto count = static_cast<std::uint32_t>(seen.end - seen.begin);
      work.of_query[idx(slice.q_begin + i)] += {count, before[idx(seen.end)] - before[idx(seen.begin)]};
      const std::uint32_t weight = world_.weights.query(query);
      work.of_key[idx(seen.begin)] += {1, weight};
      work.of_key[idx(seen.end)] += {0U - 1U, 0U - weight};
      runs.for_each(seen.begin, seen.end, [&](const Run& run) {
        if (run.begin >= 0) {
          world_.book.enter(query, lanes, run, step_);
        } else if (!std::exchange(complained, true)) {
          find("query ", query, " sees keys of k that are padding");
        }
      });
    }
  }
  Cells sum;
  for (Cells& cells : work.of_key) cells = sum += cells;
  work.of_key.pop_back();
  return work;
}

std::vector<AttentionShadow::Work> AttentionShadow::all_work(const Lanes& lanes,
                                                             std::span<const MaskSlice> slices) {
  std::vector<Work> all;
  for (const Lanes::Group& group : lanes.groups) {
    std::vector<std::int64_t> numbers = group.lanes;
    std::sort(numbers.begin(), numbers.end());
    if (std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end()) find("q holds a head twice");
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    all.push_back(work_of(slices, lanes.patterns[group.queries], lanes.patterns[group.keys],
                          world_.book.lanes(std::move(numbers))));
  }
  return all;
}

template <class Op>
void AttentionShadow::require_scores(const Op& op, const Rows& q, const Rows& k) {
  const AttentionProblem& problem = world_.problem;
  if (op.softmax_scale != problem.scale()) {
    find("scales its scores by ", op.softmax_scale, ", where the problem's are scaled by ", problem.scale());
  }
  if (op.softcap != problem.softcap)
    find("caps its scores at ", op.softcap, ", where the problem's are capped at ", problem.softcap);
  const Dropout wanted = problem.drops() ? problem.dropout : Dropout{};
  const AttentionDropout& dropout = op.dropout;
  if (dropout.probability != wanted.probability || dropout.layer != wanted.layer) {
    find("drops weights with probability ", dropout.probability, " as layer ", dropout.layer,
         ", where the problem's are dropped with ", wanted.probability, " as layer ", wanted.layer);
  }
  if (dropout.probability == 0) return;
  const std::span<const Tag> seeds = std::as_const(world_.memory).tags(plan_, op.seed.buffer);
  if (seeds[idx(op.seed.offset)].id != world_.space.id(Tensor::seed, 0, 0, 0))
    find("seed is ", world_.space.text(seeds[idx(op.seed.offset)]));
  require_numbers(dropout.queries, q, problem.q_len, "q");
  require_numbers(dropout.keys, k, problem.kv_len, "k");
  for (std::int64_t b = 0; b < q.batches; ++b) {
    for (std::int64_t h = 0; h < q.heads; ++h) {
      const std::int64_t lane = (dropout.first_batch + b) * dropout.heads + dropout.first_head + h;
      for (std::int64_t i = 0; i < q.seq_len; ++i) {
        const std::int64_t number = q.numbers[q.at(b, h) + idx(i)];
        if (number < 0 || (dropout.heads == problem.q_heads && number / problem.q_len == lane)) continue;
        return find("dropout counts ", world_.space.text(q.tags[q.at(b, h) + idx(i)]), " as batch ",
                    dropout.first_batch + b, ", head ", dropout.first_head + h, " of ", dropout.heads);
      }
    }
  }
}

void AttentionShadow::require_numbers(const IndexSet& numbers, const Rows& rows, std::int64_t seq_len,
                                      std::string_view role) {
  for (std::size_t at = 0; at < rows.numbers.size(); ++at) {
    const auto row = static_cast<std::int64_t>(at) % rows.seq_len;
    if (rows.numbers[at] < 0 || to_global(numbers, row) == rows.numbers[at] % seq_len) continue;
    return find("dropout counts row ", row, " of ", role, " as ", to_global(numbers, row), ", and it is ",
                world_.space.text(rows.tags[at]));
  }
}

std::int64_t AttentionShadow::sink_at(BufferId buffer, std::int64_t offset) const {
  const std::span<const Tag> tags = std::as_const(world_.memory).tags(plan_, buffer);
  return world_.space.row_number(Tensor::sinks, tags[idx(offset / world_.memory.granule(plan_, buffer))]);
}

void AttentionShadow::run(const AttentionForward& op) {
  const Rows q = read(op.q, Tensor::q, "q"), k = read(op.k, Tensor::k, "k"), v = read(op.v, Tensor::v, "v");
  require_alike(v, k, "v", "k"), require_scores(op, q, k);
  const Lanes lanes = lanes_of(q, k);
  const std::vector<Work> work = all_work(lanes, op.slices);
  std::vector<Cells> cells;
  for (const std::size_t group : lanes.group_of) {
    cells.insert(cells.end(), work[group].of_query.begin(), work[group].of_query.end());
  }
  write(op.out, Tensor::out, q, cells, false, "out");
  write(op.lse, Tensor::lse, q, cells, false, "lse");
}

void AttentionShadow::run(const AttentionBackward& op) {
  const Rows q = read(op.q, Tensor::q, "q"), k = read(op.k, Tensor::k, "k"), v = read(op.v, Tensor::v, "v");
  // A fused one makes delta of out.
  const bool fused = op.engine == AttentionEngine::fused;
  const Tensor given = fused ? Tensor::out : Tensor::delta;
  const Rows dout = read(op.dout, Tensor::dout, "dout"), lse = read(op.lse, Tensor::lse, "lse"),
             delta = read(fused ? op.out : op.delta, given, name(given));
  require_alike(v, k, "v", "k"), require_scores(op, q, k);
  require_alike(dout, q, "dout", "q");
  require_alike(lse, q, "lse", "q");
  require_alike(delta, q, name(given), "q");
  require_finished(lse, Tensor::lse, "lse");
  require_finished(delta, given, name(given));
  const Lanes lanes = lanes_of(q, k);
  const std::vector<Work> work = all_work(lanes, op.slices);
  std::vector<Cells> of_queries, of_keys(k.numbers.size());
  for (std::int64_t b = 0; b < q.batches; ++b) {
    for (std::int64_t h = 0; h < q.heads; ++h) {
      const std::size_t group = lanes.group_of[idx(b * q.heads + h)];
      of_queries.insert(of_queries.end(), work[group].of_query.begin(), work[group].of_query.end());
      const auto first = std::find_if(q.numbers.begin() + static_cast<std::ptrdiff_t>(q.at(b, h)),
                                      q.numbers.begin() + static_cast<std::ptrdiff_t>(q.at(b, h)) + q.seq_len,
                                      [](std::int64_t number) { return number >= 0; });
      if (first == q.numbers.begin() + static_cast<std::ptrdiff_t>(q.at(b, h)) + q.seq_len) continue;
      const std::uint32_t weight =
          world_.weights.head(*first / world_.problem.q_len % world_.problem.q_heads);
      const std::size_t keys = k.at(b, h / (q.heads / k.heads));
      for (std::size_t j = 0; j < work[group].of_key.size(); ++j) {
        const Cells& cells = work[group].of_key[j];
        of_keys[keys + j] += {cells.count, cells.print * weight};
      }
    }
  }
  if (!is_absent(op.dq)) write(op.dq, Tensor::dq, q, of_queries, op.accumulate_dq, "dq");
  if (!is_absent(op.dk)) write(op.dk, Tensor::dk, k, of_keys, op.accumulate_dkv, "dk");
  if (!is_absent(op.dv)) write(op.dv, Tensor::dv, k, of_keys, op.accumulate_dkv, "dv");
}

void AttentionShadow::run(const AttentionDelta& op) {
  const Rows out = read(op.out, Tensor::out, "out"), dout = read(op.dout, Tensor::dout, "dout");
  require_alike(dout, out, "dout", "out");
  require_finished(out, Tensor::out, "out");
  std::vector<Cells> cells;
  for (const Tag& tag : out.tags) cells.push_back(cells_of(tag));
  write(op.delta, Tensor::delta, out, cells, false, "delta");
}

void AttentionShadow::run(const AttentionSinkGradient& op) {
  const Rows out = read(op.out, Tensor::out, "out"), dout = read(op.dout, Tensor::dout, "dout"),
             lse = read(op.lse, Tensor::lse, "lse");
  require_alike(dout, out, "dout", "out");
  require_alike(lse, out, "lse", "out");
  require_finished(out, Tensor::out, "out");
  require_finished(lse, Tensor::lse, "lse");
  const std::span<Tag> tags = world_.memory.tags(plan_, op.dsinks.buffer);
  const std::int64_t heads = world_.problem.q_heads, q_len = world_.problem.q_len;
  for (std::int64_t h = 0; h < out.heads; ++h) {
    const std::int64_t sink = sink_at(op.sinks.buffer, op.sinks.offset + h * op.sinks.strides[0]);
    Cells cells;
    for (std::int64_t b = 0; b < out.batches; ++b) {
      for (std::int64_t i = 0; i < out.seq_len; ++i) {
        const std::int64_t number = out.numbers[out.at(b, h) + idx(i)];
        if (number < 0) continue;
        cells += world_.weights.of_dsink(number % q_len);
        if (number / q_len % heads != sink)
          return find("dsinks of head ", sink, " from ", world_.space.text(out.tags[out.at(b, h) + idx(i)]));
      }
    }
    const std::int64_t at = op.dsinks.offset + h * op.dsinks.strides[0];
    if (sink < 0) return find("sinks is none at head ", h, " of the step");
    tags[idx(at / world_.memory.granule(plan_, op.dsinks.buffer))] = {
        world_.space.id(Tensor::dsinks, 0, sink, 0), cells.count, cells.print};
  }
}

// Of zeros and of the sinks of the rows' heads.
void AttentionShadow::join_sinks(const AttentionMerge& op, const View& values, const View& sinks) {
  const Rows out = read(op.out, Tensor::out, "out"), lse = read(op.lse, Tensor::lse, "lse"),
             in = read(values, Tensor::out, "values of sinks");
  require_alike(lse, out, "lse", "out");
  std::vector<Cells> cells(out.tags.size());
  bool complained = false;
  for (std::int64_t b = 0; b < out.batches; ++b) {
    for (std::int64_t h = 0; h < out.heads; ++h) {
      for (std::int64_t i = 0; i < out.seq_len; ++i) {
        const std::size_t at = out.at(b, h) + idx(i);
        cells[at] = CellWeights::sink();
        const std::int64_t sink = sink_at(
            sinks.buffer, sinks.offset + b * sinks.strides[0] + h * sinks.strides[1] + i * sinks.strides[2]);
        const std::int64_t number = out.numbers[at];
        const bool right = number < 0 || number / world_.problem.q_len % world_.problem.q_heads == sink;
        if ((right && in.tags[at].id == kZeros) || std::exchange(complained, true)) continue;
        find("joins the sink of head ", sink, " with ", world_.space.text(in.tags[at]), " to ",
             world_.space.text(out.tags[at]));
      }
    }
  }
  write(op.out, Tensor::out, out, cells, true, "out");
  write(op.lse, Tensor::lse, out, cells, true, "lse");
  // Of rows that no key has reached.
  const std::span<Tag> tags = world_.memory.tags(plan_, op.lse.buffer);
  const std::int64_t granule = world_.memory.granule(plan_, op.lse.buffer);
  std::size_t at = 0;
  for_each_row(row_view(op.lse), offset_at(op.lse, iteration_), granule, [&](std::size_t, std::size_t first) {
    const auto h = static_cast<std::int64_t>(at) / out.seq_len % out.heads;
    if (world_.space.row_number(Tensor::sinks, tags[first]) >= 0 && !std::exchange(complained, true))
      find("joins a sink to ", world_.space.text(tags[first]), ", which is one already");
    if (out.numbers[at++] < 0 && tags[first].id == kMinusInfinity)
      tags[first] = {
          world_.space.id(Tensor::sinks, 0, sink_at(sinks.buffer, sinks.offset + h * sinks.strides[1]), 0), 0,
          0};
  });
}

void AttentionShadow::run(const AttentionMerge& op) {
  const auto take = [&](const View& in, const View& in_lse, const std::string& role) {
    const bool is_sink = in_lse.numel() > 0 && sink_at(in_lse.buffer, in_lse.offset) >= 0;
    is_sink ? join_sinks(op, in, in_lse) : merge(op, in, in_lse, role);
  };
  take(op.in, op.in_lse, "in");
  for (std::size_t i = 0; i < op.more.size(); ++i) take(op.more[i], op.more_lse[i], "more");
}

void AttentionShadow::merge(const AttentionMerge& op, const View& in_view, const View& in_lse_view,
                            const std::string& role) {
  const Rows in = read(in_view, Tensor::out, role), in_lse = read(in_lse_view, Tensor::lse, role + "_lse");
  const Rows out = read(op.out, Tensor::out, "out"), lse = read(op.lse, Tensor::lse, "lse");
  require_alike(in_lse, in, role + "_lse", role);
  require_alike(lse, out, "lse", "out");
  const auto require_cells = [&](const Rows& o, const Rows& l, std::string_view which) {
    for (std::size_t at = 0; at < o.tags.size(); ++at) {
      if (o.numbers[at] < 0 || cells_of(o.tags[at]) == cells_of(l.tags[at])) continue;
      find(which, ": ", world_.space.text(o.tags[at]), " is made of ", o.tags[at].cells,
           " keys, and its lse of ", l.tags[at].cells);
      return;
    }
  };
  require_cells(in, in_lse, role);
  require_cells(out, lse, "out");
  std::vector<Cells> cells;
  for (const Tag& tag : in.tags) cells.push_back(cells_of(tag));
  write(op.out, Tensor::out, in, cells, true, "out");
  write(op.lse, Tensor::lse, in, cells, true, "lse");
}

}  // namespace cp::sim
