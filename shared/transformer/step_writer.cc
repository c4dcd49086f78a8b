#include "shared/transformer/step_writer.h"

#include <algorithm>
#include <map>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/temporaries.h"

namespace cp {
namespace {

// The attention of the request over this rank's cp group, in layers of each kind.
std::vector<AttentionRequest> attention_requests(const StepRequest& request, const RankGroups& groups,
                                                 bool training) {
  std::vector<AttentionRequest> all;
  for (const LayerKind& kind : request.model.kinds) {
    AttentionRequest& attention = all.emplace_back();
    attention.problem = attention_problem(request.model, request.workload, request.layout, kind);
    if (attention.problem.drops())
      attention.problem.dropout.first_head = groups.tp() * attention.problem.q_heads;
    attention.ranks = groups.cp_group();
    if (request.layout.cp > 1) attention.strategy = strategy_of(request.layout, attention.problem);
    attention.keep_for_backward = training;
    attention.options.lse = LsePlace::computed;  // the backward pass alone reads it
  }
  return all;
}

std::optional<RecurrenceRequest> recurrence_request(const StepRequest& request, const RankGroups& groups,
                                                    bool training) {
  if (!request.model.recurrence) return std::nullopt;
  return RecurrenceRequest{recurrence_problem(request.model, request.workload, request.layout),
                           groups.cp_group(), recurrence_strategy(request.layout), training};
}

bool owns_table(const StepRequest& request) {
  return !request.model.tied_embeddings || request.layout.pp > 1;
}

}  // namespace

StepContext::StepContext(const StepRequest& asked, StepPart step_part, int stage_number, Rank rank,
                         MixerPlanCache& cache)
    : request(asked),
      model(asked.model),
      workload(asked.workload),
      layout(asked.layout),
      part(step_part),
      stage(stage_number),
      self(rank),
      mixer_plans(cache),
      groups(layout, rank),
      sizes(local_sizes(model, workload, layout)),
      attention(attention_requests(asked, groups, workload.phase == Phase::training)),
      recurrence(recurrence_request(asked, groups, workload.phase == Phase::training)),
      kinds(kinds_of_stage(model, layout, stage_number)),
      parts(parts_of_kinds(model)),
      layers(static_cast<std::int64_t>(kinds.size())),
      first_stage(stage == 0),
      last_stage(stage == layout.pp * layout.virtual_stages - 1),
      training(workload.phase == Phase::training),
      predictions(training && last_stage ? model.prediction_layers : 0),
      hidden(model.hidden),
      experts(model, sizes, layout.threshold),
      head(model, sizes, owns_table(asked), layout.threshold),
      embedding{0, sizes.vocab, model.hidden},
      prediction(model, layout.threshold) {
  latent = latent_use(model, workload, layout);
  for (const int kind : kinds) ++layers_with[parts[idx(kind)]];
  layers_with[parts[idx(model.last_kind())]] += predictions;
  for (const LayerParts of : kLayerParts) {
    if (model.has(of)) layer[of] = LayerWeights(model, sizes, of, layout.threshold);
  }
  const std::vector<int> of_model = homes_of_layers(model, workload, layout);
  const auto [first, count] = layers_of_stage(model, layout, stage);
  homes.assign(of_model.begin() + first, of_model.begin() + first + count + 1);
  const int homes_of_model = *std::max_element(of_model.begin(), of_model.end()) > 0 ? kMostHomes : 1;
  std::vector<std::vector<IndexSet>> rows_of_ranks;  // at each home
  for (int home = 0; home < homes_of_model; ++home) {
    // Which of the kinds' masks it is does not matter: refuse() sees to that.
    const AttentionSharding sharding(attention.front().problem, layout.cp, strategy_at_home(layout, home));
    positions_at_[idx(home)] = sharding.home_q(groups.cp()).rows;
    if (homes_of_model == 1) continue;
    std::vector<IndexSet>& rows = rows_of_ranks.emplace_back();
    for (int index = 0; index < layout.cp; ++index) rows.push_back(sharding.home_q(index).rows);
  }
  if (homes_of_model > 1) {
    const RowSplit split{layout.micro_batch, layout.row_ranks()};
    moves_from_ = {row_moves(rows_of_ranks[0], rows_of_ranks[1], split),
                   row_moves(rows_of_ranks[1], rows_of_ranks[0], split)};
  }
  layers_that_keep = cp::layers_that_keep(stage_layers(), layout.recompute);
  enter(homes.front());
  for (const AttentionRequest& of_kind : attention) {
    cache_rows.push_back(
        AttentionSharding(of_kind.problem, layout.cp, of_kind.strategy).home_kv(groups.cp()).num_rows());
  }
}

void StepContext::enter(int home) {
  home_ = home;
  new_rows = size(positions_at_[idx(home)]);
  tokens = layout.micro_batch * new_rows;
  tokens_tp = rows_at(home);
  padded_tokens = tokens_tp * layout.row_ranks();
}

// ---- views ----

View rows_of(const View& matrix, std::int64_t first, std::int64_t count) {
  View view = matrix;
  view.offset += first * matrix.strides[0];
  view.shape[0] = count;
  return view;
}

View columns_of(const View& matrix, std::int64_t first, std::int64_t count) {
  View view = matrix;
  view.offset += first * matrix.strides[1];
  view.shape[1] = count;
  return view;
}

View transposed(const View& matrix) {
  View view = matrix;
  const std::size_t last = view.shape.size() - 1;
  std::swap(view.shape[last - 1], view.shape[last]);
  std::swap(view.strides[last - 1], view.strides[last]);
  return view;
}

// ---- memory ----

StepWriter::StepWriter(const StepContext& context)
    : context_(context), builder_(context.self, shape_target()), compute_(builder_.stream("compute")) {}

Window StepWriter::working(std::string_view name, DType dtype, std::int64_t numel, std::string_view term) {
  for (const auto& [known, buffer] : working_) {
    if (known != name) continue;
    builder_.grow(buffer, numel);  // layers of another kind may need more
    return {buffer, 0, {}};
  }
  const BufferId buffer = builder_.temporary(str(term, "/", name), dtype, numel);
  working_.emplace_back(name, buffer);
  return {buffer, 0, {}};
}

View StepWriter::new_rows(std::string_view name, std::int64_t rows, std::int64_t width) {
  return dense_view(builder_.temporary(str("working/", name), dtype(), rows * width), 0, {rows, width});
}

// ---- steps ----

void StepWriter::matmul(const View& a, const View& b, const View& out, std::string label, bool accumulate) {
  if (out.numel() == 0) return;
  if (a.shape.back() == 0) {
    if (!accumulate) fill(out, 0, std::move(label));
    return;
  }
  builder_.add(compute_, MatMul{a, b, out, accumulate}, std::move(label));
}

void StepWriter::kernel(RowKernel kernel, std::string label) {
  const auto empty = [](const View& view) { return view.numel() == 0; };
  if (std::all_of(kernel.writes.begin(), kernel.writes.end(), empty) &&
      std::all_of(kernel.updates.begin(), kernel.updates.end(), empty)) {
    return;
  }
  builder_.add(compute_, std::move(kernel), std::move(label));
}

void StepWriter::weight_gradient(const View& a, const View& b, const Weight& weight,
                                 const GradientPlace& gradients, std::string label) {
  matmul(a, b, weight.matrix(gradients.window), std::move(label), gradients.adds);
}

void StepWriter::weight_gradient(const View& made, const Weight& weight, const GradientPlace& gradients,
                                 const std::string& name) {
  const View place = weight.flat(gradients.window);
  if (!gradients.adds) return copy(made, place, name);
  if (builder_.dtype(place.buffer) == builder_.dtype(made.buffer)) return accumulate(made, place, name);
  const View rounded =
      working(str(name, ", rounded"), builder_.dtype(place.buffer), made.numel()).flat(0, made.numel());
  copy(made, rounded, name);
  accumulate(rounded, place, name);
}

void StepWriter::kernel_with_gradients(RowKernel kernel, const std::vector<Weight>& weights,
                                       const GradientPlace& gradients, std::string label) {
  std::vector<View>& views = gradients.adds ? kernel.updates : kernel.writes;
  for (const Weight& weight : weights) views.push_back(weight.flat(gradients.window));
  this->kernel(std::move(kernel), std::move(label));
}

void StepWriter::fill(const View& out, double value, std::string label) {
  if (out.numel() > 0) builder_.add(compute_, Fill{out, value}, std::move(label));
}

void StepWriter::copy(const View& in, const View& out, std::string label) {
  if (out.numel() == 0) return;
  if (builder_.dtype(in.buffer) == builder_.dtype(out.buffer)) {
    builder_.add(compute_, Copy{in, out}, std::move(label));
  } else {
    builder_.add(compute_, Cast{in, out}, std::move(label));
  }
}

void StepWriter::accumulate(const View& in, const View& out, std::string label) {
  if (out.numel() > 0) builder_.add(compute_, Accumulate{ReduceOp::sum, in, out}, std::move(label));
}

void StepWriter::all_to_all(const View& in, const View& out, std::string label) {
  if (ep_ < 0) ep_ = builder_.group("ep", context_.groups.ep_group());
  builder_.add(builder_.stream("ep"), AllToAll{ep_, in, out}, std::move(label));
}

void StepWriter::all_reduce(std::string_view group, const std::vector<Rank>& ranks, ReduceOp op,
                            const View& data, std::string_view stream, std::string label) {
  if (data.numel() == 0 || ranks.size() == 1) return;
  const GroupId id = builder_.group(std::string(group), ranks);
  builder_.add(builder_.stream(std::string(stream)), AllReduce{id, op, data, data}, std::move(label));
}

// ---- between the tensor-parallel regions ----

View StepWriter::gather(const View& local, std::string_view name, const std::string& label) {
  if (!splits_rows() || local.numel() == 0) return local;
  if (tp_ < 0) tp_ = builder_.group("tp", context_.groups.tp_group());
  const View all = new_rows(name, context_.layout.tp * local.shape[0], local.shape[1]);
  builder_.add(builder_.stream("tp"), AllGather{tp_, local, all}, label);
  return all;
}

View StepWriter::gather_rows(const View& local, std::string_view name, const std::string& label) {
  return rows_of(gather(local, name, label), 0, context_.tokens);
}

View StepWriter::partial_rows(const View& local, std::string_view name) {
  if (!splits_rows()) return local;
  return rows_of(new_rows(name, context_.padded_tokens, local.shape[1]), 0, context_.tokens);
}

void StepWriter::scatter_rows(const View& partial, const View& local, const std::string& label) {
  if (context_.tokens == 0) return;
  if (!splits_rows()) {
    return all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum, local, "tp", label);
  }
  if (tp_ < 0) tp_ = builder_.group("tp", context_.groups.tp_group());
  const View all = rows_of(partial, 0, context_.padded_tokens);
  if (context_.padded_tokens > context_.tokens) {
    fill(rows_of(all, context_.tokens, context_.padded_tokens - context_.tokens), 0, "pad rows");
  }
  builder_.add(builder_.stream("tp"), ReduceScatter{tp_, ReduceOp::sum, all, local}, label);
}

