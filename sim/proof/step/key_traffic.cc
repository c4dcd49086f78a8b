#include "sim/proof/step/key_traffic.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/plan.h"
#include "shared/transformer/group_axis.h"
#include "shared/transformer/parallel_layout.h"

namespace cp::sim {
namespace {

// Where the elements of a view are in its buffer, row-major.
std::vector<std::int64_t> offsets(const View& view, std::int64_t iteration) {
  std::vector<std::int64_t> all{offset_at(view, iteration)};
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    std::vector<std::int64_t> next;
    next.reserve(all.size() * idx(view.shape[dim]));
    for (const std::int64_t at : all) {
      for (std::int64_t i = 0; i < view.shape[dim]; ++i) next.push_back(at + i * view.strides[dim]);
    }
    all = std::move(next);
  }
  return all;
}

struct Bytes {
  std::int64_t of_kv = 0, of_q = 0;
};
// By operation and group.
using Moved = std::map<std::pair<std::string, std::string>, std::pair<std::vector<Rank>, Bytes>>;

// Goes through the forward pass of one rank's plan. Each element that arrives over cp gets a number of its
// own, which copies take along.
class ElementTrail {
 public:
  ElementTrail(const Plan& plan, std::int64_t layers) : plan_(plan), came_as_(plan.buffers.size()) {
    moved_.resize(idx(layers));
    for (const Segment& segment : plan.segments) {
      const auto* const repeat = std::get_if<Repeat>(&segment);
      const std::int64_t count = repeat == nullptr ? 1 : repeat->count;
      for (std::int64_t iteration = 0; iteration < count; ++iteration) {
        if (repeat == nullptr) {
          follow(std::get<Step>(segment), iteration);
        } else {
          for (const Step& step : repeat->steps) follow(step, iteration);
        }
      }
    }
  }

  const std::vector<Moved>& moved() const { return moved_; }  // by layer with attention

 private:
  using Number = std::int64_t;  // 0: the element was made here

  struct Arrival {
    std::string operation;
    GroupId group;
    std::int64_t bytes;
    bool seen = false;
  };

  std::vector<Number>& numbers(const View& view) {
    std::vector<Number>& of_buffer = came_as_[idx(view.buffer)];
    if (of_buffer.empty()) of_buffer.resize(idx(plan_.buffers[idx(view.buffer)].numel));
    return of_buffer;
  }
  // Elements first .. first + count - 1 of a view have arrived.
  void arrive(const std::string& operation, GroupId group, const View& view, std::int64_t iteration,
              std::int64_t first, std::int64_t count) {
    std::vector<Number>& of_buffer = numbers(view);
    const std::vector<std::int64_t> at = offsets(view, iteration);
    const std::int64_t bytes = size_bytes(plan_.buffers[idx(view.buffer)].dtype);
    for (std::int64_t i = first; i < first + count; ++i) {
      arrivals_.push_back({operation, group, bytes});
      of_buffer[idx(at[idx(i)])] = std::ssize(arrivals_);
    }
  }
  void take_along(const View& from, std::int64_t begin, const View& to, std::int64_t to_begin,
                  std::int64_t count, std::int64_t iteration) {
    const std::vector<std::int64_t> in = offsets(from, iteration), out = offsets(to, iteration);
    for (std::int64_t i = 0; i < count; ++i)
      numbers(to)[idx(out[idx(to_begin + i)])] = numbers(from)[idx(in[idx(begin + i)])];
  }
  void make_here(const View& view, std::int64_t iteration) {
    std::vector<Number>& of_buffer = numbers(view);
    for (const std::int64_t at : offsets(view, iteration)) of_buffer[idx(at)] = 0;
  }

