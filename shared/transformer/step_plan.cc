#include "shared/transformer/step_plan.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/temporaries.h"
#include "shared/transformer/layer_backward.h"
#include "shared/transformer/loss_writer.h"
#include "shared/transformer/prediction_writer.h"
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
    prediction_ = open(units_.prediction);
  }

  UnplacedPlan write() && {
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
      case StepPart::reduce:
        UpdateWriter(writer_, units_).write_reduction();
        break;
      case StepPart::update:
        UpdateWriter(writer_, units_).write();
        break;
      case StepPart::prefill:
      case StepPart::decode:
        write_serving();
        break;
      case StepPart::recv_forward:
      case StepPart::send_forward:
      case StepPart::recv_backward:
      case StepPart::send_backward:
        write_transfer();
        break;
    }
    return std::move(writer_).build();
  }

 private:
  static constexpr StackIndex kOnly{};
  static constexpr const char* kLeavingGradient = "working/dx that leaves";

  bool tied() const { return context_.model.tied_embeddings && context_.layout.pp == 1; }
  // A tied table is gathered once, and its gradient is a sum that is reduced behind its last use. Else head
  // and embedding are gathered for each use and reduced behind it.
  bool reduces_each_use() const { return !context_.model.tied_embeddings; }
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
    losses(activations.x(last()), dx);
    const View of_input = layers_backward(activations, dx);
    embedding_backward(embedding, of_input);
  }

  // ---- of one stage ----

  void write_forward() {
    Activations activations(writer_, BufferKind::output);
    if (context_.first_stage) {
      EmbeddingWriter(writer_).forward(table(), activations.x(kOnly));
    } else {
      activations.take_arrived();
    }
    layers_forward(activations, nullptr);
    if (!context_.last_stage) return activations.hand_on(last());
    losses(activations.x(last()), callers_rows(BufferKind::output, "working/dx"));
  }

  void write_backward() {
    Activations activations(writer_, BufferKind::input);
    context_.enter(context_.homes.back());
    const View of_input = layers_backward(activations, gradient_of_output(activations));
    if (!context_.first_stage) return;
    EmbeddingWriter embedding(writer_);
    embedding_backward(embedding, of_input);
  }

  void write_transfer() {
    Activations activations(writer_, BufferKind::inout);
    const bool changes_home = context_.homes.front() != context_.homes.back();
    switch (context_.part) {
      case StepPart::recv_forward:
        return writer_.receive(-1, activations.arrived());
      case StepPart::send_forward:
        context_.enter(context_.homes.back());
        return writer_.send(+1, activations.handed_on(last()));
      case StepPart::recv_backward:
        context_.enter(context_.homes.back());
        return writer_.receive(+1, activations.handed_on(last()));
      case StepPart::send_backward:
        if (changes_home) return writer_.send(-1, callers_rows(BufferKind::inout, kLeavingGradient));
        return writer_.send(-1, gradient_of_output(activations));
      default:
        break;
    }
  }

  // Of the rows that the stage hands on, at the home that they have there.
  View gradient_of_output(Activations& activations) {
    return context_.last_stage ? callers_rows(BufferKind::inout, "working/dx")
                               : activations.handed_on(last());
  }

  View callers_rows(BufferKind kind, const char* name) {
    const Shape shape{context_.tokens_tp, context_.hidden};
    PlanBuilder& builder = writer_.builder();
    const BufferId buffer = kind == BufferKind::output ? builder.output(name, writer_.dtype(), numel(shape))
                                                       : builder.inout(name, writer_.dtype(), numel(shape));
    return dense_view(buffer, 0, shape);
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
  // Backward.
  LayerPieces unshard_again(const LayerPlace& place) {
    LayerPieces pieces{layers_[place.parts]->unshard_again(place.of_parts, place.turn), {}};
    if (has_experts(place)) pieces.experts = experts_->unshard_again(place.of_mlp, place.mlp_turn);
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
      const bool leaves =
          context_.part == StepPart::backward && !context_.first_stage && home == context_.homes.front();
      of_home = leaves ? callers_rows(BufferKind::output, kLeavingGradient) : this->dx("dx, elsewhere");
    }
    for_each_layer(backward_loops(context_.stage_layers(), context_.layout.recompute),
                   [&](const LayerPlace& place) {
                     layer_backward(backward, activations, behind_predictions(place),
                                    gradients_at[idx(place.next_home)], gradients_at[idx(place.home)]);
                   });
    context_.enter(context_.homes.front());
    return gradients_at[idx(context_.homes.front())];
  }

  // From the gradient of what the layer hands on, where the layer behind it has its rows, to that of its
  // input, dx. Both are the same where the layer is at the same home.
  void layer_backward(LayerBackward& backward, Activations& activations, const LayerPlace& place,
                      const View& handed_on, const View& dx) {
    const LayerPieces weights = unshard_again(place);
    UnshardWriter& layers = *layers_[place.parts];
    LayerGradients gradients{layers.gradient(place.of_parts, place.turn), {}};
    if (has_experts(place)) gradients.experts = experts_->gradient(place.of_mlp, place.mlp_turn);
    activations.begin_fetching(place);
    if (place.next_home != place.home)
      writer_.move_rows(place.next_home, handed_on, dx, "gradients of rows to the home before");
    backward.write(place, weights, gradients, activations.x(place.input), dx);
    layers.reduce(place.of_parts, place.turn);
    if (has_experts(place)) experts_->reduce(place.of_mlp, place.mlp_turn);
  }

  // ---- prediction layers ----

  // Which piece of the prediction's unit a depth has, and how many pieces a pass has used before it.
  static StackIndex forward_turn(const PredictionWriter& of) { return {of.depth() - 1, 0}; }
  StackIndex backward_turn(const PredictionWriter& of) const {
    return {context_.predictions - of.depth(), 0};
  }

  // The place of its layer among the pieces of units, behind the layers of the stage; in the backward pass it
  // comes before them.
  LayerPlace forward_place(const PredictionWriter& of) const {
    const std::int64_t before = of.depth() - 1 - context_.predictions;
    LayerPlace place = of.place();
    place.of_parts.first = place.turn.first = context_.layers_with[place.parts] + before;
    place.of_mlp.first = place.mlp_turn.first = count_of(context_.layers_with, place.parts.mlp) + before;
    return place;
  }
  LayerPlace backward_place(const PredictionWriter& of) const {
    LayerPlace place = forward_place(of);
    place.turn = place.mlp_turn = backward_turn(of);
    return place;
  }
  // The place of a layer of the stage in the backward pass.
  LayerPlace behind_predictions(LayerPlace place) const {
    const LayerParts parts = context_.parts[idx(context_.model.last_kind())];
    if (place.parts == parts) place.turn.first += context_.predictions;
    if (place.parts.mlp == parts.mlp) place.mlp_turn.first += context_.predictions;
    return place;
  }

  // The losses of all depths, from the deepest one to the model's own, and the gradients of all that stands
  // behind the last layer; dx is the gradient of that layer's output x.
  void losses(const View& x, const View& dx) {
    std::vector<PredictionWriter> predictions;
    predictions.reserve(idx(context_.predictions));
    std::vector<View> rows{x}, gradients{dx};  // that the model and each depth hand on
    for (std::int64_t depth = 1; depth <= context_.predictions; ++depth) {
      PredictionWriter& of = predictions.emplace_back(writer_, depth);
      writer_.begin_region();
      of.forward(embedding_table(), prediction_->unshard(forward_turn(of), forward_turn(of)), rows.back());
      writer_.begin_region();
      const LayerPlace place = forward_place(of);
      LayerForward(writer_, of.activations(), nullptr).write(place, unshard(place), of.input(), of.output());
      rows.push_back(of.output());
      gradients.push_back(writer_.working_rows("dx", context_.tokens_tp, context_.hidden));
    }
    for (std::int64_t depth = context_.predictions; depth >= 1; --depth) {
      PredictionWriter& of = predictions[idx(depth - 1)];
      const StackIndex piece = forward_turn(of), turn = backward_turn(of);
      const View& d_rows = gradients[idx(depth)];
      const Window weights = prediction_->unshard(piece, turn);
      const GradientPlace own = prediction_->gradient(piece, turn);
      const std::int64_t norm = context_.prediction.norm.begin;
      loss(depth, FinalNorm{at(weights, norm), {at(own.window, norm), own.adds}}, rows[idx(depth)], d_rows);
      writer_.begin_region();
      LayerBackward backward(writer_, of.activations());
      layer_backward(backward, of.activations(), backward_place(of), d_rows, d_rows);
      writer_.begin_region();
      of.backward(weights, own, embedding_gradient(), rows[idx(depth - 1)], d_rows,
                  gradients[idx(depth - 1)]);
      if (reduces_each_use()) embedding_->reduce(kOnly, kOnly, /*more=*/depth > 1 || context_.first_stage);
      // Each tp rank has seen a part of the rows.
      if (!own.adds && writer_.splits_rows())
        writer_.all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum,
                           own.window.flat(0, context_.prediction.numel), "tp", "add up d prediction");
      prediction_->reduce(piece, turn);
    }
    loss(0, std::nullopt, x, dx);
  }

  // ---- the ends ----

  const Window& table() {
    if (!table_) table_ = embedding_->unshard(kOnly, kOnly);
    return *table_;
  }
  // The table that prediction layers look rows up in. With stages, a tied one is the copy of the head.
  Window embedding_table() {
    if (tied()) return table();
    if (context_.model.tied_embeddings) return at(head_->unshard(kOnly, kOnly), context_.head.table.begin);
    embedding_->begin_use();
    return embedding_->unshard(kOnly, kOnly);
  }
  // Its gradient, to which looked-up rows are added. A tied one has been written by the loss of the same
  // depth.
  Window embedding_gradient() {
    if (tied()) return embedding_->gradient(kOnly, kOnly).window;
    if (context_.model.tied_embeddings)
      return at(head_->gradient(kOnly, kOnly).window, context_.head.table.begin);
    return zeroed_embedding_gradient();
  }

  HeadPieces head_pieces() {
    const Window head = head_->unshard(kOnly, kOnly);
    return {head, tied() ? table() : at(head, context_.head.table.begin)};
  }

  struct FinalNorm {
    Window weights;
    GradientPlace gradient;
  };
  // The loss of a depth; 0 is the model's own, whose norm is the head's, and behind which the head's
  // gradients are complete.
  void loss(std::int64_t depth, const std::optional<FinalNorm>& norm, const View& x, const View& dx) {
    writer_.begin_region();
    const bool deepest = depth == context_.predictions;
    const HeadPieces head = head_pieces();
    const GradientPlace own = head_->gradient(kOnly, kOnly);
    GradientPlace d_table = tied() ? embedding_->gradient(kOnly, kOnly)
                                   : GradientPlace{at(own.window, context_.head.table.begin), own.adds};
    d_table.adds = d_table.adds || !(deepest || reduces_each_use());
    LossWriter writer(writer_);
    writer.write({depth, !deepest}, {norm ? norm->weights : head.norm, head.table},
                 {norm ? norm->gradient : own, d_table}, x, dx);
    if (depth == 0) {
      writer.add_up_norm(own);
      head_->reduce(kOnly, kOnly);
    } else if (reduces_each_use()) {
      // The head's unit begins with the model's final norm, of which this loss knows nothing.
      if (!own.adds) writer_.fill(context_.head.norm.flat(own.window), 0, "no d final norm yet");
      head_->reduce(kOnly, kOnly, /*more=*/true);
    }
  }

  // The kernel adds to the rows that were looked up and touches no others, so all must be zero before. Layers
  // are at work between two uses.
  Window zeroed_embedding_gradient() {
    embedding_->begin_use();
    const GradientPlace gradient = embedding_->gradient(kOnly, kOnly);
    if (!gradient.adds) writer_.fill(context_.embedding.flat(gradient.window), 0, "no d embedding yet");
    return gradient.window;
  }

  void embedding_backward(EmbeddingWriter& embedding, const View& dx) {
    writer_.begin_region();
    // If the table is tied, the head's gradient is there already.
    embedding.backward(dx, tied() ? embedding_->gradient(kOnly, kOnly).window : zeroed_embedding_gradient());
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
  std::unique_ptr<UnshardWriter> experts_, embedding_, head_, prediction_;
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
            phase == Phase::training ? "micro_batch, forward, backward, reduce or update" : name(phase)));
  }
  const bool transfers = is_transfer(part);
  const bool staged = part == StepPart::forward || part == StepPart::backward || transfers;
  if (part == StepPart::micro_batch && request.layout.pp > 1) {
    throw InvalidInput(
        str("part micro_batch needs pp=1, not pp=", request.layout.pp, "; use forward and backward"));
  }
  if (staged && request.layout.pp == 1)
    throw InvalidInput(str("part ", name(part), " needs pp above 1, not pp=1; use micro_batch"));
  const bool receives_rows = part == StepPart::recv_forward || part == StepPart::send_backward;
  if (transfers && stage == (receives_rows ? 0 : stages - 1)) {
    throw InvalidInput(
        str("stage ", stage, " of ", stages, " has no part ", name(part), "; ",
            receives_rows ? "the first stage has nobody before it" : "the last stage has nobody behind it"));
  }
  if (part == StepPart::reduce && request.layout.virtual_stages == 1)
    throw InvalidInput("part reduce needs virtual_stages above 1, not virtual_stages=1; use update");
}

