#include "sim/proof/ledger/tags.h"

#include <algorithm>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/ledger/mask_rule.h"

namespace cp::sim {
namespace {

std::uint32_t random_weight(std::uint64_t x) {  // splitmix64
  x = (x + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::uint32_t>(x >> 32) | 1;  // odd: no product of weights loses bits
}

std::vector<std::uint32_t> random_weights(std::int64_t size, std::uint64_t salt) {
  std::vector<std::uint32_t> weights(idx(size));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = random_weight((salt << 48) + i);
  return weights;
}

}  // namespace

std::string_view name(Tensor tensor) {
  static constexpr std::array<std::string_view, kTensors> kNames = {
      "q",  "k",     "v",      "out",  "lse",    "dout",  "delta",   "dq",    "dk",
      "dv", "sinks", "dsinks", "seed", "latent", "kv_up", "dlatent", "dkv_up"};
  return kNames[static_cast<std::size_t>(tensor)];
}

TagSpace::TagSpace(const AttentionProblem& problem) : latent_(problem.latent), nope_(problem.nope_dim()) {
  std::uint64_t next = kFirstElement;
  for (int t = 0; t < kTensors; ++t) {
    const auto tensor = static_cast<Tensor>(t);
    Sizes& s = sizes_[index(tensor)];
    s.first = next;
    s.heads = is_query(tensor) ? problem.q_heads : problem.kv_heads;
    s.seq_len = is_query(tensor) ? problem.q_len : problem.kv_len;
    switch (tensor) {
      case Tensor::q:
      case Tensor::k:
      case Tensor::dq:
      case Tensor::dk:
        s.dim = problem.head_dim;
        break;
      case Tensor::v:
      case Tensor::out:
      case Tensor::dout:
      case Tensor::dv:
        s.dim = problem.v_head_dim;
        break;
      case Tensor::lse:
      case Tensor::delta:
        s.dim = 1;
        break;
      case Tensor::sinks:
      case Tensor::dsinks:
      case Tensor::seed:
        s.heads = tensor == Tensor::seed ? 1 : problem.q_heads, s.seq_len = 1, s.dim = 1;
        break;
      // Of a problem without latent rows they have no rows.
      case Tensor::latent:
      case Tensor::dlatent:
        s.heads = 1, s.seq_len = problem.has_latent() ? problem.kv_len : 0;
        s.dim = std::max<std::int64_t>(1, problem.latent.dim());
        break;
      case Tensor::kv_up:
      case Tensor::dkv_up:
        s.seq_len = problem.has_latent() ? problem.up_rows() : 0;
        s.dim = std::max<std::int64_t>(1, problem.latent.rank);
        break;
    }
    next += static_cast<std::uint64_t>(problem.batch * s.heads * s.seq_len * s.dim);
    s.end = next;
  }
}

Tensor TagSpace::tensor(std::uint64_t id) const {
  std::size_t t = kTensors - 1;
  while (id < sizes_[t].first) --t;
  return static_cast<Tensor>(t);
}

Element TagSpace::element(std::uint64_t id) const {
  Element element;
  element.tensor = tensor(id);
  const Sizes& s = sizes_[index(element.tensor)];
  auto rest = static_cast<std::int64_t>(id - s.first);
  element.column = rest % s.dim;
  rest /= s.dim;
  element.row = rest % s.seq_len;
  rest /= s.seq_len;
  element.head = rest % s.heads;
  element.batch = rest / s.heads;
  return element;
}

Tag TagSpace::later_in_row(const Tag& first, std::int64_t columns) const {
  Tag tag = first;
  if (!is_element(first)) return tag;
  if (latent_.rank > 0 && columns >= nope_) {
    const Element row = element(first.id);
    if (row.tensor == Tensor::k || row.tensor == Tensor::dk) {
      tag.id = id(row.tensor == Tensor::k ? Tensor::latent : Tensor::dlatent, row.batch, 0, row.row,
                  latent_.rank + columns - nope_);
      return tag;
    }
  }
  tag.id += static_cast<std::uint64_t>(columns);
  return tag;
}

std::string TagSpace::text(const Tag& tag) const {
  if (tag.id == kUnwritten) return "unwritten memory";
  if (tag.id == kZeros) return "zeros";
  if (tag.id == kMinusInfinity) return "-inf";
  if (tag.id == kOtherConstant) return "a constant";
  const Element e = element(tag.id);
  return str(name(e.tensor), " of batch ", e.batch, ", head ", e.head, ", row ", e.row,
             e.column > 0 ? str(", column ", e.column) : "");
}

CellWeights::CellWeights(const AttentionProblem& problem)
    : keys_(random_weights(problem.kv_len, 1)),
      queries_(random_weights(problem.q_len, 2)),
      heads_(random_weights(problem.q_heads, 3)),
      groups_(idx(problem.kv_heads)),
      heads_per_kv_(static_cast<std::uint32_t>(problem.heads_per_kv())),
      sinks_(problem.sinks) {
  std::vector<std::uint32_t> before(keys_.size() + 1, 0);  // sums of the weights of the keys below
  for (std::size_t j = 0; j < keys_.size(); ++j) before[j + 1] = before[j] + keys_[j];
  for (const std::vector<KeyInterval>& of_entry : visible_keys(problem)) {
    std::vector<Cells> changes(keys_.size() + 1);  // of by_key_ from one key to the next
    std::vector<Cells>&by_query = by_query_.emplace_back(), &by_key = by_key_.emplace_back();
    for (const KeyInterval& seen : of_entry) {
      const std::size_t begin = idx(seen.begin), end = idx(seen.end);
      const std::uint32_t weight = queries_[by_query.size()];
      by_query.push_back({static_cast<std::uint32_t>(end - begin), before[end] - before[begin]});
      changes[begin] += {1, weight};
      changes[end] += {0U - 1U, 0U - weight};
    }
    Cells sum;
    for (std::size_t j = 0; j < keys_.size(); ++j) by_key.push_back(sum += changes[j]);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) groups_[h / idx(problem.heads_per_kv())] += heads_[h];
  for (const std::uint32_t weight : heads_) all_heads_ += weight;
}

Cells CellWeights::sink() { return {1, random_weight(std::uint64_t{4} << 48)}; }

Cells CellWeights::all(Tensor tensor, std::int64_t batch, std::int64_t head, std::int64_t row) const {
  switch (tensor) {
    case Tensor::out:
    case Tensor::lse:
    case Tensor::delta: {
      Cells cells = by_query_[idx(batch)][idx(row)];
      if (sinks_) cells += sink();
      return cells;
    }
    case Tensor::dq:
      return by_query_[idx(batch)][idx(row)];
    case Tensor::dk:
    case Tensor::dv: {
      const Cells& one_head = by_key_[idx(batch)][idx(row)];
      return {one_head.count * heads_per_kv_, one_head.print * groups_[idx(head)]};
    }
    case Tensor::dlatent: {
      const Cells& one_head = by_key_[idx(batch)][idx(row)];
      return {one_head.count * static_cast<std::uint32_t>(heads_.size()), one_head.print * all_heads_};
    }
    case Tensor::q:
    case Tensor::k:
    case Tensor::v:
    case Tensor::dout:
    case Tensor::latent:
    case Tensor::kv_up:
    case Tensor::dkv_up:  // of which each rank has a part
    case Tensor::sinks:
    case Tensor::dsinks:  // of which each rank has a part
    case Tensor::seed:
      break;
  }
  return {};
}

}  // namespace cp::sim
