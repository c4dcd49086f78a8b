#include "shared/transformer/step_plan.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/transformer/layer_backward.h"
#include "shared/transformer/loss_writer.h"
#include "shared/transformer/update_writer.h"

namespace cp {
namespace {

// One part of a step, on one rank. It says where rows are while the writers write.
class PartWriter {
 public:
  explicit PartWriter(StepContext& context) : context_(context), writer_(context), units_(context) {
    const auto open = [&](const StepUnit& unit) -> std::unique_ptr<UnshardWriter> {
      if (unit.sharded.numel == 0) return nullptr;
      return std::make_unique<UnshardWriter>(writer_.builder(), context.self, unit.sharded);
    };
    for (const LayerParts parts : kLayerParts) layers_[parts] = open(units_.layers[parts]);
    experts_ = open(units_.experts);
    embedding_ = open(units_.embedding), head_ = open(units_.head);
  }

  Plan write() && {
    switch (context_.part) {
      case StepPart::micro_batch:
        write_micro_batch();
        break;
      case StepPart::forward:
        write_forward();
        break;
      case StepPart::backward:
        write_backward();
        break;
      case StepPart::update:
        UpdateWriter(writer_, units_).write();
        break;
      case StepPart::prefill:
      case StepPart::decode:
        write_serving();
        break;
    }
    return std::move(writer_).build();
  }

 private:
  static constexpr StackIndex kOnly{};

  bool tied() const { return context_.model.tied_embeddings && context_.layout.pp == 1; }
  // What the last layer hands on: behind the inputs of the stage's layers that are at the same home.
  StackIndex last() const { return {context_.layers_at(context_.homes.back()), 0}; }
  // The gradient that goes from layer to layer, in place, while it stays at the home that the context is at.
  View dx(const char* name = "dx") { return writer_.working_rows(name, context_.tokens_tp, context_.hidden); }

  // Rows are at the home of the first layer before it, and where the last one hands them on to behind it.
  void write_micro_batch() {
    Activations activations(writer_, BufferKind::temporary);
    EmbeddingWriter embedding(writer_);
    embedding.forward(table(), activations.x(kOnly));
    layers_forward(activations, nullptr);
    const View dx = this->dx();
    loss(activations.x(last()), dx);
    const View of_input = layers_backward(activations, dx);
    embedding_backward(embedding, of_input);
  }

  // ---- of one stage ----

  void write_forward() {
    Activations activations(writer_, BufferKind::output);
    if (context_.first_stage) {
      EmbeddingWriter(writer_).forward(table(), activations.x(kOnly));
    } else {
      writer_.receive(-1, activations.x(kOnly));
    }
    layers_forward(activations, nullptr);
    if (!context_.last_stage) return writer_.send(+1, activations.x(last()));
    const std::int64_t numel = context_.tokens_tp * context_.hidden;
    const BufferId buffer = writer_.builder().output("working/dx", writer_.dtype(), numel);
    loss(activations.x(last()), dense_view(buffer, 0, {context_.tokens_tp, context_.hidden}));
  }

  void write_backward() {
    Activations activations(writer_, BufferKind::input);
    context_.enter(context_.homes.back());
    View dx;
    if (context_.last_stage) {
      const std::int64_t numel = context_.tokens_tp * context_.hidden;
      const BufferId buffer = writer_.builder().inout("working/dx", writer_.dtype(), numel);
      dx = dense_view(buffer, 0, {context_.tokens_tp, context_.hidden});
    } else {
      dx = this->dx();
      writer_.receive(+1, dx);
    }
    const View of_input = layers_backward(activations, dx);
    if (!context_.first_stage) return writer_.send(-1, of_input);
    EmbeddingWriter embedding(writer_);
    embedding_backward(embedding, of_input);
  }

  void write_serving() {
    Activations activations(writer_, BufferKind::temporary);
    KvCache cache(writer_);
    if (context_.first_stage) {
      EmbeddingWriter(writer_).forward(table(), activations.x(kOnly));
    } else {
      writer_.receive(-1, activations.x(kOnly));
    }
    layers_forward(activations, &cache);
    if (!context_.last_stage) return writer_.send(+1, activations.x(last()));
    writer_.begin_region();
    LossWriter(writer_).last_logits(head_pieces(), activations.x(last()));
  }

  // ---- layers ----

