// What programs compute.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/proof/exhaustive/program_oracle.h"
#include "sim/proof/exhaustive/program_steps.h"

namespace cp::sim {
namespace {

using namespace program;

class Interpreter {
 public:
  Interpreter(std::span<const Plan> plans, ProgramValues start) : plans_(plans), done_(plans.size(), 0) {
    result_.values = std::move(start);
    for (std::size_t p = 0; p < plans.size(); ++p) {
      nodes_.push_back(unroll(plans[p]));
      for (std::size_t b = 0; b < plans[p].buffers.size(); ++b)
        result_.values[p][b].resize(idx(plans[p].buffers[b].numel));
    }
  }

  ProgramResult run() && {
    const std::vector<std::vector<Call>> calls = calls_of(plans_, nodes_);
    const bool ends =
        meet(plans_, calls, [&](const std::vector<std::size_t>& members, const std::vector<std::size_t>& at) {
          std::vector<const Call*> meeting;
          for (const std::size_t p : members) {
            kernels_before(p, calls[p][at[p]].node);
            meeting.push_back(&calls[p][at[p]]);
          }
          collective(members, meeting);
          for (const std::size_t p : members) ++done_[p];
        });
    CP_INVARIANT(ends, "values of plans that do not end");
    for (std::size_t p = 0; p < plans_.size(); ++p) kernels_before(p, nullptr);
    return std::move(result_);
  }

 private:
  void kernels_before(std::size_t p, const Node* until) {
    for (; done_[p] < nodes_[p].size() && &nodes_[p][done_[p]] != until; ++done_[p])
      kernel(p, nodes_[p][done_[p]]);
  }

  DType dtype(std::size_t p, const View& view) const { return plans_[p].buffers[idx(view.buffer)].dtype; }
  Numbers load(std::size_t p, const View& view, std::int64_t iteration) const {
    Numbers all = elements(view, iteration);
    for (std::int64_t& element : all) element = result_.values[p][idx(view.buffer)][idx(element)];
    return all;
  }
  void store(std::size_t p, const View& view, std::int64_t iteration, const Numbers& values) {
    const Numbers places = elements(view, iteration);
    for (std::size_t i = 0; i < places.size(); ++i)
      result_.values[p][idx(view.buffer)][idx(places[i])] = held(dtype(p, view), values[i]);
  }

  // As the type holds it: integers wrap, of floating types only small whole numbers are exact.
  std::int64_t held(DType dtype, std::int64_t value) {
    if (dtype == DType::i64) return value;
    if (dtype == DType::i32) return static_cast<std::int32_t>(static_cast<std::uint64_t>(value));
    const std::int64_t most = std::int64_t{1} << (dtype == DType::f32 ? 24 : dtype == DType::f16 ? 11 : 8);
    if (value >= -most && value <= most) return value;
    result_.exact = false;
    return 0;
  }
  std::int64_t combine(DType dtype, ReduceOp op, std::int64_t a, std::int64_t b) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        // So that no partial sum is inexact in any order.
        if (is_floating(dtype)) held(dtype, std::abs(a) + std::abs(b));
        return held(dtype, static_cast<std::int64_t>(x + y));
      case ReduceOp::min:
        return std::min(a, b);
      case ReduceOp::max:
        return std::max(a, b);
      case ReduceOp::product:
        return held(dtype, static_cast<std::int64_t>(x * y));
    }
    return 0;
  }

  void kernel(std::size_t p, const Node& node) {
    const Kernel& kernel = std::get<Kernel>(node.step->work);
    const std::int64_t turn = node.iteration;
    if (const auto* copy = std::get_if<Copy>(&kernel))
      return store(p, copy->out, turn, load(p, copy->in, turn));
    if (const auto* cast = std::get_if<Cast>(&kernel))
      return store(p, cast->out, turn, load(p, cast->in, turn));
    if (const auto* fill = std::get_if<Fill>(&kernel))
      return store(p, fill->out, turn,
                   Numbers(idx(fill->out.numel()), static_cast<std::int64_t>(fill->value)));
    if (const auto* scale = std::get_if<Scale>(&kernel)) {
      Numbers values = load(p, scale->data, turn);
      for (std::int64_t& value : values) value *= static_cast<std::int64_t>(scale->factor);
      return store(p, scale->data, turn, values);
    }
    if (const auto* add = std::get_if<Accumulate>(&kernel)) {
      const Numbers in = load(p, add->in, turn);
      Numbers out = load(p, add->out, turn);
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = combine(dtype(p, add->out), add->op, out[i], in[i]);
      return store(p, add->out, turn, out);
    }
    product(p, std::get<MatMul>(kernel), turn);
  }