  // Behind the last layer with attention nothing is followed: what is computed again for the backward pass,
  // and that pass, move the same once more.
  void follow(const Step& step, std::int64_t iteration) {
    if (layer_ == std::ssize(moved_)) return;
    if (const auto* const collective = std::get_if<Collective>(&step.work)) {
      follow_collective(step, *collective, iteration);
      return;
    }
    const Kernel& kernel = std::get<Kernel>(step.work);
    if (const auto* const rows = std::get_if<RowKernel>(&kernel);
        rows != nullptr && rows->operation == RowOperation::rotary && ++layer_ == std::ssize(moved_))
      return;
    if (const auto* const attention = std::get_if<AttentionForward>(&kernel)) look(*attention, iteration);
    if (const auto* const copy = std::get_if<Copy>(&kernel)) {
      take_along(copy->in, 0, copy->out, 0, copy->out.numel(), iteration);
    } else if (const auto* const cast = std::get_if<Cast>(&kernel)) {
      take_along(cast->in, 0, cast->out, 0, cast->out.numel(), iteration);
    } else if (const auto* const product = std::get_if<MatMul>(&kernel)) {
      follow_product(*product, iteration);
    } else {
      for (const Access& access : accesses(step.work)) {
        if (access.writes) make_here(*access.view, iteration);
      }
    }
  }

  // Keys and values are made of latent rows, each of a whole row: the elements of the row take turns.
  void follow_product(const MatMul& all, std::int64_t iteration) {
    for (std::int64_t which = 0; which < num_products(all); ++which) {
      const MatMul product = product_of(all, which);
      const std::int64_t rows = product.out.shape[0], width = product.out.shape[1],
                         terms = product.a.shape[1];
      const std::vector<std::int64_t> in = offsets(product.a, iteration),
                                      out = offsets(product.out, iteration);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < width; ++j)
          numbers(product.out)[idx(out[idx(i * width + j)])] =
              terms == 0 ? 0 : numbers(product.a)[idx(in[idx(i * terms + j % terms)])];
      }
    }
  }

  void follow_collective(const Step& step, const Collective& collective, std::int64_t iteration) {
    const GroupId id = std::visit([](const auto& op) { return op.group; }, collective);
    const Group& group = plan_.groups[idx(id)];
    const std::string operation(operation_name(step.work));
    const auto index = static_cast<std::int32_t>(
        std::find(group.ranks.begin(), group.ranks.end(), plan_.self) - group.ranks.begin());
    for (const Access& access : accesses(step.work, index)) {
      if (access.writes) make_here(*access.view, iteration);
    }
    if (axis_of_group(group.name) != GroupAxis::cp) return;
    // Blocks by rank, of which this rank's own is a copy.
    const auto blocks = [&](const View& in, std::int64_t own_begin, const View& out) {
      const std::int64_t each = out.numel() / std::ssize(group.ranks);
      for (std::int32_t rank = 0; rank < std::ssize(group.ranks); ++rank) {
        if (rank == index)
          take_along(in, own_begin, out, rank * each, each, iteration);
        else
          arrive(operation, id, out, iteration, rank * each, each);
      }
    };
    if (const auto* const gather = std::get_if<AllGather>(&collective)) {
      blocks(gather->in, 0, gather->out);
    } else if (const auto* const swap = std::get_if<AllToAll>(&collective)) {
      blocks(swap->in, index * (swap->in.numel() / std::ssize(group.ranks)), swap->out);
    } else if (const auto* const exchange = std::get_if<Exchange>(&collective)) {
      for (const Transfer& transfer : exchange->recvs)
        arrive(operation, id, transfer.view, iteration, 0, transfer.view.numel());
    }
  }

  // What the slices of an attention step see.
  void look(const AttentionForward& attention, std::int64_t iteration) {
    CP_INVARIANT(layer_ >= 0, "attention before any rotation in the plan of rank ", plan_.self);
    std::vector<bool> queries(idx(attention.q.shape.at(1))), keys(idx(attention.k.shape.at(1)));
    for (const MaskSlice& slice : attention.slices) {
      std::fill_n(queries.begin() + slice.q_begin, slice.q_len, true);
      std::fill_n(keys.begin() + slice.k_begin, slice.k_len, true);
    }
    look_at(attention.q, queries, false, iteration);
    look_at(attention.k, keys, true, iteration);
    look_at(attention.v, keys, true, iteration);
  }
  // The rows of a view [batch, rows, heads, dim].
  void look_at(const View& view, const std::vector<bool>& rows, bool is_kv, std::int64_t iteration) {
    const std::vector<std::int64_t> at = offsets(view, iteration);
    const std::int64_t of_row = view.shape[2] * view.shape[3];
    for (std::size_t i = 0; i < at.size(); ++i) {
      const Number number = numbers(view)[idx(at[i])];
      if (number == 0 || !rows[i / idx(of_row) % rows.size()]) continue;
      Arrival& arrival = arrivals_[idx(number - 1)];
      if (std::exchange(arrival.seen, true)) continue;
      const Group& group = plan_.groups[idx(arrival.group)];
      auto& [ranks, bytes] = moved_[idx(layer_)][{arrival.operation, group.name}];
      ranks = group.ranks;
      (is_kv ? bytes.of_kv : bytes.of_q) += arrival.bytes;
    }
  }

  const Plan& plan_;
  std::vector<std::vector<Number>> came_as_;  // by buffer, of each element; empty: none was touched
  std::vector<Arrival> arrivals_;             // by number, less 1
  std::int64_t layer_ = -1;                   // counts those with attention
  std::vector<Moved> moved_;
};