  template <class Body>
  void for_each_layer(const std::vector<LayerLoop>& loops, const Body& body) {
    for (const LayerLoop& loop : loops) {
      if (loop.count > 1) writer_.builder().begin_repeat(loop.count);
      for (const LayerPlace& place : loop.body) {
        writer_.begin_region();
        context_.enter(place.home);
        body(place);
      }
      if (loop.count > 1) writer_.builder().end_repeat();
    }
  }

  LayerPieces unshard(const LayerPlace& place) {
    LayerPieces pieces{layers_[place.parts]->unshard(place.of_parts, place.turn), {}};
    if (has_experts(place)) pieces.experts = experts_->unshard(place.of_mlp, place.mlp_turn);
    return pieces;
  }
  bool has_experts(const LayerPlace& place) const { return place.parts.mlp == Mlp::experts; }

  void layers_forward(Activations& activations, KvCache* cache) {
    LayerForward forward(writer_, activations, cache);
    for_each_layer(
        forward_loops(context_.stage_layers(), context_.layout.recompute), [&](const LayerPlace& place) {
          const LayerPieces weights = unshard(place);
          const View x = activations.x(place.input);
          if (place.next_home == place.home) {
            forward.write(place, weights, x, activations.x(place.output));
          } else {
            const View leaving = writer_.working_rows("x leaving", context_.tokens_tp, context_.hidden);
            forward.write(place, weights, x, leaving);
            context_.enter(place.next_home);
            writer_.move_rows(place.home, leaving, activations.x(place.output), "rows to the next home");
          }
          activations.send(place);
        });
    context_.enter(context_.homes.back());
  }

  // From the gradient of what the stage hands on to that of its input, which is returned.
  View layers_backward(Activations& activations, const View& dx) {
    LayerBackward backward(writer_, activations);
    // At each home.
    std::array<View, kMostHomes> gradients_at;
    gradients_at[idx(context_.homes.back())] = dx;
    for (const int home : context_.homes) {
      View& of_home = gradients_at[idx(home)];
      if (of_home.buffer >= 0) continue;
      context_.enter(home);
      of_home = this->dx("dx, elsewhere");
    }
    for_each_layer(backward_loops(context_.stage_layers(), context_.layout.recompute),
                   [&](const LayerPlace& place) {
                     const LayerPieces weights = unshard(place);
                     UnshardWriter& layers = *layers_[place.parts];
                     LayerGradients gradients{layers.gradient(place.of_parts, place.turn), {}};
                     if (has_experts(place))
                       gradients.experts = experts_->gradient(place.of_mlp, place.mlp_turn);
                     activations.begin_fetching(place);
                     const View& own = gradients_at[idx(place.home)];
                     if (place.next_home != place.home)
                       writer_.move_rows(place.next_home, gradients_at[idx(place.next_home)], own,
                                         "gradients of rows to the home before");
                     backward.write(place, weights, gradients, activations.x(place.input), own);
                     layers.reduce(place.of_parts, place.turn);
                     if (has_experts(place)) experts_->reduce(place.of_mlp, place.mlp_turn);
                   });
    context_.enter(context_.homes.front());
    return gradients_at[idx(context_.homes.front())];
  }

  // ---- the ends ----

  const Window& table() {
    if (!table_) table_ = embedding_->unshard(kOnly, kOnly);
    return *table_;
  }

  HeadPieces head_pieces() {
    const Window head = head_->unshard(kOnly, kOnly);
    return {head, tied() ? table() : at(head, context_.head.table.begin)};
  }

  void loss(const View& x, const View& dx) {
    writer_.begin_region();
    const HeadPieces weights = head_pieces();
    const GradientPlace head = head_->gradient(kOnly, kOnly);
    const HeadGradients gradients{
        head, tied() ? embedding_->gradient(kOnly, kOnly)
                     : GradientPlace{at(head.window, context_.head.table.begin), head.adds}};
    LossWriter(writer_).write(weights, gradients, x, dx);
    head_->reduce(kOnly, kOnly);
  }

  void embedding_backward(EmbeddingWriter& embedding, const View& dx) {
    writer_.begin_region();
    const GradientPlace gradient = embedding_->gradient(kOnly, kOnly);
    // The kernel adds to the rows that were looked up and touches no others, so all must be zero before. If
    // the table is tied, the head's gradient is there already.
    if (!tied() && !gradient.adds) {
      writer_.fill(context_.embedding.flat(gradient.window), 0, "no d embedding yet");
    }
    embedding.backward(dx, gradient.window);
    embedding_->reduce(kOnly, kOnly);
  }

  static Window at(Window window, std::int64_t offset) {
    window.offset += offset;
    return window;
  }