UnplacedPlan write_alike(const StepRequest& request, StepPart part, int stage, Rank self,
                         MixerPlanCache& cache) {
  StepContext context(request, part, stage, self, cache);
  if (context.groups.pp() != stage % request.layout.pp) {
    throw InvalidInput(str("rank ", self, " does not hold stage ", stage, "; it holds stages ",
                           context.groups.pp(), " + i * ", request.layout.pp));
  }
  return PartWriter(context).write();
}

// A plan is written with the documents of its own sequences, and is one of the inputs of all replicas.
UnplacedPlan write(const StepRequest& request, StepPart part, int stage, Rank self, MixerPlanCache& cache,
                   std::int64_t micro_batch) {
  const auto& all = request.workload.cu_seqlens_of_sequence;
  if (all.empty()) return write_alike(request, part, stage, self, cache);
  StepRequest own = request;
  auto& documents = own.workload.cu_seqlens_of_sequence;
  documents.clear();
  if (!sees_documents(part)) return write_alike(own, part, stage, self, cache);
  const auto first = all.begin() + first_sequence(request, self, micro_batch);
  documents.assign(first, first + request.layout.micro_batch);
  UnplacedPlan made = write_alike(own, part, stage, self, cache);
  documents = documents_of_micro_batch(request, micro_batch);
  made.plan.inputs = inputs_of(own, part);
  return made;
}

}  // namespace