View StepWriter::positions(int kind) {
  const std::int64_t rows = context_.workload.seq_len, width = context_.model.rotated_dim();
  const Numerics& numerics = context_.model.numerics;
  if (positions_ < 0)
    positions_ = builder_.input("activations/positions", DType::f32, numerics.rotary_tables() * rows * width);
  // Pairs are rotated, so that of an odd number of columns the last one has no use.
  const LayerKind& layer = context_.model.kinds[idx(kind)];
  const bool is_second = &numerics.rotary_of(layer) != &numerics.rotary;
  return {
      positions_, is_second ? rows * width : 0, {rows, layer.rotary ? width - width % 2 : 0}, {width, 1}, {}};
}

View StepWriter::score_correction(StackIndex of_mlp) {
  const std::int64_t experts = context_.model.experts->count,
                     layers = count_of(context_.layers_with, Mlp::experts);
  if (score_correction_ < 0)
    score_correction_ = builder_.input(std::string(kScoreCorrectionBuffer), DType::f32, layers * experts);
  return in_stack(score_correction_, experts, of_mlp).flat(0, experts);
}

View StepWriter::seed(StackIndex layer) {
  const std::int64_t layers = context_.layers + context_.predictions;
  if (seeds_ < 0) seeds_ = builder_.input(std::string(kSeedsBuffer), DType::i64, layers * kPlacedSeed);
  return in_stack(seeds_, kPlacedSeed, layer).flat(0, kPlacedSeed);
}