  void product(std::size_t p, const MatMul& op, std::int64_t turn) {
    const Numbers a = load(p, op.a, turn), b = load(p, op.b, turn);
    Numbers out = op.accumulate ? load(p, op.out, turn) : Numbers(idx(op.out.numel()), 0);
    const std::size_t rows = idx(op.out.shape[0]), columns = idx(op.out.shape[1]), depth = idx(op.a.shape[1]);
    const DType type = dtype(p, op.out);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        std::int64_t& sum = out[i * columns + j];
        std::int64_t magnitude = is_floating(type) ? std::abs(sum) : 0;
        for (std::size_t k = 0; k < depth; ++k) {
          const auto x = static_cast<std::uint64_t>(a[i * depth + k]),
                     y = static_cast<std::uint64_t>(b[k * columns + j]);
          sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + x * y);
          if (is_floating(type)) magnitude += std::abs(static_cast<std::int64_t>(x * y));
        }
        if (is_floating(type)) held(type, magnitude);
      }
    }
    store(p, op.out, turn, out);
  }

  // All members read before any writes: the in-place forms.
  void collective(const std::vector<std::size_t>& members, const std::vector<const Call*>& calls) {
    const std::size_t n = members.size();
    if (std::holds_alternative<Exchange>(*calls[0]->work)) return exchange(members, calls);
    // All inputs are read before any output is written: in place, an output is some member's input.
    std::vector<Numbers> in(n);
    std::vector<const View*> out(n, nullptr);
    std::optional<ReduceOp> reduction;
    std::int32_t root = -1;
    bool gathers = false, deals = false, scatters = false;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t turn = calls[i]->node->iteration;
      std::visit(Overloaded{[&](const AllGather& op) {
                              in[i] = load(members[i], op.in, turn), out[i] = &op.out, gathers = true;
                            },
                            [&](const ReduceScatter& op) {
                              in[i] = load(members[i], op.in, turn), out[i] = &op.out, reduction = op.op,
                              scatters = true;
                            },
                            [&](const AllReduce& op) {
                              in[i] = load(members[i], op.in, turn), out[i] = &op.out, reduction = op.op;
                            },
                            [&](const AllToAll& op) {
                              in[i] = load(members[i], op.in, turn), out[i] = &op.out, deals = true;
                            },
                            [&](const Broadcast& op) {
                              if (calls[i]->index == op.root) in[i] = load(members[i], op.in, turn);
                              out[i] = &op.out, root = op.root;
                            },
                            [&](const Exchange&) {}},
                 *calls[i]->work);
    }
    Numbers reduced;
    if (reduction) reduced = reduce(*reduction, dtype(members[0], *out[0]), in);
    for (std::size_t i = 0; i < n; ++i) {
      Numbers values;
      const std::size_t count = idx(out[i]->numel());
      if (root >= 0) values = in[idx(root)];
      if (gathers)
        for (const Numbers& each : in) values.insert(values.end(), each.begin(), each.end());
      if (deals)
        for (std::size_t j = 0; j < n; ++j)
          for (std::size_t k = 0; k < count / n; ++k) values.push_back(in[j][i * (count / n) + k]);
      if (reduction)
        for (std::size_t k = 0; k < count; ++k) values.push_back(reduced[(scatters ? i * count : 0) + k]);
      store(members[i], *out[i], calls[i]->node->iteration, values);
    }
  }

  Numbers reduce(ReduceOp op, DType type, const std::vector<Numbers>& in) {
    Numbers all = in[0];
    for (std::size_t i = 1; i < in.size(); ++i) {
      for (std::size_t k = 0; k < all.size(); ++k) all[k] = combine(type, op, all[k], in[i][k]);
    }
    if (op != ReduceOp::avg) return all;
    const auto n = static_cast<std::int64_t>(in.size());
    for (std::int64_t& value : all) {
      if (value % n != 0) result_.exact = false;
      value /= n;
    }
    return all;
  }

  void exchange(const std::vector<std::size_t>& members, const std::vector<const Call*>& calls) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Numbers>> wire;
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const Transfer& send : std::get<Exchange>(*calls[i]->work).sends)
        wire[{calls[i]->index, send.peer}].push_back(load(members[i], send.view, calls[i]->node->iteration));
    }
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> taken;
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const Transfer& recv : std::get<Exchange>(*calls[i]->work).recvs) {
        const std::pair pair{recv.peer, calls[i]->index};
        store(members[i], recv.view, calls[i]->node->iteration, wire[pair].at(taken[pair]++));
      }
    }
  }

  std::span<const Plan> plans_;
  std::vector<std::vector<Node>> nodes_;
  std::vector<std::size_t> done_;
  ProgramResult result_;
};

}  // namespace

ProgramResult interpret(std::span<const Plan> plans, ProgramValues start) {
  return Interpreter(plans, std::move(start)).run();
}

}  // namespace cp::sim