bool sees_documents(StepPart part) {
  return !is_transfer(part) && part != StepPart::reduce && part != StepPart::update;
}

bool is_transfer(StepPart part) {
  return part == StepPart::recv_forward || part == StepPart::send_forward ||
         part == StepPart::recv_backward || part == StepPart::send_backward;
}

std::int64_t first_sequence(const StepRequest& request, Rank self, std::int64_t micro_batch) {
  const ParallelLayout& layout = request.layout;
  const RankGroups groups(layout, self);
  const std::int64_t replica = std::int64_t{groups.dp_replicate()} * layout.dp_shard + groups.dp_shard();
  return (replica * accumulation(request.workload, layout) + micro_batch) * layout.micro_batch;
}

std::vector<std::vector<std::int64_t>> documents_of_micro_batch(const StepRequest& request,
                                                                std::int64_t micro_batch) {
  const auto& all = request.workload.cu_seqlens_of_sequence;
  std::vector<std::vector<std::int64_t>> documents;
  if (all.empty()) return documents;
  const std::int64_t at_once = request.layout.micro_batch,
                     of_replica = accumulation(request.workload, request.layout) * at_once;
  for (auto first = all.begin() + micro_batch * at_once; first < all.end();) {
    documents.insert(documents.end(), first, first + at_once);
    first += std::min<std::int64_t>(of_replica, all.end() - first);
  }
  return documents;
}