  StepContext& context_;
  StepWriter writer_;
  StepUnits units_;
  ByParts<std::unique_ptr<UnshardWriter>> layers_;
  std::unique_ptr<UnshardWriter> experts_, embedding_, head_;
  std::optional<Window> table_;
};

// ---- what can be asked for ----

void validate(const StepRequest& request, StepPart part, int stage) {
  validate_model(request.model);
  validate_workload(request.workload);
  if (const auto refusal = refuse(request.model, request.workload, request.layout)) {
    throw InvalidInput(refusal->text());
  }
  const int stages = request.layout.pp * request.layout.virtual_stages;
  if (stage < 0 || stage >= stages) {
    throw InvalidInput(str("stage ", stage, " is not one of ", stages, " stages; use 0 to ", stages - 1));
  }
  const Phase phase = request.workload.phase;
  const bool serving = part == StepPart::prefill || part == StepPart::decode;
  if (serving != (phase != Phase::training) || (serving && name(part) != name(phase))) {
    throw InvalidInput(
        str("part ", name(part), " does not exist in the phase ", name(phase), "; use ",
            phase == Phase::training ? "micro_batch, forward, backward or update" : name(phase)));
  }
  const bool staged = part == StepPart::forward || part == StepPart::backward;
  if (part == StepPart::micro_batch && request.layout.pp > 1) {
    throw InvalidInput(
        str("part micro_batch needs pp=1, not pp=", request.layout.pp, "; use forward and backward"));
  }
  if (staged && request.layout.pp == 1)
    throw InvalidInput(str("part ", name(part), " needs pp above 1, not pp=1; use micro_batch"));
}

Plan write(const StepRequest& request, StepPart part, int stage, Rank self, MixerPlanCache& cache) {
  StepContext context(request, part, stage, self, cache);
  if (context.groups.pp() != stage % request.layout.pp) {
    throw InvalidInput(str("rank ", self, " does not hold stage ", stage, "; it holds stages ",
                           context.groups.pp(), " + i * ", request.layout.pp));
  }
  return PartWriter(context).write();
}

}  // namespace

std::string_view name(StepPart part) {
  static constexpr std::array<std::string_view, 6> kNames = {"micro_batch", "forward", "backward",
                                                             "update",      "prefill", "decode"};
  return kNames[static_cast<std::size_t>(part)];
}

Plan step_plan(const StepRequest& request, StepPart part, int stage, Rank self, MixerPlanCache* cache) {
  validate(request, part, stage);
  MixerPlanCache own(2);
  return write(request, part, stage, self, cache == nullptr ? own : *cache);
}

std::vector<Plan> step_plans(const StepRequest& request, StepPart part, int stage, MixerPlanCache* cache) {
  validate(request, part, stage);
  MixerPlanCache own;
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < request.layout.world(); ++rank) {
    if (RankGroups(request.layout, rank).pp() != stage % request.layout.pp) continue;
    plans.push_back(write(request, part, stage, rank, cache == nullptr ? own : *cache));
  }
  return plans;
}

Plan row_move_plan(const StepRequest& request, int home, Rank self) {
  MixerPlanCache cache;
  const StepPart part = parts_of(request).front();
  StepContext context(request, part, RankGroups(request.layout, self).pp(), self, cache);
  StepWriter writer(context);
  context.enter(home);
  const Shape own{context.tokens_tp, context.hidden};
  const View from = dense_view(writer.builder().input("rows", writer.dtype(), numel(own)), 0, own);
  context.enter(1 - home);
  const Shape moved{context.tokens_tp, context.hidden};
  const View to = dense_view(writer.builder().output("moved", writer.dtype(), numel(moved)), 0, moved);
  writer.move_rows(home, from, to, "rows to the next home");
  return std::move(writer).build();
}

std::vector<StepPart> parts_of(const StepRequest& request) {
  switch (request.workload.phase) {
    case Phase::prefill:
      return {StepPart::prefill};
    case Phase::decode:
      return {StepPart::decode};
    case Phase::training:
      break;
  }
  if (request.layout.pp == 1) return {StepPart::micro_batch, StepPart::update};
  return {StepPart::forward, StepPart::backward, StepPart::update};
}

std::vector<Plan> plans_of_all_ranks(const StepRequest& request, StepPart part) {
  std::vector<Plan> all;
  MixerPlanCache cache;
  for (int stage = 0; stage < request.layout.pp; ++stage) {
    for (Plan& plan : step_plans(request, part, stage, &cache)) all.push_back(std::move(plan));
  }
  return all;
}

}  // namespace cp