View StepWriter::loads(StackIndex of_mlp) {
  const std::int64_t experts = context_.model.experts->count,
                     layers = count_of(context_.layers_with, Mlp::experts);
  if (loads_ < 0) loads_ = builder_.inout(std::string(kLoadsBuffer), DType::f32, layers * experts);
  return in_stack(loads_, experts, of_mlp).flat(0, experts);
}

// ---- between stages ----

void StepWriter::exchange(int direction, const View& rows, bool sends) {
  if (rows.numel() == 0) return;
  const int lower = std::min(context_.stage, context_.stage + direction), pp = context_.layout.pp;
  // What goes one way is in no order with what comes the other way.
  const StepPart part = context_.part;
  const bool gradients = part == StepPart::send_backward || part == StepPart::recv_backward;
  const GroupId group = builder_.group(
      gradients ? "pp_gradients" : "pp",
      {context_.groups.on_pipeline_rank(lower % pp), context_.groups.on_pipeline_rank((lower + 1) % pp)});
  const std::int32_t self = direction > 0 ? 0 : 1, peer = 1 - self;
  Exchange exchange{group, {}, {}, counts_digest({{sends ? self : peer, sends ? peer : self, rows.numel()}})};
  (sends ? exchange.sends : exchange.recvs).push_back({peer, rows});
  builder_.add(builder_.stream("pp"), std::move(exchange),
               str(sends ? "to" : "from", " stage ", context_.stage + direction));
}