// The layers with attention of a stage, in the order of its forward pass.
std::vector<std::int64_t> layers_with_attention(const StepRequest& request, int stage) {
  const Transformer& model = request.model;
  const LayerRange range = layers_of_stage(model, request.layout, stage);
  std::vector<std::int64_t> layers;
  const auto add = [&](std::int64_t layer, int kind) {
    if (model.kinds[idx(kind)].mixer == Mixer::attention) layers.push_back(layer);
  };
  for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer)
    add(layer, model.kind_of(layer));
  if (stage + 1 < request.layout.pp * request.layout.virtual_stages) return layers;
  for (std::int64_t depth = 0; depth < model.prediction_layers; ++depth)
    add(model.layers + depth, model.last_kind());
  return layers;
}

}  // namespace

std::vector<LayerTraffic> key_traffic(
    const StepRequest& request, const std::function<std::vector<Plan>(StepPart part, int stage)>& plans) {
  if (request.workload.phase != Phase::training)
    throw InvalidInput(str("phase ", name(request.workload.phase),
                           " is not training; key_traffic() reads the forward passes of training"));
  const StepPart part = parts_of(request).front();
  std::vector<LayerTraffic> all;
  for (int stage = 0; stage < request.layout.pp * request.layout.virtual_stages; ++stage) {
    const std::vector<std::int64_t> layers = layers_with_attention(request, stage);
    std::vector<LayerTraffic> of_stage;
    of_stage.reserve(layers.size());
    for (const std::int64_t layer : layers) of_stage.push_back({layer, {}});
    for (const Plan& plan : plans(part, stage)) {
      const ElementTrail trail(plan, std::ssize(layers));
      for (std::size_t i = 0; i < layers.size(); ++i) {
        for (const auto& [key, moved] : trail.moved()[i]) {
          std::vector<KeyMove>& moves = of_stage[i].moves;
          auto known = std::find_if(moves.begin(), moves.end(), [&, &by = key](const KeyMove& move) {
            return move.operation == by.first && move.group == by.second;
          });
          if (known == moves.end()) known = moves.insert(moves.end(), {key.first, key.second, {}, 0, 0});
          known->kv_bytes += moved.second.of_kv, known->q_bytes += moved.second.of_q;
          if (std::find(known->ranks.begin(), known->ranks.end(), moved.first) == known->ranks.end())
            known->ranks.push_back(moved.first);
        }
      }
    }
    all.insert(all.end(), of_stage.begin(), of_stage.end());
  }
  std::sort(all.begin(), all.end(),
            [](const LayerTraffic& a, const LayerTraffic& b) { return a.layer < b.layer; });
  return all;
}

}  // namespace cp::sim