std::string_view name(StepPart part) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "micro_batch", "forward",      "backward",     "reduce",        "update",       "prefill",
      "decode",      "recv_forward", "send_forward", "recv_backward", "send_backward"};
  return kNames[static_cast<std::size_t>(part)];
}

Plan step_plan(const StepRequest& request, StepPart part, int stage, Rank self, MixerPlanCache* cache,
               std::int64_t micro_batch) {
  validate(request, part, stage);
  MixerPlanCache own(2);
  return placed(write(request, part, stage, self, cache == nullptr ? own : *cache, micro_batch));
}

UnplacedPlan unplaced_step_plan(const StepRequest& request, StepPart part, int stage, Rank self,
                                MixerPlanCache& cache) {
  return write(request, part, stage, self, cache, 0);
}

std::vector<Plan> step_plans(const StepRequest& request, StepPart part, int stage, MixerPlanCache* cache,
                             std::int64_t micro_batch) {
  validate(request, part, stage);
  MixerPlanCache own;
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < request.layout.world(); ++rank) {
    if (RankGroups(request.layout, rank).pp() != stage % request.layout.pp) continue;
    plans.push_back(placed(write(request, part, stage, rank, cache == nullptr ? own : *cache, micro_batch)));
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
  return placed(std::move(writer).build());
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
  if (request.layout.virtual_stages == 1) return {StepPart::forward, StepPart::backward, StepPart::update};
  return {StepPart::forward, StepPart::backward, StepPart::reduce, StepPart::update};
}

std::vector<StepPart> transfers_of(const StepRequest& request, int stage) {
  const ParallelLayout& layout = request.layout;
  if (layout.pp == 1 || request.workload.phase != Phase::training) return {};
  std::vector<StepPart> parts;
  if (stage > 0) parts = {StepPart::recv_forward, StepPart::send_backward};
  if (stage < layout.pp * layout.virtual_stages - 1)
    parts.insert(parts.end(), {StepPart::send_forward, StepPart::recv_backward});
  return parts;
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