void StepWriter::receive(int direction, const View& rows) { exchange(direction, rows, false); }
void StepWriter::send(int direction, const View& rows) { exchange(direction, rows, true); }

// ---- between homes ----

void StepWriter::move_rows(int from_home, const View& from, const View& to, const std::string& label) {
  const std::int64_t width = context_.hidden;
  const int self = context_.groups.row_index();
  std::vector<Count> counts;
  Exchange exchange;
  std::int64_t filled = 0;
  for (const RowMove& move : context_.moves_from(from_home)) {
    if (move.from != move.to) counts.push_back({move.from, move.to, move.rows * width});
    if (move.from == self && move.to == self)
      copy(rows_of(from, move.from_row, move.rows), rows_of(to, move.to_row, move.rows), "rows that stay");
    else if (move.from == self)
      exchange.sends.push_back({move.to, rows_of(from, move.from_row, move.rows)});
    else if (move.to == self)
      exchange.recvs.push_back({move.from, rows_of(to, move.to_row, move.rows)});
    if (move.to == self) filled = std::max(filled, move.to_row + move.rows);
  }
  // Behind the rows that the rank has, those that make all tp ranks' as many are zero.
  fill(rows_of(to, filled, to.shape[0] - filled), 0, "pad rows of a home");
  if (counts.empty()) return;
  exchange.group = builder_.group("homes", context_.groups.row_group());
  exchange.counts = counts_digest(std::move(counts));
  builder_.add(builder_.stream("comm"), std::move(exchange), label);
}

// ---- mixers ----

void StepWriter::attention(AttentionPass pass, const LayerPlace& at,
                           const std::function<View(std::string_view, std::int64_t)>& place) {
  const AttentionRequest& of_kind = context_.attention[idx(at.kind)];
  const auto place_with_seed = [&](std::string_view name, std::int64_t numel) {
    return name == "seed" ? seed(at.layer) : place(name, numel);
  };
  splice(context_.mixer_plans.get(of_kind, pass, context_.self, shape_target()),
         pass == AttentionPass::backward, place_with_seed, "attention/");
}

// Its workspace counts as attention's does: a rank has either at once.
void StepWriter::recurrence(RecurrencePass pass,
                            const std::function<View(std::string_view, std::int64_t)>& place) {
  splice(context_.mixer_plans.get(*context_.recurrence, pass, context_.self, shape_target()),
         pass == RecurrencePass::backward, place, "attention/recurrence/");
}

void StepWriter::splice(const Plan& plan, bool backward,
                        const std::function<View(std::string_view, std::int64_t)>& place,
                        std::string_view prefix) {
  std::map<std::string, View> places;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary) places.emplace(buffer.name, place(buffer.name, buffer.numel));
  }
  const StepId begin = builder_.next_step();
  builder_.splice(plan, places, prefix);
  mixer_steps_.push_back({begin, builder_.next_step(), backward});
}

Digest inputs_of(const StepRequest& request, StepPart part) {
  // Both sides of a transfer are made from the same.
  if (part == StepPart::recv_forward) part = StepPart::send_forward;
  if (part == StepPart::recv_backward) part = StepPart::send_backward;
  Hasher inputs;
  inputs.add(name(part));
  hash(inputs, request.model);
  hash(inputs, request.workload);
  hash(inputs, request.layout);
  return inputs.digest();
}

UnplacedPlan StepWriter::build() && {
  return std::move(builder_).build_unplaced(inputs_of(context_.request, context_.part));
}

}  // namespace cp
